"""The rows of an export, for the engine that answers questions in batches."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.decoding.arrays.log_probabilities import Floats, Ids
from chatbot.export.runtime.model import Array, ExportedModel, State


class ExportedRows:
    """A `chatbot.inference.row_model.RowModel` of an export."""

    def __init__(self, model: ExportedModel) -> None:
        self._model = model

    def encode(self, questions: Sequence[Sequence[int]]) -> State:
        """Return the state before the first token; see `RowModel`."""
        return self._model.encode(questions)

    def step(self, state: State, last: Ids) -> tuple[Floats, State]:
        """Decode one token; see `RowModel`."""
        logits, after, _ = self._model.step(state, last)
        return logits, after

    def take(self, state: State, rows: npt.NDArray[np.int64]) -> State:
        """Return the state of some rows; see `RowModel`."""
        return State({name: x[rows] for name, x in state.question.items()}, [x[rows] for x in state.cells])

    def join(self, first: State, second: State) -> State:
        """Return the state of the rows of both; see `RowModel`."""
        width = max(state.question["mask"].shape[1] for state in (first, second))
        question = {
            name: np.concatenate([_padded(state.question[name], width) for state in (first, second)])
            for name in first.question
        }
        cells = [np.concatenate(both) for both in zip(first.cells, second.cells, strict=True)]
        return State(question, cells)


def _padded(of_question: Array, width: int) -> Array:
    """Return a part of the state of questions, [rows, source, ...], with as many positions."""
    return np.pad(of_question, [(0, 0), (0, width - of_question.shape[1]), *[(0, 0)] * (of_question.ndim - 2)])

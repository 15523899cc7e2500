"""The rows of an export, for the engine that answers questions in batches."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.decoding.arrays.log_probabilities import Floats, Ids
from chatbot.export.runtime.model import ExportedModel, State
from chatbot.export.runtime.onnx_engine import Array


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

    def take(self, states: Sequence[State], rows: npt.NDArray[np.int64]) -> State:
        """Return the state of some rows; see `RowModel`. Questions are padded to the longest of the states."""
        width = max(state.question["mask"].shape[1] for state in states)
        question = {
            name: np.concatenate([_padded(state.question[name], width) for state in states])[rows]
            for name in states[0].question
        }
        cells = [np.concatenate(of_all)[rows] for of_all in zip(*(state.cells for state in states), strict=True)]
        return State(question, cells)


def _padded(of_question: Array, width: int) -> Array:
    """Return a part of the state of questions, [rows, source, ...], with as many positions."""
    return np.pad(of_question, [(0, 0), (0, width - of_question.shape[1]), *[(0, 0)] * (of_question.ndim - 2)])

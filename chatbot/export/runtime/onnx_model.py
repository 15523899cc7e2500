"""The model of an ONNX export, run by ONNX Runtime on arrays of NumPy, without TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import PAD
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.errors import UserError
from chatbot.export.manifest import damaged
from chatbot.export.runtime.ngram_mixture import NgramMixture

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

CELL, NEXT = "cell_", "next_"  # the names of cells in the graphs, before and after a step


class State(NamedTuple):
    """The state of the decoder for some hypotheses. Those of a question are one after another, as many for each."""

    question: dict[str, Array]  # does not change; the first dimension is the question
    cells: list[Array]  # the first dimension is the hypothesis, here and below
    history: npt.NDArray[np.int64] | None  # the ids before the next one, for n-grams
    attention: Floats | None = None  # of the last step, [hypotheses, source]; None before it, or without attention

    def repeated(self, times: int) -> "State":
        """Return the state with as many hypotheses for each one."""
        return self.of_hypotheses(np.repeat(np.arange(len(self.cells[0])), times))

    def of_hypotheses(self, numbers: npt.NDArray[np.integer]) -> "State":
        """Return the state of hypotheses in another order, of the same questions. One may be taken several times."""

        def selected(x: Any) -> Any:
            return None if x is None else x[numbers]

        cells = [x[numbers] for x in self.cells]
        return State(self.question, cells, selected(self.history), selected(self.attention))

    def of_questions(self, numbers: npt.NDArray[np.integer], hypotheses: npt.NDArray[np.integer]) -> "State":
        """Return the state of some questions, and of their hypotheses. A single question is shared, without copies."""
        state = self.of_hypotheses(hypotheses)
        if len(self.question["mask"]) == 1:
            return state
        return state._replace(question={name: x[numbers] for name, x in self.question.items()})


class OnnxModel:
    """A `chatbot.inference.rows.RowModel` that runs encode.onnx and step.onnx of a folder.

    ngrams: what is mixed in, None for nothing. Raises UserError if ONNX Runtime is not installed, or cannot read the
    files.
    """

    def __init__(self, folder: Path, ngrams: NgramMixture | None) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError:
            remedy = "run `pip install onnxruntime`"
            raise UserError(f"--export {folder}: ONNX Runtime is not installed; {remedy}") from None
        self._ngrams = ngrams
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # int8 weights are converted to float32 once, when the graph is loaded, and not at each step.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # The calls are short: a thread that waits for the next one would only take a core from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._encode, self._step = (
                onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
                for name in ("encode.onnx", "step.onnx")
            )
        except Exception as error:  # ONNX Runtime raises classes of its own, derived from Exception
            raise damaged(folder, error) from None

    def encode(self, questions: Sequence[Sequence[int]], ngrams: bool = True) -> State:
        """Return the state before the first token, of one hypothesis for each question.

        questions: the ids of each, at least one. ngrams: whether to mix them in.
        """
        ids = np.full((len(questions), max(map(len, questions))), PAD, np.int64)
        for row, question in enumerate(questions):
            ids[row, : len(question)] = question
        results = _run(self._encode, {"ids": ids})
        history = self._ngrams.begins(len(ids)) if self._ngrams is not None and ngrams else None
        of_question = {name: x for name, x in results.items() if not name.startswith(CELL)}
        return State(of_question, _cells(results, CELL), history)

    def step(self, state: State, last: npt.NDArray[np.int64]) -> tuple[Floats, State]:
        """Return the logits of the next ids, [hypotheses, vocabulary], and the state after the last ones."""
        cells = {f"{CELL}{i}": x for i, x in enumerate(state.cells)}
        results = _run(self._step, {"last": last.astype(np.int32), **state.question, **cells})
        logits, history = results["logits"], state.history
        if history is not None:
            assert self._ngrams is not None
            history = self._ngrams.next_history(history, last)
            logits = self._ngrams.mixed(NumpyFunctions.log_softmax(logits), history)
        return logits, State(state.question, _cells(results, NEXT), history, results.get("attention"))

    def take(self, states: Sequence[State], rows: npt.NDArray[np.int64]) -> State:
        """Return the state of some rows, whose questions are padded to the longest; see `RowModel`."""
        width = max(state.question["mask"].shape[1] for state in states)
        question = {
            name: np.concatenate([_padded(state.question[name], width) for state in states])[rows]
            for name in states[0].question
        }
        cells = [np.concatenate(of_all)[rows] for of_all in zip(*(state.cells for state in states), strict=True)]
        histories = [state.history for state in states if state.history is not None]
        return State(question, cells, np.concatenate(histories)[rows] if histories else None)


def _run(session: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a graph by name. arrays: by name; the graph takes those that it knows."""
    inputs = {x.name for x in session.get_inputs()}
    feed = {name: x for name, x in arrays.items() if name in inputs}
    return dict(zip((x.name for x in session.get_outputs()), session.run(None, feed), strict=True))


def _cells(results: Mapping[str, Array], prefix: str) -> list[Array]:
    """Return the cells among the results, in the order of their numbers."""
    number = sum(name.startswith(prefix) for name in results)
    return [results[f"{prefix}{i}"] for i in range(number)]


def _padded(of_question: Array, width: int) -> Array:
    """Return a part of the state of questions, [rows, source, ...], with as many positions."""
    return np.pad(of_question, [(0, 0), (0, width - of_question.shape[1]), *[(0, 0)] * (of_question.ndim - 2)])

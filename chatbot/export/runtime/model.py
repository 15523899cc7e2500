"""An exported model as functions of arrays: encode questions, then generate token by token."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.vocabulary import PAD
from chatbot.decoding.arrays.log_probabilities import Floats, Ids, log_softmax
from chatbot.export.runtime.ngram_mixture import NgramMixture
from chatbot.export.runtime.onnx_engine import Array, OnnxEngine

CELL, NEXT = "cell_", "next_"


class State(NamedTuple):
    """The state of the decoder."""

    question: dict[str, Array]  # does not change; the first dimension is the question
    cells: list[Array]  # the first dimension is the hypothesis; those of a question are one after another

    def of_hypotheses(self, numbers: npt.NDArray[np.integer]) -> "State":
        """Return the state of some hypotheses; one may be taken several times. Of several questions, each has one."""
        of_questions = self.question
        if len(self.question["mask"]) > 1:
            of_questions = {name: x[numbers] for name, x in self.question.items()}
        return State(of_questions, [x[numbers] for x in self.cells])

    def with_parents(self, numbers: npt.NDArray[np.integer]) -> "State":
        """Return the state in which each hypothesis continues another one of its question."""
        return self._replace(cells=[x[numbers] for x in self.cells])

    def repeated(self, times: int) -> "State":
        """Return the state with as many hypotheses for each one."""
        return self._replace(cells=[np.repeat(x, times, axis=0) for x in self.cells])


class Step(NamedTuple):
    """The result of one step."""

    logits: Floats  # [hypotheses, vocabulary]
    state: State
    attention: Floats | None  # [hypotheses, source], None without attention


class ExportedModel:
    """A model with its n-grams. ngrams: None without."""

    def __init__(self, engine: OnnxEngine, ngrams: NgramMixture | None) -> None:
        self._engine, self._ngrams = engine, ngrams

    def encode(self, questions: Sequence[Sequence[int]], ngrams: bool = True) -> State:
        """Return the state before the first token. questions: ids, at least one each. ngrams: whether to mix them in.

        The ids of the history of the n-grams, if there are any, are the last one of the cells.
        """
        ids = np.full((len(questions), max(map(len, questions))), PAD, np.int64)
        for row, question in enumerate(questions):
            ids[row, : len(question)] = question
        state = self._engine.encode(ids)
        number = sum(name.startswith(CELL) for name in state)
        cells = [state[f"{CELL}{i}"] for i in range(number)]  # not in the order of their names
        if self._ngrams is not None and ngrams:
            cells.append(self._ngrams.begins(len(ids)))
        return State({name: x for name, x in state.items() if not name.startswith(CELL)}, cells)

    def step(self, state: State, last: Ids) -> Step:
        """Decode one token. last: [hypotheses], the last ids."""
        *cells, final = state.cells
        mixes = final.dtype == np.int64
        if not mixes:
            cells.append(final)
        named = {f"{CELL}{i}": x for i, x in enumerate(cells)}
        results = self._engine.step(last, {**state.question, **named})
        logits = results["logits"]
        after = [results[f"{NEXT}{i}"] for i in range(len(cells))]
        if mixes:
            assert self._ngrams is not None
            history = self._ngrams.next_history(final, last)
            logits = self._ngrams.mixed(log_softmax(logits), history)
            after.append(history)
        return Step(logits, State(state.question, after), results.get("attention"))

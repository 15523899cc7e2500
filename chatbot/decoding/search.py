"""A search for replies, one id at a time, on arrays of NumPy or tensors; and the loop over ids for arrays.

All rows are at the same position. A row is a question, or one of the candidates for it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.array_functions import Array, functions_of
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.hypotheses import Hypotheses, appended, extended, first_hypotheses, scores
from chatbot.decoding.processors import Prefix, processed
from chatbot.decoding.sampling import picked

# A loop on a GPU has int32 and bool in the host's memory. What changes with each id is int64 or float32, but for the
# position, by which the host decides how long a loop runs.

# The state of a model by name. Its parts of these names change with each id: their first dimension is the hypothesis,
# of which each row has the same number, one after another. The other parts belong to the question.
State = dict[str, Any]
OF_HYPOTHESES = ("cells", "history")
# (state, ids [hypotheses] int64) -> (logits [hypotheses, vocabulary], the state after these ids)
Step = Callable[[State, Array], tuple[Array, State]]


class Progress(NamedTuple):
    """A search before an id is added at `position`."""

    position: Array  # scalar int32
    hypotheses: Hypotheses
    state: State  # the parts of the hypotheses
    generic_state: State  # without the question; {} if it is not needed

    def finished(self) -> Array:
        """Return whether all hypotheses of a row are finished, [rows] bool."""
        return functions_of(self.hypotheses.ids).sum(1 - self.hypotheses.are_finished)[:, 0] == 0

    def of_rows(self, rows: Array) -> "Progress":
        """Return the search of some rows, [rows] int64."""
        functions = functions_of(rows)
        number = self.hypotheses.ids.shape[1]
        of_hypotheses = functions.reshape(rows[:, None] * number + np.arange(number), (-1,))
        states = functions.rows((self.state, self.generic_state), of_hypotheses)
        return Progress(self.position, functions.rows(self.hypotheses, rows), *states)


@dataclasses.dataclass(frozen=True)
class Search:
    """The search of the decoding settings, which can stop at any position and go on from there.

    step: the model's. question: the parts of its state that belong to the question of each row; a single question is
    shared by all rows. "mask" [questions, source], True or 1 at real tokens, is one of them. generic: those of the
    empty question, for --anti-lm. uniform: for sampling, [rows, max_length] float32 in [0, 1): a row's ids depend on
    its own numbers alone.
    """

    decoding: DecodingSettings
    automaton: BoundedAutomaton
    step: Step
    question: State
    generic: State | None = None
    uniform: Array | None = None

    def of_rows(self, rows: Array) -> "Search":
        """Return the search of some rows, [rows] int64."""
        functions = functions_of(rows)
        mask = self.question["mask"]
        of_candidates = rows // (self.decoding.hypotheses // self.decoding.beams)
        question = functions.cond(
            functions.length(mask) == 1, lambda: self.question, lambda: functions.rows(self.question, of_candidates)
        )
        uniform = None if self.uniform is None else functions.rows(self.uniform, rows)
        return dataclasses.replace(self, question=question, uniform=uniform)

    def advanced(self, progress: Progress) -> Progress:
        """Add an id to each hypothesis. "hypotheses" in shapes: of all rows, one row after another."""
        position, hypotheses, state, generic_state = progress
        functions = functions_of(hypotheses.ids)
        decoding = self.decoding
        number = self.decoding.beams
        last, automaton_states = (functions.reshape(x, (-1,)) for x in (hypotheses.last, hypotheses.states))
        logits, state = self._stepped(self.question, state, last)
        logits = self.automaton.allowed_logits(functions.float32(logits), automaton_states, position)
        log_probs, generic = functions.log_softmax(logits), None  # [hypotheses, vocabulary]
        if self.generic is not None:
            generic, generic_state = self._generic(position, generic_state, last, log_probs)
        ids = functions.reshape(hypotheses.ids, (-1, self.automaton.max_length))
        log_probs = processed(decoding, log_probs, Prefix(functions.column(ids, position), ids), generic)
        if number == 1:
            uniform = None if self.uniform is None else self.uniform[:, position, None]
            chosen = picked(decoding, log_probs, uniform)
            hypotheses = appended(self.automaton, hypotheses, log_probs, chosen, position)
            return Progress(position + 1, hypotheses, state, generic_state)
        log_probs = functions.reshape(log_probs, (-1, number, logits.shape[-1]))
        hypotheses, parents = extended(decoding, self.automaton, hypotheses, log_probs, position)
        parents = functions.reshape(functions.row_numbers(parents) * number + parents, (-1,))  # [hypotheses]
        return Progress(position + 1, hypotheses, *functions.rows((state, generic_state), parents))

    def _stepped(self, question: State, state: State, last: Array) -> tuple[Array, State]:
        logits, after = self.step({**question, "mask": question["mask"] > 0, **state}, last)
        return logits, {name: after[name] for name in state}

    def _generic(self, position: Array, state: State, last: Array, log_probs: Array) -> tuple[Array, State]:
        """Return the log-probabilities without the question, 0 from --anti-lm-tokens on, and the next state."""
        functions = functions_of(log_probs)
        question = self.generic
        assert question is not None

        def computed() -> tuple[Array, State]:
            logits, after = self._stepped(question, state, last)
            return functions.log_softmax(functions.float32(logits)), after

        is_needed = position < self.decoding.anti_lm_tokens
        return functions.cond(is_needed, computed, lambda: (functions.zeros_like(log_probs), state))


def new_search(
    decoding: DecodingSettings,
    automaton: BoundedAutomaton,
    step: Step,
    state: State,
    generic: State | None = None,
    uniform: Array | None = None,
) -> tuple[Search, Progress]:
    """Return the search for replies to some questions, and how it begins.

    state: the model's before the first id, of each question. generic: that of the empty question, for --anti-lm.
    uniform: for sampling, [questions, candidates, max_length].
    """
    mask = state["mask"]
    functions = functions_of(mask)
    number = decoding.hypotheses
    of_hypotheses = {name: x for name, x in state.items() if name in OF_HYPOTHESES}
    generic_state: State = {}
    if generic is not None:
        generic_state = {name: x for name, x in generic.items() if name in OF_HYPOTHESES}
        generic_state = functions.repeated(generic_state, functions.length(mask) * number)
        generic = {name: x for name, x in generic.items() if name not in OF_HYPOTHESES}
    if uniform is not None:
        uniform = functions.reshape(uniform, (-1, automaton.max_length))
    question = {name: x for name, x in state.items() if name not in OF_HYPOTHESES}
    first = first_hypotheses(decoding.beams, automaton)
    rows = functions.length(mask) * (number // decoding.beams)
    hypotheses = Hypotheses(*functions.repeated(tuple(map(functions.array, first)), rows))
    start = Progress(functions.array(0), hypotheses, functions.repeated(of_hypotheses, number), generic_state)
    return Search(decoding, automaton, step, question, generic, uniform), start


def search_arrays(
    search: Search, start: Progress, is_wanted: Callable[[], bool]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Run a search on arrays, without the rows that are finished, until all are or it is not wanted any more.

    Returns the ids [rows, hypotheses, max_length], padded, and scores [rows, hypotheses] of all rows, the best
    hypotheses first. If fewer are possible than beam search wants, the others have score -inf.
    """
    ids = start.hypotheses.ids.copy()
    best_scores = start.hypotheses.log_probs.copy()
    rows = np.arange(len(ids))
    progress = start
    current = search.of_rows(rows)
    while len(rows) and progress.position < search.automaton.max_length and is_wanted():
        progress = current.advanced(progress)
        ids[rows], best_scores[rows] = progress.hypotheses.ids, scores(search.decoding, progress.hypotheses)
        remaining = np.flatnonzero(~progress.finished())
        if len(remaining) < len(rows):
            rows = rows[remaining]
            progress = progress.of_rows(remaining)
            current = search.of_rows(rows)
    return ids, best_scores

"""A search for replies, one id at a time, on arrays of NumPy or tensors; and the loop over ids for arrays.

An id is added to each unfinished reply: the one chosen for it, or the best ones in beam search, with the length penalty
of Wu et al. (2016). All rows are at the same position. A row is a question, or one of the candidates for it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS, PAD
from chatbot.decoding.array_functions import INFINITY, Array, functions_of
from chatbot.decoding.automaton import BoundedAutomaton
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


class Hypotheses(NamedTuple):
    """The hypotheses of each row, as many for all: the beams of beam search, one in greedy search and sampling.

    No int32 or bool, which a loop on a GPU has on the host. An impossible hypothesis has the log-probability -inf.
    """

    ids: Array  # [rows, hypotheses, max_length] int64, padded
    last: Array  # [rows, hypotheses] int64, the last ids, or the begin symbol
    log_probs: Array  # [rows, hypotheses] float32, in nats, of all ids
    lengths: Array  # [rows, hypotheses] int64, the end counted
    are_finished: Array  # [rows, hypotheses] int64, 0 or 1
    states: Array  # [rows, hypotheses] int64, of the automaton


def first_hypotheses(hypotheses: int, automaton: BoundedAutomaton) -> Hypotheses:
    """Return the hypotheses of one row before the first id, arrays of NumPy: [1, hypotheses, ...]."""
    # All hypotheses start equal. Only the first may be extended, or each would appear several times.
    is_first = np.arange(hypotheses) == 0
    return Hypotheses(
        ids=np.full((1, hypotheses, automaton.max_length), PAD, np.int64),
        last=np.full((1, hypotheses), BOS, np.int64),
        log_probs=np.where(is_first, np.float32(0), -INFINITY)[None],
        lengths=np.zeros((1, hypotheses), np.int64),
        are_finished=np.zeros((1, hypotheses), np.int64),
        states=np.full((1, hypotheses), automaton.start, np.int64),
    )


def appended(
    automaton: BoundedAutomaton, hypotheses: Hypotheses, log_probs: Array, ids: Array, position: Array | int
) -> Hypotheses:
    """Return the hypotheses with an id behind each that is unfinished. There is one a row.

    log_probs: of the next id, [rows, vocabulary] float32. ids: [rows] int64. position: 0 at the first id.
    """
    functions = functions_of(log_probs)
    are_finished = hypotheses.are_finished > 0  # [rows, 1]
    added = functions.where(are_finished, np.float32(0), functions.take(log_probs, ids[:, None]))
    last = functions.where(are_finished, np.int64(PAD), ids[:, None])
    return hypotheses._replace(
        ids=functions.where(_is_at(hypotheses, position), last[:, :, None], hypotheses.ids),
        last=last,
        log_probs=hypotheses.log_probs + added,
        lengths=hypotheses.lengths + 1 - hypotheses.are_finished,
        are_finished=functions.int64(are_finished | (last == EOS)),
        states=automaton.states_after(hypotheses.states, ids[:, None]),
    )


def extended(
    decoding: DecodingSettings,
    automaton: BoundedAutomaton,
    hypotheses: Hypotheses,
    log_probs: Array,
    position: Array | int,
) -> tuple[Hypotheses, Array]:
    """Return the best hypotheses of beam search that are an id longer, and the parent of each, [rows, beams] int64.

    The best are first. A finished hypothesis competes with the others.

    log_probs: of the next id of each hypothesis, [rows, beams, vocabulary] float32. position: 0 at the first id.
    """
    functions = functions_of(log_probs)
    vocabulary = log_probs.shape[-1]
    are_finished = hypotheses.are_finished > 0
    # A finished hypothesis has one continuation: padding, at no cost.
    padding = np.where(np.arange(vocabulary) == PAD, np.float32(0), -INFINITY)
    log_probs = hypotheses.log_probs[:, :, None] + functions.where(are_finished[:, :, None], padding, log_probs)
    lengths = hypotheses.lengths + 1 - hypotheses.are_finished
    ranks = log_probs / length_penalty(lengths, decoding)[:, :, None]
    # [rows, beams], flat over beams and ids
    chosen = functions.largest(functions.reshape(ranks, (-1, decoding.beams * vocabulary)), decoding.beams)
    parents = chosen // vocabulary
    ids = chosen % vocabulary
    log_probs = functions.take(functions.reshape(log_probs, (-1, decoding.beams * vocabulary)), chosen)
    states = automaton.states_after(functions.take(hypotheses.states, parents), ids)
    next_hypotheses = Hypotheses(
        ids=functions.where(_is_at(hypotheses, position), ids[:, :, None], functions.take(hypotheses.ids, parents)),
        last=ids,
        log_probs=log_probs,
        lengths=functions.take(lengths, parents),
        are_finished=functions.int64((functions.take(hypotheses.are_finished, parents) > 0) | (ids == EOS)),
        # An impossible hypothesis has any ids. It stays in a state that allows others, or its row would become NaN.
        states=functions.where(log_probs == -INFINITY, np.int64(0), states),
    )
    return next_hypotheses, parents


def scores(decoding: DecodingSettings, hypotheses: Hypotheses) -> Array:
    """Return the scores of the hypotheses, [rows, hypotheses] float32, in nats.

    Those of beam search are log-probability / ((5 + length) / 6) ** length_penalty.
    """
    if decoding.beams == 1:
        return hypotheses.log_probs
    return hypotheses.log_probs / length_penalty(hypotheses.lengths, decoding)


def length_penalty(lengths: Array, decoding: DecodingSettings) -> Array:
    """Return the divisors of log-probabilities, float32, in the shape of the lengths, which are integers."""
    return ((5.0 + functions_of(lengths).float32(lengths)) / np.float32(6)) ** np.float32(decoding.length_penalty)


def _is_at(hypotheses: Hypotheses, position: Array | int) -> Array:
    """Return which places of the ids are the position, [max_length] bool."""
    return position == np.arange(hypotheses.ids.shape[2], dtype=np.int32)


class SearchState(NamedTuple):
    """A search before an id is added at `position`."""

    position: Array  # scalar int32
    hypotheses: Hypotheses
    state: State  # the parts of the hypotheses
    generic_state: State  # without the question; {} if it is not needed

    def finished(self) -> Array:
        """Return whether all hypotheses of a row are finished, [rows] bool."""
        return functions_of(self.hypotheses.ids).sum(1 - self.hypotheses.are_finished)[:, 0] == 0

    def of_rows(self, rows: Array) -> "SearchState":
        """Return the search of some rows, [rows] int64."""
        functions = functions_of(rows)
        number = self.hypotheses.ids.shape[1]
        of_hypotheses = functions.reshape(rows[:, None] * number + np.arange(number), (-1,))
        states = functions.rows((self.state, self.generic_state), of_hypotheses)
        return SearchState(self.position, functions.rows(self.hypotheses, rows), *states)


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

    def advanced(self, progress: SearchState) -> SearchState:
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
            return SearchState(position + 1, hypotheses, state, generic_state)
        log_probs = functions.reshape(log_probs, (-1, number, logits.shape[-1]))
        hypotheses, parents = extended(decoding, self.automaton, hypotheses, log_probs, position)
        parents = functions.reshape(functions.row_numbers(parents) * number + parents, (-1,))  # [hypotheses]
        return SearchState(position + 1, hypotheses, *functions.rows((state, generic_state), parents))

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
) -> tuple[Search, SearchState]:
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
    start = SearchState(functions.array(0), hypotheses, functions.repeated(of_hypotheses, number), generic_state)
    return Search(decoding, automaton, step, question, generic, uniform), start


def search_arrays(
    search: Search, start: SearchState, is_wanted: Callable[[], bool]
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

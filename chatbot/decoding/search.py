"""Greedy search, sampling and beam search for NumPy arrays and TensorFlow tensors, and the loop for NumPy arrays.

Each step adds one token to every unfinished hypothesis, so all hypotheses are at the same position. A row is a question
or, when sampling, one of its candidates. Beam search uses the length penalty of Wu et al. (2016).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS, PAD
from chatbot.decoding.array_functions import INFINITY, Array, functions_of
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.processors import Prefix, apply_processors
from chatbot.decoding.sampling import select_ids

# In a loop on a GPU, TensorFlow keeps int32 and bool tensors in host memory. Loop variables are therefore int64 or
# float32. The exception is the position, which the host needs to end the loop.

# Maps the names of a model's state variables to their values.
State = dict[str, Any]
# The state variables that change with each token. Their first axis has size rows * hypotheses. All other variables
# belong to the questions.
HYPOTHESIS_PARTS = ("cells", "history")
# Step functions map (state, ids [hypotheses] int64) to (logits [hypotheses, vocabulary], next state).
Step = Callable[[State, Array], tuple[Array, State]]


def select_rows(states: Sequence[State], rows: Array, width: Array | int, decoded: Array | int) -> State:
    """Select rows from one or two model states.

    Args:
        states: One or two states.
        rows: The indices of the selected rows. The rows of the second state are numbered after those of the first.
        width: The new number of question positions. Arrays [rows, source, ...] are cut or padded on the right.
        decoded: The new number of cached positions. Arrays [rows, heads, positions, size] are cut or padded on the
            left.
    """
    functions = functions_of(rows)

    def resize(name: str, x: Any) -> Any:
        if name in HYPOTHESIS_PARTS:
            return functions.mapped(lambda part: _resize_cache(part, decoded) if len(part.shape) == 4 else part, x)
        cut = x[:, :width]
        return functions.pad(cut, [[0, 0], [0, width - functions.shape(cut)[1]], *[[0, 0]] * (len(x.shape) - 2)])

    resized = ({name: resize(name, x) for name, x in state.items()} for state in states)
    selected: State = functions.mapped(lambda *parts: functions.rows(functions.concatenate(parts, 0), rows), *resized)
    return selected


def _resize_cache(cache: Array, positions: Array | int) -> Array:
    """Cut a cache to its last `positions` positions, or pad it on the left to this number."""
    functions = functions_of(cache)
    size = functions.shape(cache)[2]
    cut = cache[:, :, functions.maximum(size - positions, 0) :]
    return functions.pad(cut, [[0, 0], [0, 0], [functions.maximum(positions - size, 0), 0], [0, 0]])


class Hypotheses(NamedTuple):
    """The hypotheses of each row: all beams in beam search, otherwise a single hypothesis.

    Impossible hypotheses have the log-probability -inf.
    """

    ids: Array  # padded ids, [rows, hypotheses, max_length] int64
    last: Array  # last ids, initially BOS, [rows, hypotheses] int64
    log_probs: Array  # total log-probabilities in nats, [rows, hypotheses] float32
    lengths: Array  # numbers of tokens, including EOS, [rows, hypotheses] int64
    are_finished: Array  # 1 for finished hypotheses, otherwise 0, [rows, hypotheses] int64
    states: Array  # states of the automaton, [rows, hypotheses] int64


def initial_hypotheses(hypotheses: int, automaton: BoundedAutomaton) -> Hypotheses:
    """Return the empty hypotheses of one row, as NumPy arrays with shape [1, hypotheses, ...]."""
    # Only the first hypothesis is possible, because all are equal. Otherwise, beam search would return duplicates.
    is_first = np.arange(hypotheses) == 0
    return Hypotheses(
        ids=np.full((1, hypotheses, automaton.max_length), PAD, np.int64),
        last=np.full((1, hypotheses), BOS, np.int64),
        log_probs=np.where(is_first, np.float32(0), -INFINITY)[None],
        lengths=np.zeros((1, hypotheses), np.int64),
        are_finished=np.zeros((1, hypotheses), np.int64),
        states=np.full((1, hypotheses), automaton.start, np.int64),
    )


def append_ids(
    automaton: BoundedAutomaton, hypotheses: Hypotheses, log_probs: Array, ids: Array, position: Array | int
) -> Hypotheses:
    """Append a token to each unfinished hypothesis. There is one hypothesis per row.

    Args:
        automaton: The automaton that accepts the allowed replies.
        hypotheses: The current hypotheses.
        log_probs: Log-probabilities of the next token, with shape [rows, vocabulary] and dtype float32.
        ids: The token to append to each hypothesis, with shape [rows] and dtype int64.
        position: The number of tokens so far.
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


def extend_beams(
    decoding: DecodingSettings,
    automaton: BoundedAutomaton,
    hypotheses: Hypotheses,
    log_probs: Array,
    position: Array | int,
) -> tuple[Hypotheses, Array]:
    """Extend the beams by one token and keep the best ones, in descending order.

    Finished hypotheses are not extended but compete with the extended ones.

    Args:
        decoding: The decoding settings.
        automaton: The automaton that accepts the allowed replies.
        hypotheses: The current hypotheses.
        log_probs: Log-probabilities of the next token, with shape [rows, beams, vocabulary] and dtype float32.
        position: The number of tokens so far.

    Returns:
        The new hypotheses, and the index of the old hypothesis that each one extends, [rows, beams] int64.
    """
    functions = functions_of(log_probs)
    vocabulary = log_probs.shape[-1]
    are_finished = hypotheses.are_finished > 0
    # A finished hypothesis has a single continuation: padding, with log-probability 0.
    padding = np.where(np.arange(vocabulary) == PAD, np.float32(0), -INFINITY)
    log_probs = hypotheses.log_probs[:, :, None] + functions.where(are_finished[:, :, None], padding, log_probs)
    lengths = hypotheses.lengths + 1 - hypotheses.are_finished
    ranks = log_probs / length_penalty(lengths, decoding)[:, :, None]
    # Indices into the flattened beams and vocabulary, [rows, beams].
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
        # Impossible hypotheses have arbitrary tokens. They get state 0, which always allows a token, to avoid NaN.
        states=functions.where(log_probs == -INFINITY, np.int64(0), states),
    )
    return next_hypotheses, parents


def scores(decoding: DecodingSettings, hypotheses: Hypotheses) -> Array:
    """Return the scores of the hypotheses in nats, with shape [rows, hypotheses] and dtype float32.

    In beam search, the score is log-probability / ((5 + length) / 6) ** length_penalty, otherwise the log-probability.
    """
    if decoding.beams == 1:
        return hypotheses.log_probs
    return hypotheses.log_probs / length_penalty(hypotheses.lengths, decoding)


def length_penalty(lengths: Array, decoding: DecodingSettings) -> Array:
    """Return the number by which to divide the log-probability of each hypothesis, with the shape of `lengths`."""
    return ((5.0 + functions_of(lengths).float32(lengths)) / np.float32(6)) ** np.float32(decoding.length_penalty)


def _is_at(hypotheses: Hypotheses, position: Array | int) -> Array:
    """Return a mask that is True only at the given position, [max_length]."""
    return position == np.arange(hypotheses.ids.shape[2], dtype=np.int32)


class SearchState(NamedTuple):
    """The state of a search before it adds a token at `position`."""

    position: Array  # scalar int32
    hypotheses: Hypotheses
    state: State  # model state of each hypothesis
    generic_state: State  # model state for an empty question, used by --anti-lm; otherwise empty

    def finished(self) -> Array:
        """Return whether all hypotheses of each row are finished, [rows]."""
        return functions_of(self.hypotheses.ids).sum(1 - self.hypotheses.are_finished)[:, 0] == 0

    def select(self, rows: Array) -> "SearchState":
        """Select the rows with the given indices, [rows] int64."""
        functions = functions_of(rows)
        number = self.hypotheses.ids.shape[1]
        indices = functions.reshape(rows[:, None] * number + np.arange(number), (-1,))
        states = functions.rows((self.state, self.generic_state), indices)
        return SearchState(self.position, functions.rows(self.hypotheses, rows), *states)


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for replies that can be paused and resumed at any position.

    Attributes:
        decoding: The decoding settings.
        automaton: The automaton that accepts the allowed replies.
        step: The step function of the model.
        question: The state variables that belong to the questions. If there is only one question, all rows share it.
            The variable "mask", with shape [questions, source], is True or 1 except at padding.
        generic: The same state variables for an empty question, required for --anti-lm.
        uniform: Random numbers in [0, 1) for sampling, with shape [rows, max_length] and dtype float32.
    """

    decoding: DecodingSettings
    automaton: BoundedAutomaton
    step: Step
    question: State
    generic: State | None = None
    uniform: Array | None = None

    def select(self, rows: Array) -> "Search":
        """Select the rows with the given indices, [rows] int64."""
        functions = functions_of(rows)
        mask = self.question["mask"]
        questions = rows // (self.decoding.hypotheses // self.decoding.beams)
        question = functions.cond(
            functions.shape(mask)[0] == 1, lambda: self.question, lambda: functions.rows(self.question, questions)
        )
        uniform = None if self.uniform is None else functions.rows(self.uniform, rows)
        return dataclasses.replace(self, question=question, uniform=uniform)

    def advance(self, progress: SearchState) -> SearchState:
        """Add a token to each hypothesis.

        In the shapes below, "hypotheses" is the total number of hypotheses of all rows.
        """
        position, hypotheses, state, generic_state = progress
        functions = functions_of(hypotheses.ids)
        decoding = self.decoding
        number = self.decoding.beams
        last, automaton_states = (functions.reshape(x, (-1,)) for x in (hypotheses.last, hypotheses.states))
        logits, state = self._step_model(self.question, state, last)
        logits = self.automaton.allowed_logits(functions.float32(logits), automaton_states, position)
        log_probs, generic = functions.log_softmax(logits), None  # [hypotheses, vocabulary]
        if self.generic is not None:
            generic, generic_state = self._step_generic(position, generic_state, last, log_probs)
        ids = functions.reshape(hypotheses.ids, (-1, self.automaton.max_length))
        log_probs = apply_processors(decoding, log_probs, Prefix(functions.column(ids, position), ids), generic)
        if number == 1:
            uniform = None if self.uniform is None else self.uniform[:, position, None]
            chosen = select_ids(decoding, log_probs, uniform)
            hypotheses = append_ids(self.automaton, hypotheses, log_probs, chosen, position)
            return SearchState(position + 1, hypotheses, state, generic_state)
        log_probs = functions.reshape(log_probs, (-1, number, logits.shape[-1]))
        hypotheses, parents = extend_beams(decoding, self.automaton, hypotheses, log_probs, position)
        parents = functions.reshape(functions.row_numbers(parents) * number + parents, (-1,))  # [hypotheses]
        return SearchState(position + 1, hypotheses, *functions.rows((state, generic_state), parents))

    def _step_model(self, question: State, state: State, last: Array) -> tuple[Array, State]:
        """Return the logits and the next state of all hypotheses."""
        logits, after = self.step({**question, "mask": question["mask"] > 0, **state}, last)
        return logits, {name: after[name] for name in state}

    def _step_generic(self, position: Array, state: State, last: Array, log_probs: Array) -> tuple[Array, State]:
        """Return the log-probabilities for an empty question, and the next state.

        After --anti-lm-tokens tokens, the log-probabilities are 0.
        """
        functions = functions_of(log_probs)
        question = self.generic
        assert question is not None

        def compute() -> tuple[Array, State]:
            logits, after = self._step_model(question, state, last)
            return functions.log_softmax(functions.float32(logits)), after

        is_needed = position < self.decoding.anti_lm_tokens
        return functions.cond(is_needed, compute, lambda: (functions.zeros_like(log_probs), state))


def new_search(
    decoding: DecodingSettings,
    automaton: BoundedAutomaton,
    step: Step,
    state: State,
    generic: State | None = None,
    uniform: Array | None = None,
) -> tuple[Search, SearchState]:
    """Create a search for replies to a batch of questions.

    Args:
        decoding: The decoding settings.
        automaton: The automaton that accepts the allowed replies.
        step: The step function of the model.
        state: The model's state for each question before the first token.
        generic: The model's state for an empty question, required for --anti-lm.
        uniform: Random numbers in [0, 1) for sampling, with shape [questions, candidates, max_length].

    Returns:
        The search and its initial state.
    """
    mask = state["mask"]
    functions = functions_of(mask)
    number = decoding.hypotheses
    hypothesis_state = {name: x for name, x in state.items() if name in HYPOTHESIS_PARTS}
    generic_state: State = {}
    if generic is not None:
        generic_state = {name: x for name, x in generic.items() if name in HYPOTHESIS_PARTS}
        generic_state = functions.repeated(generic_state, functions.shape(mask)[0] * number)
        generic = {name: x for name, x in generic.items() if name not in HYPOTHESIS_PARTS}
    if uniform is not None:
        uniform = functions.reshape(uniform, (-1, automaton.max_length))
    question = {name: x for name, x in state.items() if name not in HYPOTHESIS_PARTS}
    first = initial_hypotheses(decoding.beams, automaton)
    rows = functions.shape(mask)[0] * (number // decoding.beams)
    hypotheses = Hypotheses(*functions.repeated(tuple(map(functions.array, first)), rows))
    start = SearchState(functions.array(0), hypotheses, functions.repeated(hypothesis_state, number), generic_state)
    return Search(decoding, automaton, step, question, generic, uniform), start


def search_arrays(
    search: Search, start: SearchState, is_wanted: Callable[[], bool]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Run a search on NumPy arrays until all rows are finished or the callback returns False.

    Finished rows are removed from the batch during the search.

    Returns:
        Padded ids, with shape [rows, hypotheses, max_length], and scores, with shape [rows, hypotheses]. The best
        hypotheses of each row come first. Missing hypotheses of a beam search have the score -inf.
    """
    ids = start.hypotheses.ids.copy()
    best_scores = start.hypotheses.log_probs.copy()
    rows = np.arange(len(ids))
    state = start
    search_of_rows = search.select(rows)
    while len(rows) and state.position < search.automaton.max_length and is_wanted():
        state = search_of_rows.advance(state)
        ids[rows], best_scores[rows] = state.hypotheses.ids, scores(search.decoding, state.hypotheses)
        remaining = np.flatnonzero(~state.finished())
        if len(remaining) < len(rows):
            rows = rows[remaining]
            state = state.select(remaining)
            search_of_rows = search.select(rows)
    return ids, best_scores

"""Search in a graph of TensorFlow. All rows are at the same position; those that are finished are left out."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.hypotheses import Hypotheses, appended, best_first, extended, first_hypotheses, scores
from chatbot.decoding.processors import Prefix, processed
from chatbot.decoding.sampling import picked

# On a CPU, finished rows, and those that nobody wants any more, are left out after this many ids each.
STEPS = 2
# A single row has no others to be left out for, so that it is enough to ask more rarely whether it is wanted.
STEPS_ALONE = 8

# In a loop on a GPU, int32 and bool are in the host's memory. So what changes with each id is int64 or float32, but for
# the position, by which the host decides how long a loop runs.

# What changes with each id: a nest of tensors whose first dimension is the hypothesis. Beam search keeps its best
# hypotheses by a gather over all of it, so what belongs to the question is a part of the step instead.
State = Any
# (state, ids [hypotheses] int64) -> (logits [hypotheses, vocabulary], the state after these ids)
Step = Callable[[State, tf.Tensor], tuple[tf.Tensor, State]]


class Progress(NamedTuple):
    """A search before an id is added at `position`."""

    position: tf.Tensor  # scalar int32
    hypotheses: Hypotheses
    state: State
    generic_state: State  # of the step without the question; () without

    def finished(self) -> tf.Tensor:
        """Return whether all hypotheses of a row are finished, [rows] bool."""
        return tf.reduce_all(tf.cast(self.hypotheses.are_finished, tf.bool), axis=1)

    def of_rows(self, rows: tf.Tensor) -> "Progress":
        """Return the search of some rows, [rows] int64."""
        number = self.hypotheses.ids.shape[1]
        of_hypotheses = tf.reshape(rows[:, None] * number + tf.range(number, dtype=tf.int64), [-1])
        hypotheses = tf.nest.map_structure(lambda x: tf.gather(x, rows), self.hypotheses)
        states = self.state, self.generic_state
        states = tf.nest.map_structure(lambda x: tf.gather(x, of_hypotheses), states)
        return Progress(self.position, hypotheses, *states)


@dataclasses.dataclass(frozen=True)
class GraphSearch:
    """The search of the decoding settings for some rows, which can stop at any position and go on from there.

    step: the model's. generic_step: that of a model without the question, for --anti-lm. uniform: for sampling,
    [rows, max_length] float32 in [0, 1): a row's ids depend on its own numbers alone. coverage: (state) -> the coverage
    penalty of each hypothesis of beam search, [hypotheses] float32; None without.
    """

    decoding: DecodingSettings
    automaton: BoundedAutomaton
    step: Step
    generic_step: Step | None = None
    uniform: tf.Tensor | None = None
    coverage: Callable[[State], tf.Tensor] | None = None

    def start(self, state: State, generic_state: State, rows: tf.Tensor) -> Progress:
        """Return the search before the first id. rows: scalar int32, their number.

        state, generic_state: before the first id, of each hypothesis.
        """
        first = first_hypotheses(self.decoding.beams, self.decoding.diverse_groups, self.automaton)
        hypotheses = Hypotheses(*(tf.tile(x, [rows, *[1] * (x.ndim - 1)]) for x in first))
        return Progress(tf.constant(0), hypotheses, state, generic_state)

    def run(self, progress: Progress, until: tf.Tensor | int, check_interval: int | None = 1) -> Progress:
        """Add ids up to position `until`, or until all hypotheses are finished.

        check_interval: the number of ids between two checks whether all are finished. The host of a GPU waits at each
        check until all ids before it are computed. None: no checks.
        """

        def advance_to(end: tf.Tensor | int, progress: Progress) -> tuple[Progress]:
            result: tuple[Progress] = tf.while_loop(
                lambda p: p.position < end, lambda p: (self._advanced(p),), (progress,)
            )
            return result

        def advance(progress: Progress) -> tuple[Progress]:
            if check_interval == 1:
                return (self._advanced(progress),)
            return advance_to(tf.minimum(progress.position + check_interval, until), progress)

        def is_unfinished(progress: Progress) -> tf.Tensor:
            return (progress.position < until) & ~tf.reduce_all(progress.finished())

        if check_interval is None:
            return advance_to(until, progress)[0]
        (result,) = tf.while_loop(is_unfinished, advance, (progress,))
        return result

    def scores(self, progress: Progress) -> tf.Tensor:
        """Return the scores of the hypotheses, [rows, hypotheses] float32; see `hypotheses.scores`."""
        return scores(self.decoding, progress.hypotheses)

    def _advanced(self, progress: Progress) -> Progress:
        """Add an id to each hypothesis. "hypotheses" in shapes: of all rows, one row after another."""
        position, hypotheses, state, generic_state = progress
        decoding, number = self.decoding, self.decoding.beams
        last, automaton_states = (tf.reshape(x, [-1]) for x in (hypotheses.last, hypotheses.states))  # [hypotheses]
        logits, state = self.step(state, last)
        logits = self.automaton.allowed_logits(tf.cast(logits, tf.float32), automaton_states, position)
        log_probs, generic = tf.nn.log_softmax(logits), None  # [hypotheses, vocabulary]
        if self.generic_step is not None:
            generic, generic_state = self._generic(position, generic_state, last, log_probs)
        ids = tf.reshape(hypotheses.ids, [-1, self.automaton.max_length])
        positions = tf.fill([tf.shape(ids)[0], 1], tf.cast(position, tf.int64))
        log_probs = processed(decoding, log_probs, Prefix(positions, ids), generic)
        if number == 1:
            uniform = None if self.uniform is None else self.uniform[:, position, None]
            chosen = picked(decoding, log_probs, uniform)
            hypotheses = appended(self.automaton, hypotheses, log_probs, chosen, position)
            return Progress(position + 1, hypotheses, state, generic_state)
        rows = tf.shape(hypotheses.ids)[0]
        coverage = None if self.coverage is None else tf.reshape(self.coverage(state), [rows, number])
        log_probs = tf.reshape(log_probs, [rows, number, -1])
        log_probs.set_shape([None, None, logits.shape[-1]])
        hypotheses, parents = extended(decoding, self.automaton, hypotheses, log_probs, coverage, position)
        parents = tf.reshape(tf.cast(tf.range(rows) * number, tf.int64)[:, None] + parents, [-1])  # [hypotheses]
        states = tf.nest.map_structure(lambda x: tf.gather(x, parents), (state, generic_state))
        return Progress(position + 1, hypotheses, *states)

    def _generic(
        self, position: tf.Tensor, state: State, last: tf.Tensor, log_probs: tf.Tensor
    ) -> tuple[tf.Tensor, State]:
        """Return the log-probabilities without the question, 0 from --anti-lm-tokens on, and the next state."""
        step = self.generic_step
        assert step is not None

        def computed() -> tuple[tf.Tensor, State]:
            logits, after = step(state, last)
            return tf.nn.log_softmax(tf.cast(logits, tf.float32)), after

        return tf.cond(position < self.decoding.anti_lm_tokens, computed, lambda: (tf.zeros_like(log_probs), state))


def repeated(state: State, times: tf.Tensor | int) -> State:
    """Return a state with each row as many times, one after another."""

    def of_tensor(x: tf.Tensor) -> tf.Tensor:
        # tf.repeat computes sizes on a GPU, for which the host would wait.
        return tf.gather(x, tf.cast(tf.range(tf.shape(x)[0] * times) // times, tf.int64))

    return tf.nest.map_structure(of_tensor, state)


def search_all(
    search_of: Callable[[tf.Tensor], GraphSearch],
    start: Progress,
    max_length: int,
    wanted: Callable[[tf.Tensor], tf.Tensor] | None = None,
    check_interval: int = 1,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run a search to its end, on fewer and fewer rows.

    Returns the ids [rows, hypotheses, max_length] int64, padded, and scores [rows, hypotheses] of all rows, the best
    hypotheses first. If fewer are possible than beam search wants, the others have score -inf.

    Candidates of one question have very different lengths: without the finished ones, the search takes half the time.
    So have the replies to several questions.

    search_of: (row numbers [rows] int64) -> the search of these rows. Its step must take any number of rows. wanted:
    (row numbers [rows] int64) -> [rows] bool, whether these rows are still wanted; it is asked again and again. The ids
    and scores of a row that is not are those up to then. check_interval: as for `run`. If it is above 1, rows are left
    out at the same time, which tells the host their number, so that it waits only once.
    """

    def is_unfinished(rows: tf.Tensor, current: Progress, *_: tf.Tensor) -> tf.Tensor:
        # Not the logical and of two conditions, which a GPU computes.
        return tf.minimum(max_length - current.position, tf.shape(rows)[0]) > 0

    def advance(
        rows: tf.Tensor, current: Progress, ids: tf.Tensor, scores_of_ids: tf.Tensor
    ) -> tuple[tf.Tensor, Progress, tf.Tensor, tf.Tensor]:
        steps = check_interval
        if check_interval == 1:
            steps = tf.where(tf.shape(rows)[0] > 1, STEPS, max_length if wanted is None else STEPS_ALONE)
        until, search = tf.minimum(current.position + steps, max_length), search_of(rows)
        current = search.run(current, until, 1 if check_interval == 1 else None)
        ids = tf.tensor_scatter_nd_update(ids, rows[:, None], current.hypotheses.ids)
        scores_of_ids = tf.tensor_scatter_nd_update(scores_of_ids, rows[:, None], search.scores(current))
        goes_on = ~current.finished()
        if wanted is not None:
            with tf.control_dependencies([current.position]):  # asked after these steps, not before
                goes_on &= wanted(rows)
        remaining = tf.where(goes_on)[:, 0]
        return tf.gather(rows, remaining), current.of_rows(remaining), ids, scores_of_ids

    first = start.hypotheses
    rows = tf.cast(tf.range(tf.shape(first.ids)[0]), tf.int64)
    _, _, ids, found = tf.while_loop(is_unfinished, advance, (rows, start, first.ids, first.log_probs))
    decoding = search_of(rows).decoding
    return best_first(decoding, ids, found) if decoding.diverse_groups > 1 else (ids, found)

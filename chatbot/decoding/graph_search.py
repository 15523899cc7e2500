"""The loops of a search in a graph of TensorFlow."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from chatbot.decoding.search import Search, SearchState, scores

# On a CPU, finished rows are left out after this many ids each.
STEPS = 2
# After how many ids a search asks whether it is still wanted.
ASKING_INTERVAL = 8


def run(search: Search, progress: SearchState, until: tf.Tensor | int, check_interval: int | None = 1) -> SearchState:
    """Add ids up to position `until`, or until all hypotheses are finished.

    check_interval: the number of ids between two checks whether all are finished. The host of a GPU waits at each check
    until all ids before it are computed. None: no checks.
    """

    def advance_to(end: tf.Tensor | int, progress: SearchState) -> tuple[SearchState]:
        return _loop(lambda p: p.position < end, lambda p: (search.advanced(p),), (progress,))

    def advance(progress: SearchState) -> tuple[SearchState]:
        if check_interval == 1:
            return (search.advanced(progress),)
        return advance_to(tf.minimum(progress.position + check_interval, until), progress)

    def is_unfinished(progress: SearchState) -> tf.Tensor:
        return (progress.position < until) & ~tf.reduce_all(progress.finished())

    if check_interval is None:
        return advance_to(until, progress)[0]
    return _loop(is_unfinished, advance, (progress,))[0]


def search_all(
    search: Search, start: SearchState, check_interval: int = 1, is_wanted: Callable[[], tf.Tensor] | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run a search to its end, on fewer and fewer rows.

    Returns the ids [rows, hypotheses, max_length] int64, padded, and scores [rows, hypotheses] of all rows, the best
    hypotheses first. If fewer are possible than beam search wants, the others have score -inf.

    Lengths differ: without the finished rows, the search takes half the time.

    check_interval: as for `run`; above 1, rows are left out at the same time. is_wanted: asked every ASKING_INTERVAL
    ids, scalar bool; the search ends when it is False. None: always wanted.
    """
    max_length = search.automaton.max_length

    def is_unfinished(rows: tf.Tensor, current: SearchState, *_: tf.Tensor) -> tf.Tensor:
        # Not the logical and of two conditions, which a GPU computes.
        return tf.minimum(max_length - current.position, tf.shape(rows)[0]) > 0

    def advance(
        rows: tf.Tensor, current: SearchState, ids: tf.Tensor, scores_of_ids: tf.Tensor
    ) -> tuple[tf.Tensor, SearchState, tf.Tensor, tf.Tensor]:
        steps = check_interval
        to_asking = max_length if is_wanted is None else ASKING_INTERVAL - current.position % ASKING_INTERVAL
        if check_interval == 1:
            steps = tf.where(tf.shape(rows)[0] > 1, STEPS, to_asking)
        until = tf.minimum(current.position + steps, max_length)
        current = run(search.of_rows(rows), current, until, 1 if check_interval == 1 else None)
        ids = tf.tensor_scatter_nd_update(ids, rows[:, None], current.hypotheses.ids)
        new_scores = scores(search.decoding, current.hypotheses)
        scores_of_ids = tf.tensor_scatter_nd_update(scores_of_ids, rows[:, None], new_scores)
        goes_on = ~current.finished()
        if is_wanted is not None:
            with tf.control_dependencies([current.position]):  # asked after these ids, not before
                goes_on &= tf.cond(current.position % ASKING_INTERVAL == 0, is_wanted, lambda: tf.constant(True))
        remaining = tf.where(goes_on)[:, 0]
        return tf.gather(rows, remaining), current.of_rows(remaining), ids, scores_of_ids

    first = start.hypotheses
    rows = tf.cast(tf.range(tf.shape(first.ids)[0]), tf.int64)
    _, _, ids, best_scores = _loop(is_unfinished, advance, (rows, start, first.ids, first.log_probs))
    return ids, best_scores


def _loop(condition: Callable[..., tf.Tensor], body: Callable[..., Any], variables: tuple[Any, ...]) -> Any:
    """Return the variables after a loop in which the caches of a Transformer, the only ones with four axes, grow."""

    def shape(x: tf.Tensor) -> tf.TensorShape:
        return tf.TensorShape([*x.shape[:2], None, x.shape[3]]) if len(x.shape) == 4 else x.shape

    return tf.while_loop(condition, body, variables, tf.nest.map_structure(shape, variables))

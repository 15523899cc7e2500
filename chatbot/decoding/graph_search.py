"""The loops that run a search in a TensorFlow graph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from chatbot.decoding.search import Search, SearchState, scores

# The number of tokens after which finished rows are removed on a CPU.
STEPS = 2
# The number of tokens between two calls of `is_wanted`.
CHECK_WANTED_INTERVAL = 8


def run(search: Search, progress: SearchState, until: tf.Tensor | int, check_interval: int | None = 1) -> SearchState:
    """Run a search until position `until` or until all hypotheses are finished.

    Args:
        search: The search.
        progress: The current state of the search.
        until: The position at which to stop.
        check_interval: The number of tokens after which to check whether all hypotheses are finished. Each check makes
            the host wait for the GPU. None disables these checks.
    """

    def advance_to(end: tf.Tensor | int, progress: SearchState) -> tuple[SearchState]:
        return _loop(lambda p: p.position < end, lambda p: (search.advance(p),), (progress,))

    def advance(progress: SearchState) -> tuple[SearchState]:
        if check_interval == 1:
            return (search.advance(progress),)
        return advance_to(tf.minimum(progress.position + check_interval, until), progress)

    def is_unfinished(progress: SearchState) -> tf.Tensor:
        return (progress.position < until) & ~tf.reduce_all(progress.finished())

    if check_interval is None:
        return advance_to(until, progress)[0]
    return _loop(is_unfinished, advance, (progress,))[0]


def search_all(
    search: Search, start: SearchState, check_interval: int = 1, is_wanted: Callable[[], tf.Tensor] | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run a search to its end. Finished rows are removed from the batch during the search, which halves the duration.

    Args:
        search: The search.
        start: The initial state of the search.
        check_interval: The number of tokens after which to check for finished hypotheses, as in `run`. If it exceeds 1,
            finished rows are removed at the same time.
        is_wanted: A callback that is called every CHECK_WANTED_INTERVAL tokens and returns a scalar boolean. If it is
            False, the search ends early. None never ends the search early.

    Returns:
        Padded ids, with shape [rows, hypotheses, max_length] and dtype int64, and scores, with shape
        [rows, hypotheses]. The best hypotheses of each row come first. Missing hypotheses of a beam search have the
        score -inf.
    """
    max_length = search.automaton.max_length

    def is_unfinished(rows: tf.Tensor, current: SearchState, *_: tf.Tensor) -> tf.Tensor:
        # tf.minimum runs on the host, but a logical "and" of two conditions would run on the GPU.
        return tf.minimum(max_length - current.position, tf.shape(rows)[0]) > 0

    def advance(
        rows: tf.Tensor, current: SearchState, ids: tf.Tensor, scores_of_ids: tf.Tensor
    ) -> tuple[tf.Tensor, SearchState, tf.Tensor, tf.Tensor]:
        steps = check_interval
        to_check = max_length if is_wanted is None else CHECK_WANTED_INTERVAL - current.position % CHECK_WANTED_INTERVAL
        if check_interval == 1:
            steps = tf.where(tf.shape(rows)[0] > 1, STEPS, to_check)
        until = tf.minimum(current.position + steps, max_length)
        current = run(search.select(rows), current, until, 1 if check_interval == 1 else None)
        ids = tf.tensor_scatter_nd_update(ids, rows[:, None], current.hypotheses.ids)
        new_scores = scores(search.decoding, current.hypotheses)
        scores_of_ids = tf.tensor_scatter_nd_update(scores_of_ids, rows[:, None], new_scores)
        is_unfinished_row = ~current.finished()
        if is_wanted is not None:
            with tf.control_dependencies([current.position]):  # Call is_wanted only after the steps above.
                is_unfinished_row &= tf.cond(
                    current.position % CHECK_WANTED_INTERVAL == 0, is_wanted, lambda: tf.constant(True)
                )
        remaining = tf.where(is_unfinished_row)[:, 0]
        return tf.gather(rows, remaining), current.select(remaining), ids, scores_of_ids

    first = start.hypotheses
    rows = tf.cast(tf.range(tf.shape(first.ids)[0]), tf.int64)
    _, _, ids, best_scores = _loop(is_unfinished, advance, (rows, start, first.ids, first.log_probs))
    return ids, best_scores


def _loop(condition: Callable[..., tf.Tensor], body: Callable[..., Any], variables: tuple[Any, ...]) -> Any:
    """Run a while loop whose 4-D variables (the caches of a Transformer) can grow along the third axis."""

    def shape(x: tf.Tensor) -> tf.TensorShape:
        return tf.TensorShape([*x.shape[:2], None, x.shape[3]]) if len(x.shape) == 4 else x.shape

    return tf.while_loop(condition, body, variables, tf.nest.map_structure(shape, variables))

"""A search whose finished rows are no longer computed."""

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from chatbot.decoding.beam import Beams
from chatbot.decoding.search import Hypotheses

Found = TypeVar("Found", Hypotheses, Beams)

# On a CPU, finished rows, and those that nobody wants any more, are left out after this many ids each.
STEPS = 2
# A single row has no others to be left out for, so that it is enough to ask more rarely whether it is wanted.
STEPS_ALONE = 8


def run_unfinished(
    run_of: Callable[[tf.Tensor], Callable[[Found, tf.Tensor, int | None], Found]],
    start: Found,
    max_length: int,
    wanted: Callable[[tf.Tensor], tf.Tensor] | None = None,
    check_interval: int = 1,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run a search to its end, as its `run` does, on fewer and fewer rows. Returns the ids and scores of all rows.

    Candidates of one question have very different lengths: without the finished ones, the search takes half the time.
    So have the replies to several questions.

    run_of: (row numbers [rows] int64) -> `run` of the search of these rows. Its step must take any number of rows.
    start: the hypotheses before the first id. wanted: (row numbers [rows] int64) -> [rows] bool, whether these rows are
    still wanted; it is asked again and again. The ids and scores of a row that is not are those up to then.
    check_interval: as for `run`. If it is above 1, rows are left out at the same time, which tells the host their
    number, so that it waits only once.
    """

    def unfinished(rows: tf.Tensor, current: Found, *_: tf.Tensor) -> tf.Tensor:
        # Not the logical and of two conditions, which a GPU computes.
        return tf.minimum(max_length - current.position, tf.shape(rows)[0]) > 0

    def advance(
        rows: tf.Tensor, current: Found, ids: tf.Tensor, scores: tf.Tensor
    ) -> tuple[tf.Tensor, Found, tf.Tensor, tf.Tensor]:
        steps = check_interval
        if check_interval == 1:
            steps = tf.where(tf.shape(rows)[0] > 1, STEPS, max_length if wanted is None else STEPS_ALONE)
        until = tf.minimum(current.position + steps, max_length)
        current = run_of(rows)(current, until, 1 if check_interval == 1 else None)
        ids = tf.tensor_scatter_nd_update(ids, rows[:, None], current.ids)
        scores = tf.tensor_scatter_nd_update(scores, rows[:, None], current.scores)
        goes_on = ~current.finished
        if wanted is not None:
            with tf.control_dependencies([current.position]):  # asked after these steps, not before
                goes_on &= wanted(rows)
        left = tf.where(goes_on)[:, 0]
        return tf.gather(rows, left), current.of_rows(left), ids, scores

    rows = tf.cast(tf.range(tf.shape(start.ids)[0]), tf.int64)
    _, _, ids, scores = tf.while_loop(unfinished, advance, (rows, start, start.ids, start.scores))
    return ids, scores

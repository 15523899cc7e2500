"""A search whose finished rows are no longer computed."""

from collections.abc import Callable

import tensorflow as tf

from chatbot.decoding.search import Hypotheses, Search

# Finished rows are left out after this many ids each.
STEPS = 2


def run_unfinished(search_of: Callable[[tf.Tensor], Search], start: Hypotheses, max_length: int) -> Hypotheses:
    """Run a search to its end, as `Search.run` does, on fewer and fewer rows.

    Candidates of one question have very different lengths: without the finished ones, the search takes half the time.

    search_of: (row numbers [rows] int32) -> the search of these rows. Its step must take any number of rows.
    start: the hypotheses before the first id.
    """

    def unfinished(rows: tf.Tensor, current: Hypotheses, *_: tf.Tensor) -> tf.Tensor:
        return (current.position < max_length) & (tf.shape(rows)[0] > 0)

    def advance(
        rows: tf.Tensor, current: Hypotheses, ids: tf.Tensor, scores: tf.Tensor
    ) -> tuple[tf.Tensor, Hypotheses, tf.Tensor, tf.Tensor]:
        current = search_of(rows).run(current, tf.minimum(current.position + STEPS, max_length))
        ids = tf.tensor_scatter_nd_update(ids, rows[:, None], current.ids)
        scores = tf.tensor_scatter_nd_update(scores, rows[:, None], current.scores)
        left = tf.where(~current.finished)[:, 0]
        return tf.gather(rows, left), current.of_rows(left), ids, scores

    rows = tf.range(tf.shape(start.ids)[0])
    _, current, ids, scores = tf.while_loop(unfinished, advance, (rows, start, start.ids, start.scores))
    return start._replace(position=current.position, ids=ids, scores=scores)

"""A gradient function without a model, for tests of what is done with the gradients of towers."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.corpus.vocabulary import PAD
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.gradients import Sums
from chatbot.training.replica import Group
from chatbot.training.selftest import VOCABULARY
from chatbot.training.share import Share


def light_gradient_function(model: Seq2Seq, groups: Sequence[Group], *_: object) -> Any:
    """Like `gradient_function`, and traced at once: each weight has a gradient of its own, a sum over the pairs."""

    @tf.function(autograph=False)
    def tower_gradients(weights: list[tf.Tensor], share: Share, _: tf.Tensor | None = None) -> Sums:
        loss = tf.reduce_sum(share.weights * tf.cast(share.targets, tf.float32)) / VOCABULARY
        *of_groups, embedding = [loss * tf.sin(weight + 1) for weight in weights]
        lookups = tf.size(share.source.ids) + tf.size(share.target_in.ids)
        counts = tf.math.unsorted_segment_sum(tf.ones([lookups]), share.lookup_index, tf.size(share.lookup_ids))
        rows = tf.where(share.lookup_ids == PAD, 0.0, counts)[:, None] * tf.ones([1, embedding.shape[1]])
        trained = [gradient for gradient, group in zip(of_groups, groups[:-1], strict=True) if group.trained]
        return Sums(loss, share.counts[0], [embedding] if model.tied else [], trained, rows)

    return tower_gradients

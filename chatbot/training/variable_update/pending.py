"""The gradients of a staged run's last step, which are not applied yet, and their part of a checkpoint."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums
from chatbot.training.variable_update.replica import Values

LARGEST = np.finfo(np.float32).max


class Pending(NamedTuple):
    """The gradients of a staged run's last step."""

    sums: list[Sums]  # of each tower
    used: tf.Tensor  # [used] int64, the `ids_used` of that step


def pending_state(model: Seq2Seq, gradients: Sequence[tf.Tensor], tokens: tf.Tensor) -> Values:
    """Return the part of a checkpoint: the gradients, and the target tokens; zeros for none.

    gradients: summed over all towers, in the order of model.trainable_variables; empty for none. tokens: NaN if the
    loss is not finite. A checkpoint has finite numbers only: gradients whose norm is not finite stand for those that
    are not, and a negative number for NaN. A resumed run then skips the same update.
    """
    values = [gradient.numpy() for gradient in gradients] or [np.zeros(v.shape, "f") for v in model.trainable_variables]
    return [*(np.nan_to_num(value, nan=LARGEST) for value in values), np.nan_to_num(tokens.numpy(), nan=-1.0)]


def pending_of(model: Seq2Seq, state: Values, towers: Sequence[Tower], first_machine: bool) -> Pending | None:
    """Return the inverse of `pending_state`, for these towers: all of it on the first one, zeros elsewhere.

    first_machine: whether the first tower is that of all machines.
    """
    *gradients, tokens = state
    if tokens == 0:
        return None
    tokens = tokens if tokens > 0 else np.float32("nan")
    sums: list[Sums] = []
    embedding = gradients.pop(embedding_index(model))
    for i, tower in enumerate(towers):
        share = 1.0 if first_machine and i == 0 else 0.0

        def part(value: Any, share: float = share) -> tf.Tensor:
            return tf.constant(share * value)

        with tf.device(tower.device):
            projection = [tf.zeros(embedding.shape)] if model.projects_by_embedding else []
            others = [part(gradient) for gradient in gradients]
            sums.append(Sums(tf.constant(0.0), part(tokens), projection, others, part(embedding)))
    return Pending(sums, tf.range(len(embedding), dtype=tf.int64))

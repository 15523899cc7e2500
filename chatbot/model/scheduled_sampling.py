"""Scheduled sampling (Bengio et al., 2015) in two passes over the whole reply (Mihaylova and Martins, 2019).

The first pass, without gradients, predicts every token from the true ones before it. In the second pass, a part of the
decoder's inputs are these predictions (Duckworth et al., 2019, do so repeatedly). No loop over time is needed, so the
recurrent layers run as without it.
"""

import tensorflow as tf

from chatbot.model.dropout import SCHEDULED_SAMPLING, uniform
from chatbot.model.gpu import size_on_device
from chatbot.model.sequences import Sequences


def mixed_inputs(target_in: Sequences, predictions: tf.Tensor, key: tf.Tensor, share: float) -> tf.Tensor:
    """Return the ids of target_in, in its layout, a share of them replaced by the predictions.

    predictions [tokens] int64: of the token after each of target_in, packed. key: [1] uint64 draws the replaced
    positions. The first token of a row is never replaced.
    """
    packing = target_in.packing
    # The token before each; < 0 at first ones and fillers.
    before = packing.previous - size_on_device(packing.to_padded[:, 0])
    drawn = uniform(tf.shape(before), key, SCHEDULED_SAMPLING) < share
    replaced, new_ids = drawn & (before >= 0), tf.gather(predictions, tf.maximum(before, 0))  # [tokens]
    if target_in.ids.shape.rank == 2:
        replaced, new_ids = (tf.gather(x, packing.to_padded) for x in (replaced, new_ids))  # [rows, time]
    return tf.where(replaced, new_ids, target_in.ids)

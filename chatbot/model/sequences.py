"""A batch of token sequences with all indices that the model needs, computed on the host."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.vocabulary import PAD
from chatbot.model.packing import Packing, packed_array, packing_of


class Sequences(NamedTuple):
    """Right-padded sequences: arrays on the host, tensors in a graph. Each row has at least one token."""

    ids: Any  # [tokens] int64, packed, PAD at fillers; or [rows, time], padded
    mask: Any  # [rows, time] bool, True at real tokens
    packing: Packing


def sequences_of(ids: npt.NDArray[Any], packed: bool) -> Sequences:
    """Compute the indices of a batch.

    ids: [rows, time], padded with PAD on the right. packed: the layout of the ids in the result.
    """
    mask = ids != PAD
    packing = packing_of(mask.sum(axis=1), ids.shape[1])
    return Sequences((packed_array(ids, packing, PAD) if packed else ids).astype(np.int64), mask, packing)


def padded_ids(sequences: Sequences) -> tf.Tensor:
    """Return the ids in rows, [rows, time]; at padding PAD."""
    is_packed = len(sequences.ids.shape) == 1
    return tf.gather(sequences.ids, sequences.packing.to_padded) if is_packed else sequences.ids


def specs_of(arrays: Any) -> Any:
    """Return the tf.TensorSpec of each array or tensor in a structure, for any sizes."""
    return tf.nest.map_structure(lambda x: tf.TensorSpec([None] * len(x.shape), x.dtype), arrays)

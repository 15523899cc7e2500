"""A batch of token sequences, and the indices between its two layouts: padded, and packed without padding.

The packed layout is that of PyTorch's PackedSequence. Rows are sorted by length, the longest first. Tokens follow one
another step by step, so that the rows with a token at one step are the first rows of the previous step.

Fillers, of any value, follow the tokens up to a multiple of MULTIPLE: oneDNN compiles a kernel for every shape of a
product. The indices are computed in NumPy before the step, or the host of a GPU would wait for each size of a tensor.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.vocabulary import PAD
from chatbot.model.operations import size_on_device, with_gradient

# docs/experiments.md compares several values.
MULTIPLE = 16


class Packing(NamedTuple):
    """The indices between padded and packed tensors: arrays on the host, tensors in a graph.

    int32 are those that the host needs in the step, for sizes of tensors and for cuDNN; TensorFlow keeps int32 in the
    host's memory. int64 are those that only the device needs, as indices.

    In the shapes below, "tokens" includes the fillers. There is at least one filler.
    """

    lengths: Any  # [rows] int32, the real tokens of each row
    fillers: Any  # scalar int32, the number of fillers
    # Begin and size for tf.slice at each step, [longest, 2, 2] int32, of matrices with these rows:
    tokens_at: Any  # tokens: those of the step
    ended_at: Any  # rows, the longest first: those whose last token is at the step
    before: Any  # first states [rows] followed by tokens: those before the tokens of the step
    order: Any  # [rows] int64, row numbers, the longest row first
    inverse_order: Any  # [rows] int64, the place of each row in that order
    to_packed: Any  # [tokens] int64, the padded position, row by row, of each token; 0 for fillers
    to_padded: Any  # [rows, time] int64, the token of each padded position; a filler at padding
    mirrored: Any  # [tokens] int64, the token at the same distance from the other end of the row; itself for fillers
    previous: Any  # [tokens] int64, the row's token before each, in first states [rows] followed by tokens
    last: Any  # [rows] int64, the last token of each row


def packing_of(lengths: npt.NDArray[Any], time: int) -> Packing:
    """Compute the packing of a batch. lengths: [rows], at least 1. time: the padded length."""
    rows = len(lengths)
    longest = int(lengths.max())
    order = np.argsort(-lengths, kind="stable")
    inverse_order = np.empty_like(order)
    inverse_order[order] = np.arange(rows)
    sorted_lengths = lengths[order]
    has_token = np.arange(longest)[:, None] < sorted_lengths  # [longest, rows]
    step, row = np.nonzero(has_token)  # [tokens without fillers] each
    counts = has_token.sum(axis=1)
    starts = np.cumsum(counts) - counts
    tokens = len(step)
    fillers = MULTIPLE - tokens % MULTIPLE
    zeros = np.zeros(fillers, np.int64)
    # The token of row r is starts[step] + r. The one before it is starts[step - 1] + r, or first state r.
    previous_starts = np.concatenate([[-rows], starts])[step]
    padded_starts = np.concatenate([starts, np.full(time - longest, tokens)])  # [time]
    is_token = np.arange(time) < lengths[:, None]  # [rows, time]
    later_counts = np.append(counts[1:], 0)
    mirrored = starts[sorted_lengths[row] - 1 - step] + row
    return Packing(
        lengths=lengths.astype(np.int32),
        fillers=np.int32(fillers),
        tokens_at=_slices(starts, counts),
        ended_at=_slices(later_counts, counts - later_counts),
        before=_slices(np.concatenate([[0], rows + starts[:-1]]), counts),
        order=order,
        inverse_order=inverse_order,
        to_packed=np.concatenate([order[row] * time + step, zeros]),
        to_padded=np.where(is_token, padded_starts + inverse_order[:, None], tokens),
        mirrored=np.concatenate([mirrored, tokens + np.arange(fillers)]),
        previous=np.concatenate([rows + previous_starts + row, zeros]),
        last=starts[lengths - 1] + inverse_order,
    )


def _slices(first: npt.NDArray[Any], number: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return tf.slice's begin and size, [steps, 2, 2], of these rows of matrices. first, number: [steps]."""
    slices = np.zeros((len(first), 2, 2), np.int32)
    slices[:, 0, 0] = first
    slices[:, 1, 0] = number
    slices[:, 1, 1] = -1
    return slices


def packed_array(padded: npt.NDArray[Any], packing: Packing, filler: Any) -> npt.NDArray[Any]:
    """padded [rows, time] -> [tokens], on the host. filler: the value of the fillers."""
    packed = padded.reshape(-1)[packing.to_packed]
    packed[len(packed) - packing.fillers :] = filler
    return packed


def pack(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
    """[rows, time, features] -> [tokens, features]. The gradient with respect to fillers must be 0."""
    return with_gradient(lambda x: _packed(x, packing), lambda gradient: _padded(gradient, packing), padded)


def unpack(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    """[tokens, features] -> [rows, time, features], at padding the first filler.

    The gradient with respect to fillers is undefined; `lstm_sequence` does not use it.
    """
    return with_gradient(lambda x: _padded(x, packing), lambda gradient: _packed(gradient, packing), packed)


def mirror(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    """[tokens, features] -> the same shape, with the tokens of each row in the opposite order."""

    def mirrored(x: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, packing.mirrored)

    return with_gradient(mirrored, mirrored, packed)


def rows_of_tokens(packing: Packing) -> tf.Tensor:
    """Return the row of each packed token, [tokens] int64; 0 for fillers."""
    return packing.to_packed // size_on_device(packing.to_padded[0])


def _packed(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
    features = tf.shape(padded)[2] if padded.shape[2] is None else padded.shape[2]
    return tf.gather(tf.reshape(padded, [-1, features]), packing.to_packed)


def _padded(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    # A gather, because the scatter of TensorFlow's own gradient runs on one thread.
    return tf.gather(packed, packing.to_padded)


class Sequences(NamedTuple):
    """Right-padded sequences: arrays on the host, tensors in a graph. Each row has at least one token."""

    ids: Any  # [tokens] int64, packed, PAD at fillers; or [rows, time], padded
    mask: Any  # [rows, time] bool, True at real tokens
    packing: Packing

    @property
    def is_packed(self) -> bool:
        """Whether layers take packed vectors [tokens, features], not [rows, time, features]."""
        return len(self.ids.shape) == 1


def sequences_of(ids: npt.NDArray[Any], packed: bool) -> Sequences:
    """Compute the indices of a batch.

    ids: [rows, time], padded with PAD on the right. packed: the layout of the ids in the result.
    """
    mask = ids != PAD
    packing = packing_of(mask.sum(axis=1), ids.shape[1])
    return Sequences((packed_array(ids, packing, PAD) if packed else ids).astype(np.int64), mask, packing)


def padded_ids(sequences: Sequences) -> tf.Tensor:
    """Return the ids in rows, [rows, time]; at padding PAD."""
    return tf.gather(sequences.ids, sequences.packing.to_padded) if sequences.is_packed else sequences.ids


def specs_of(arrays: Any) -> Any:
    """Return the tf.TensorSpec of each array or tensor in a structure, for any sizes."""
    return tf.nest.map_structure(lambda x: tf.TensorSpec([None] * len(x.shape), x.dtype), arrays)

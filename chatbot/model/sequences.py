"""Batches of token sequences in two layouts, padded and packed, and the indices that convert between them.

The packed layout, as in PyTorch's PackedSequence, contains no padding. Rows are sorted by length, longest first. The
first tokens of all rows come first, then the second tokens, and so on.

Arbitrary values, called fillers, extend the packed tokens to a multiple of MULTIPLE, because oneDNN compiles a kernel
for each matrix shape. NumPy computes the indices in advance, so a GPU never waits for their sizes.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.vocabulary import PAD
from chatbot.model.operations import size_on_device, with_gradient

# The number of packed tokens is a multiple of this number. docs/experiments.md compares several values.
MULTIPLE = 16


class Packing(NamedTuple):
    """The indices that convert between padded and packed tensors. They are arrays on the host and tensors in a graph.

    TensorFlow keeps int32 tensors in host memory. The fields that the host needs are therefore int32, and those that
    only the device needs are int64. In the shapes below, "tokens" includes the fillers, of which there is at least one.
    """

    lengths: Any  # [rows] int32, the number of real tokens
    fillers: Any  # scalar int32, the number of fillers
    # The `begin` and `size` arguments of tf.slice at each step, [longest, 2, 2] int32:
    tokens_at: Any  # selects the tokens of the step from the packed tokens
    ended_at: Any  # selects the rows that end at the step from the sorted rows
    before: Any  # selects the predecessors of the step's tokens from the initial states, followed by the packed tokens
    order: Any  # [rows] int64, row numbers sorted by length, longest first
    inverse_order: Any  # [rows] int64, the position of each row in `order`
    to_packed: Any  # [tokens] int64, the index of each token in the flattened padded ids; 0 for fillers
    to_padded: Any  # [rows, time] int64, the token at each padded position; the first filler at padding
    # [tokens] int64, the index of the token that has this position in the reversed row; for padded ids, [rows, time]
    # indices into the flattened ids
    mirrored: Any
    previous: Any  # [tokens] int64, the index of each token's predecessor in the initial states, followed by the tokens
    last: Any  # [rows] int64, the last token of each row


def compute_packing(lengths: npt.NDArray[Any], time: int) -> Packing:
    """Compute the packing of a batch.

    Args:
        lengths: The number of tokens in each row, at least 1, [rows].
        time: The padded length.
    """
    rows = len(lengths)
    longest = int(lengths.max())
    order = np.argsort(-lengths, kind="stable")
    inverse_order = np.empty_like(order)
    inverse_order[order] = np.arange(rows)
    sorted_lengths = lengths[order]
    has_token = np.arange(longest)[:, None] < sorted_lengths  # [longest, rows]
    step, row = np.nonzero(has_token)  # [real tokens] each
    counts = has_token.sum(axis=1)  # [longest]
    starts = np.cumsum(counts) - counts  # [longest]
    tokens = len(step)
    fillers = MULTIPLE - tokens % MULTIPLE
    zeros = np.zeros(fillers, np.int64)
    # At each step, the tokens of all unfinished rows are adjacent. At the first step, the predecessors are the initial
    # states.
    previous_starts = np.concatenate([[-rows], starts])[step]  # [real tokens]
    padded_starts = np.concatenate([starts, np.full(time - longest, tokens)])  # [time]
    is_token = np.arange(time) < lengths[:, None]  # [rows, time]
    later_counts = np.append(counts[1:], 0)  # [longest]
    mirrored = starts[sorted_lengths[row] - 1 - step] + row  # [real tokens]
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
    """Return the `begin` and `size` arguments of tf.slice for `number` rows starting at `first`, [steps, 2, 2]."""
    slices = np.zeros((len(first), 2, 2), np.int32)
    slices[:, 0, 0] = first
    slices[:, 1, 0] = number
    slices[:, 1, 1] = -1
    return slices


def pack_array(padded: npt.NDArray[Any], packing: Packing, filler: Any) -> npt.NDArray[Any]:
    """Pack an array [rows, time] to [tokens] on the host. Fillers get the value `filler`."""
    packed = padded.reshape(-1)[packing.to_packed]
    packed[len(packed) - packing.fillers :] = filler
    return packed


def pack(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
    """Pack a tensor [rows, time, features] to [tokens, features].

    The incoming gradient must be 0 at fillers.
    """
    return with_gradient(lambda x: _to_packed(x, packing), lambda gradient: _to_padded(gradient, packing), padded)


def unpack(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    """Unpack a tensor [tokens, features] to [rows, time, features]. Padding gets the value of the first filler.

    The outgoing gradient is undefined at fillers, where `lstm_sequence` ignores it.
    """
    return with_gradient(lambda x: _to_padded(x, packing), lambda gradient: _to_packed(gradient, packing), packed)


def mirror(x: tf.Tensor, packing: Packing) -> tf.Tensor:
    """Reverse the tokens, but not the padding, of each row in a tensor [tokens, features] or [rows, time, features]."""

    def reverse(x: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(x, [-1, x.shape[-1]]), packing.mirrored)

    return with_gradient(reverse, reverse, x)


def rows_of_tokens(packing: Packing) -> tf.Tensor:
    """Return the row index of each packed token, [tokens] int64. Fillers have index 0."""
    return packing.to_packed // size_on_device(packing.to_padded[0])


def _to_packed(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
    features = tf.shape(padded)[2] if padded.shape[2] is None else padded.shape[2]
    return tf.gather(tf.reshape(padded, [-1, features]), packing.to_packed)


def _to_padded(packed: tf.Tensor, packing: Packing) -> tf.Tensor:
    # TensorFlow's own gradient would be slow, because its scatter operation uses a single thread.
    return tf.gather(packed, packing.to_padded)


class Sequences(NamedTuple):
    """A batch of sequences with at least one token each. The fields are arrays on the host and tensors in a graph."""

    ids: Any  # packed ids with PAD at fillers, [tokens] int64; or padded ids, [rows, time]
    mask: Any  # True at tokens and False at padding, [rows, time] bool
    packing: Packing

    @property
    def is_packed(self) -> bool:
        """Whether the vectors of the tokens are packed [tokens, features] or padded [rows, time, features]."""
        return len(self.ids.shape) == 1


def make_sequences(ids: npt.NDArray[Any], packed: bool) -> Sequences:
    """Create a batch from padded ids, on the host.

    Args:
        ids: The ids, padded with PAD on the right, [rows, time].
        packed: Whether to pack the ids.
    """
    mask = ids != PAD
    lengths = mask.sum(axis=1)
    packing = compute_packing(lengths, ids.shape[1])
    if packed:
        return Sequences(pack_array(ids, packing, PAD).astype(np.int64), mask, packing)
    rows, positions = np.indices(ids.shape)
    mirrored = rows * ids.shape[1] + np.where(mask, lengths[:, None] - 1 - positions, positions)
    return Sequences(ids.astype(np.int64), mask, packing._replace(mirrored=mirrored))


def padded_ids(sequences: Sequences) -> tf.Tensor:
    """Return the ids of a batch as a padded tensor, [rows, time]."""
    return tf.gather(sequences.ids, sequences.packing.to_padded) if sequences.is_packed else sequences.ids


def unsized_specs(arrays: Any) -> Any:
    """Return a tf.TensorSpec with unknown sizes for each array or tensor in a structure."""
    return tf.nest.map_structure(lambda x: tf.TensorSpec([None] * len(x.shape), x.dtype), arrays)

"""Preparation of batches on the host. Each tower computes one part of a batch, called a share."""

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batches import Batch, GlobalBatch, split
from chatbot.corpus.vocabulary import PAD
from chatbot.model.operations import is_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Packing, Sequences, pack_array, unsized_specs

# The number of batches that are copied to the devices ahead of the current step. With two, GPUs are never idle between
# steps.
COPIED_AHEAD = 2


class Share(NamedTuple):
    """The inputs that a tower computes in a step: arrays on the host, or tensors in a graph.

    In shapes, "tokens" is the number of target tokens, including filler tokens. Unused fields are empty tuples on GPUs.
    """

    source: Sequences
    target_in: Sequences
    targets: Any  # [tokens] int64: target tokens of all pairs, without padding
    weights: Any  # [tokens] float32: 1 for tokens, 0 for filler tokens
    counts: Any  # [2] float32, the sum of the weights, and the number of pairs
    key: Any  # [1] uint64, the random key of the dropout masks
    # [ids] int64, the sorted, unique token ids in the global batch. All towers have the same ids.
    lookup_ids: Any
    lookup_index: Any  # [lookups] int64, the index into `lookup_ids` of each id in source and target_in


def make_share(batch: Batch, model: Seq2Seq, seed: Sequence[int], lookup_ids: npt.NDArray[np.int64]) -> Share:
    """Convert a tower's part of a batch to the inputs of the model.

    Args:
        batch: The padded pairs of the tower.
        model: The model.
        seed: Numbers that determine the random key of the dropout masks.
        lookup_ids: `GlobalBatch.ids`, [ids] int64.
    """
    source = model.sequences(batch.source)
    target_in = model.sequences(batch.target_in)
    weights = pack_array(batch.weights, target_in.packing, 0.0)
    share = Share(
        source=source,
        target_in=target_in,
        targets=pack_array(batch.target_out, target_in.packing, PAD).astype(np.int64),
        weights=weights,
        counts=np.array([weights.sum(), np.count_nonzero(batch.weights[:, 0])], np.float32),
        key=np.random.SeedSequence(list(seed)).generate_state(1, np.uint64),
        lookup_ids=lookup_ids,
        lookup_index=np.searchsorted(lookup_ids, np.concatenate([source.ids.ravel(), target_in.ids.ravel()])),
    )
    return _drop_unread_on_gpu(share, model) if model.on_gpu else share


def _drop_unread_on_gpu(share: Share, model: Seq2Seq) -> Share:
    """Remove the fields that no GPU operation reads, so they are not copied to the GPU."""

    def keep_only(sequences: Sequences, *names: str) -> Sequences:
        fields = {name: getattr(sequences.packing, name) for name in names}
        return sequences._replace(packing=Packing(**{**dict.fromkeys(Packing._fields, ()), **fields}))

    cudnn_fields = [] if model.is_transformer else ["lengths", *(["mirrored"] if model.encoder.backward else [])]
    return share._replace(
        source=keep_only(share.source, *cudnn_fields),
        target_in=keep_only(share.target_in, "to_packed", "to_padded")._replace(mask=()),
    )


class Buffer(NamedTuple):
    """Several arrays packed into one buffer, which is copied to a GPU in a single transfer.

    int32 arrays are not packed. They stay in host memory.
    """

    # [numbers] float32, because TensorFlow cannot split all dtypes on GPUs. 64-bit integers are reinterpreted as pairs
    # of float32 numbers, and all other numbers are converted.
    content: Any
    layout: Any  # [numbers] int32: the size of each part of `content`, then the shapes of all arrays except vectors
    on_host: tuple[Any, ...]  # int32 arrays


def pack_buffer(arrays: Any) -> Buffer:
    """Pack the arrays of a structure, such as a `Share`, into a buffer. At least one array must not be int32."""
    flat = [*map(np.asarray, tf.nest.flatten(arrays))]
    on_device = [array for array in flat if array.dtype != np.int32]
    content = [
        array.ravel().view(np.float32) if _has_64_bits(array) else array.ravel().astype(np.float32)
        for array in on_device
    ]
    shapes = [size for array in on_device if array.ndim != 1 for size in array.shape]
    layout = np.array([*(part.size for part in content), *shapes], np.int32)
    return Buffer(np.concatenate(content), layout, tuple(array for array in flat if array.dtype == np.int32))


def unpack_buffer(buffer: Buffer, specs: Any) -> Any:
    """Unpack the tensors of a buffer on the caller's device.

    Args:
        buffer: A buffer from `pack_buffer`.
        specs: The tensor specs, in the same structure as the packed arrays.
    """
    on_device = [spec for spec in tf.nest.flatten(specs) if spec.dtype != tf.int32]
    ranks = [spec.shape.rank for spec in on_device if spec.shape.rank != 1]
    sizes, *shapes = tf.split(buffer.layout, [len(on_device), *ranks])
    parts = iter(tf.split(buffer.content, sizes, num=len(on_device)))
    next_shapes = iter(shapes)
    on_host = iter(buffer.on_host)

    def next_tensor(spec: tf.TensorSpec) -> tf.Tensor:
        if spec.dtype == tf.int32:
            return next(on_host)
        part = next(parts)
        is_pair = _has_64_bits(spec.dtype)
        part = tf.bitcast(tf.reshape(part, [-1, 2]), spec.dtype) if is_pair else tf.cast(part, spec.dtype)
        return part if spec.shape.rank == 1 else tf.reshape(part, next(next_shapes))

    return tf.nest.map_structure(next_tensor, specs)


def _has_64_bits(value: Any) -> bool:
    """Return whether an array contains 64-bit integers, or a dtype is a 64-bit integer type."""
    return tf.as_dtype(getattr(value, "dtype", value)) in (tf.int64, tf.uint64)


@dataclasses.dataclass
class Prepared:
    """A global batch that has been prepared for a step.

    Attributes:
        number: The number of the step, counted from 0.
        batch: The global batch.
        pieces: The requested number of micro-batches, called pieces.
        shares: The inputs of the towers as arrays on the host, [micro-batch][tower].
        copies: One future per tower, set by `Preparation.begin_copies`. Its result is a list of the tower's inputs as
            tensors on the device, one per micro-batch.
    """

    number: int
    batch: GlobalBatch
    pieces: int
    shares: list[list[Share | Buffer]]
    copies: list[Future[list[Any]]] = dataclasses.field(default_factory=list)

    @property
    def size(self) -> tuple[int, int, int]:
        """The number of pairs and the lengths of the longest source and target. All machines have the same values."""
        share = self.batch.shares[0]
        return self.batch.pairs, share.source.shape[1], share.target_in.shape[1]


class Preparation:
    """Prepares batches on the host and copies them to the devices. All methods are thread-safe.

    Args:
        model: The model.
        seed: The seed of the run.
        devices: The devices of the towers of this process.
        machine: The index of this process.
        home: The device to which batches are copied; None for the device of each tower.
    """

    def __init__(
        self, model: Seq2Seq, seed: int, devices: Sequence[str], machine: int = 0, home: str | None = None
    ) -> None:
        self._model = model
        self._seed = seed
        self._devices = devices
        self._home = home
        self._first_tower = machine * len(devices)
        self._copying = ThreadPoolExecutor((1 + COPIED_AHEAD) * len(devices), "copies")

    def __call__(self, batch: GlobalBatch, number: int, pieces: int = 1) -> Prepared:
        """Prepare the batch of a step on the host.

        Args:
            batch: The global batch.
            number: The number of the step, counted from 0.
            pieces: The requested number of micro-batches. There are fewer if no tower has this many pairs.
        """
        num_pieces = min(pieces, max(len(share.source) for share in batch.shares))
        batches = [split(share, num_pieces) for share in batch.shares]  # [tower][piece]

        def prepare(tower: int, piece: int) -> Share | Buffer:
            seed = self._seed, number, self._first_tower + tower, piece
            share = make_share(batches[tower][piece], self._model, seed, batch.ids)
            return pack_buffer(share) if self._model.on_gpu else share

        shares = [[prepare(tower, piece) for tower in range(len(self._devices))] for piece in range(num_pieces)]
        return Prepared(number, batch, pieces, shares)

    def begin_copies(self, prepared: Prepared) -> None:
        """Start copying each tower's part of the batch to its device, as a single buffer.

        A copy to a GPU waits until all queued operations of the GPU have finished. Copies therefore run in threads, so
        they delay neither the caller nor the copies to other GPUs.
        """
        for device, shares in zip(self._devices, zip(*prepared.shares, strict=True), strict=True):
            prepared.copies.append(self._copying.submit(copy_to_device, list(shares), self._home or device))

    def device_shares(self, prepared: Prepared) -> list[tuple[Any, ...]]:
        """Wait until all copies are finished, and return the inputs on the devices, [micro-batch][tower]."""
        if not prepared.copies:
            self.begin_copies(prepared)
        return list(zip(*(copy.result() for copy in prepared.copies), strict=True))

    def tensors(self, share: Share | Buffer) -> Share:
        """Unpack the inputs of a tower on the caller's device, if they were copied as a buffer."""
        return unpack_buffer(share, self._specs) if isinstance(share, Buffer) else share

    @functools.cached_property
    def _specs(self) -> Share:
        """The dtypes and ranks of a tower's inputs, which are the same for all batches."""
        ids = np.ones([1, 1], np.int32)
        batch = Batch(ids, ids, ids, np.ones([1, 1], np.float32))
        return unsized_specs(make_share(batch, self._model, (0,), np.ones(1, np.int64)))


def copy_to_device(share: Any, device: str) -> Any:
    """Copy the arrays of a structure to a device. int32 arrays stay in host memory.

    Arrays are first converted to tensors on the CPU. Direct conversion to a tensor on a GPU would hold Python's global
    interpreter lock, so a hanging GPU would block all threads.

    int32 tensors are not copied because of TensorFlow issue 123980: if an operation on a GPU reads or writes int32
    tensors in host memory, it occasionally returns the result of another thread.
    """

    def copy(array: Any) -> tf.Tensor:
        with tf.device("/CPU:0" if is_gpu(device) else device):
            tensor = tf.convert_to_tensor(array)
        if not is_gpu(device) or tensor.dtype == tf.int32:
            return tensor
        with tf.device(device):
            return tf.identity(tensor)

    return tf.nest.map_structure(copy, share)

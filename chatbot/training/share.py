"""A tower's share of a batch, with everything that is known before the step. It is computed on the host."""

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
from chatbot.model.sequences import Packing, Sequences, packed_array, specs_of

# While a step is queued, the batches of the next steps are copied. A copy that begins before the step two steps earlier
# is queued ends before the step before it does, so that the GPU always has a step to compute.
COPIED_AHEAD = 2


class Share(NamedTuple):
    """Arrays on the host, tensors in a graph. "tokens" includes the fillers of the target's packing.

    For a GPU, an empty tuple stands for what no operation reads there.
    """

    source: Sequences
    target_in: Sequences
    targets: Any  # [tokens] int64, packed
    weights: Any  # [tokens] float32, 1 for a token; 0 at fillers; all 0 for a tower without a pair
    counts: Any  # [2] float32, the summed weights of real target tokens, and the number of pairs
    key: Any  # [1] uint64, for the dropout masks
    # [used] int64, the rows of the embedding that the towers of all machines look up, sorted, each once. The projection
    # reads the whole matrix, and its ids are not among them.
    used: Any
    places: Any  # [lookups] int64, the index in `used` of each id of source and target_in


def share_of(batch: Batch, model: Seq2Seq, seed: Sequence[int], used: npt.NDArray[np.int64]) -> Share:
    """Prepare a share of a batch for the model.

    seed: the key is a function of it. used: `ids` of the global batch.
    """
    source = model.sequences(batch.source)
    target_in = model.sequences(batch.target_in)
    weights = packed_array(batch.weights, target_in.packing, 0.0)
    share = Share(
        source=source,
        target_in=target_in,
        targets=packed_array(batch.target_out, target_in.packing, PAD).astype(np.int64),
        weights=weights,
        counts=np.array([weights.sum(), np.count_nonzero(batch.weights[:, 0])], np.float32),
        key=np.random.SeedSequence(list(seed)).generate_state(1, np.uint64),
        used=used,
        places=np.searchsorted(used, np.concatenate([source.ids.ravel(), target_in.ids.ravel()])),
    )
    return _read_on_gpu(share, model) if model.on_gpu else share


def _read_on_gpu(share: Share, model: Seq2Seq) -> Share:
    """Leave out what no operation on a GPU reads, such as the indices of the LSTM over packed tokens."""

    def with_only(sequences: Sequences, *names: str) -> Sequences:
        read = {name: getattr(sequences.packing, name) for name in names}
        return sequences._replace(packing=Packing(**{**dict.fromkeys(Packing._fields, ()), **read}))

    of_cudnn = () if model.is_transformer else ("lengths",)
    return share._replace(
        source=with_only(share.source, *of_cudnn),
        target_in=with_only(share.target_in, "to_packed", "to_padded")._replace(mask=()),
    )


class Buffer(NamedTuple):
    """The arrays of a structure in one buffer, which one copy, one call of the driver, brings to a GPU.

    Arrays on the host, tensors in a graph. int32 stays in the host's memory.
    """

    # [numbers] float64, which TensorFlow can split on a GPU: the bits of integers of 64 bits, the values of others.
    content: Any
    layout: Any  # [numbers] int32: the size of each array in `content`, and the shape of each that is no vector
    on_host: tuple[Any, ...]  # the int32 arrays


def buffer_of(arrays: Any) -> Buffer:
    """Return the buffer of a structure of arrays, at least one of which is not int32. Types: as in `Share`."""
    flat = [*map(np.asarray, tf.nest.flatten(arrays))]
    on_device = [array for array in flat if array.dtype != np.int32]
    content = [
        array.ravel().view(np.float64) if _has_64_bits(array) else array.ravel().astype(np.float64)
        for array in on_device
    ]
    shapes = [size for array in on_device if array.ndim != 1 for size in array.shape]
    layout = np.array([*(array.size for array in on_device), *shapes], np.int32)
    return Buffer(np.concatenate(content), layout, tuple(array for array in flat if array.dtype == np.int32))


def tensors_of(buffer: Buffer, specs: Any) -> Any:
    """Return the tensors of a buffer, on the device of the caller. specs: in the structure that `buffer_of` took."""
    on_device = [spec for spec in tf.nest.flatten(specs) if spec.dtype != tf.int32]
    ranks = [spec.shape.rank for spec in on_device if spec.shape.rank != 1]
    sizes, *shapes = tf.split(buffer.layout, [len(on_device), *ranks])
    parts = iter(tf.split(buffer.content, sizes, num=len(on_device)))
    of_others = iter(shapes)
    on_host = iter(buffer.on_host)

    def tensor(spec: tf.TensorSpec) -> tf.Tensor:
        if spec.dtype == tf.int32:
            return next(on_host)
        part = next(parts)
        part = tf.bitcast(part, spec.dtype) if _has_64_bits(spec.dtype) else tf.cast(part, spec.dtype)
        return part if spec.shape.rank == 1 else tf.reshape(part, next(of_others))

    return tf.nest.map_structure(tensor, specs)


def _has_64_bits(kind: Any) -> bool:
    """Return whether an array, or the type of a tensor, is of integers with 64 bits."""
    return tf.as_dtype(getattr(kind, "dtype", kind)) in (tf.int64, tf.uint64)


@dataclasses.dataclass
class Prepared:
    """A global batch with all that the step needs of it, in arrays on the host.

    number: the step, counted from 0. pieces: the number that each share was to be divided into. shares: [piece][tower].
    copies: of each tower's shares, [piece] tensors on its device, from `Preparation.begin_copies` on.
    """

    number: int
    batch: GlobalBatch
    pieces: int
    shares: list[list[Share | Buffer]]
    copies: list[Future[list[Any]]] = dataclasses.field(default_factory=list)

    @property
    def size(self) -> tuple[int, int, int]:
        """The pairs of the batch, and the lengths of its longest source and target, the same on all machines."""
        share = self.batch.shares[0]
        return self.batch.pairs, share.source.shape[1], share.target_in.shape[1]


class Preparation:
    """Prepares the batches of a step, and copies them to the devices. Any thread may call it.

    devices: those of this process's towers. machine: the index of this process. home: the device that keeps the shares
    until the step; None: each its own.
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
        """Compute on the host all that step `number` needs, each share in pieces, or in pairs if these are fewer."""
        parts = min(pieces, max(len(share.source) for share in batch.shares))
        divided = [split(share, parts) for share in batch.shares]

        def prepared(tower: int, piece: int) -> Share | Buffer:
            seed = self._seed, number, self._first_tower + tower, piece
            share = share_of(divided[tower][piece], self._model, seed, batch.ids)
            return buffer_of(share) if self._model.on_gpu else share

        shares = [[prepared(tower, piece) for tower in range(len(self._devices))] for piece in range(parts)]
        return Prepared(number, batch, pieces, shares)

    def begin_copies(self, prepared: Prepared) -> None:
        """Begin to copy the shares to the devices, to a GPU in one buffer.

        A copy to a GPU waits until the GPU has computed what is queued there. So each tower has threads of its own:
        while one waits, the caller queues the next steps, and no GPU waits for the copy to another one.
        """
        for device, of_tower in zip(self._devices, zip(*prepared.shares, strict=True), strict=True):
            prepared.copies.append(self._copying.submit(on_device, list(of_tower), self._home or device))

    def copied(self, prepared: Prepared) -> list[tuple[Any, ...]]:
        """Return the shares on the devices, [piece][tower]. Raises what has gone wrong in a copy."""
        if not prepared.copies:
            self.begin_copies(prepared)
        return list(zip(*(copy.result() for copy in prepared.copies), strict=True))

    def tensors(self, share: Share | Buffer) -> Share:
        """Return a share of `copied` as the gradient function takes it, on the device of the caller."""
        return tensors_of(share, self._specs) if isinstance(share, Buffer) else share

    @functools.cached_property
    def _specs(self) -> Share:
        """The types and ranks of a share, which no batch changes."""
        ids = np.ones([1, 1], np.int32)
        batch = Batch(ids, ids, ids, np.ones([1, 1], np.float32))
        return specs_of(share_of(batch, self._model, (0,), np.ones(1, np.int64)))


def on_device(share: Any, device: str) -> Any:
    """Copy arrays to a device. What is int32 stays in the host's memory, where the step wants it. Any thread may call.

    TensorFlow would hold Python's lock while it copies an array to a GPU, so that a GPU that is silent would stop all
    threads. It does not hold it while an operation copies a tensor. But of operations of a GPU on int32, in the host's
    memory, each gives its caller the result of another thread's now and then (TensorFlow's issue 123980).
    """

    def copied(array: Any) -> tf.Tensor:
        with tf.device("/CPU:0" if is_gpu(device) else device):
            tensor = tf.convert_to_tensor(array)
        if not is_gpu(device) or tensor.dtype == tf.int32:
            return tensor
        with tf.device(device):
            return tf.identity(tensor)

    return tf.nest.map_structure(copied, share)

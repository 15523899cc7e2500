"""A tower's share of a batch, with everything that is known before the step. It is computed on the host."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batches import Batch, GlobalBatch, split
from chatbot.corpus.vocabulary import PAD
from chatbot.model.loss import draw_samples
from chatbot.model.operations import computed_on, is_gpu, on_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Packing, Sequences, packed_array, specs_of


class Share(NamedTuple):
    """Arrays on the host, tensors in a graph. "tokens" includes the fillers of the target's packing.

    For a GPU, an empty tuple stands for what no operation reads there.
    """

    source: Sequences
    target_in: Sequences
    targets: Any  # [tokens] int64, packed
    weights: Any  # [tokens] float32, 1 for a token; 0 at fillers; all 0 for a tower without a pair
    samples: Any  # [samples] int64, the ids of a sampled softmax, the same for all shares; none for an exact one
    counts: Any  # [2] float32, the summed weights of real target tokens, and the number of pairs
    key: Any  # [1] uint64, for the dropout masks
    places: Any  # [lookups] int64, the index of each of `looked_up` among the ids that the step's towers look up


def share_of(
    batch: Batch, model: Seq2Seq, seed: Sequence[int], samples: npt.NDArray[np.int64], used: npt.NDArray[np.int64]
) -> Share:
    """Prepare a share of a batch for the place where it is computed (`on_gpu`).

    seed: the key is a function of it. samples: `samples_of` the step. used: `ids_used` of the global batch.
    """
    target_in = model.sequences(batch.target_in)
    weights = packed_array(batch.weights, target_in.packing, 0.0)
    share = Share(
        source=model.sequences(batch.source),
        target_in=target_in,
        targets=packed_array(batch.target_out, target_in.packing, PAD).astype(np.int64),
        weights=weights,
        samples=samples,
        counts=np.array([weights.sum(), np.count_nonzero(batch.weights[:, 0])], np.float32),
        key=np.random.SeedSequence(list(seed)).generate_state(1, np.uint64),
        places=used,
    )
    share = share._replace(
        places=np.searchsorted(used, np.concatenate([ids.ravel() for ids in looked_up(share, model)]))
    )
    return _read_on_gpu(share, model) if on_gpu() else share


def _read_on_gpu(share: Share, model: Seq2Seq) -> Share:
    """Leave out what no operation on a GPU reads, such as the indices of the LSTM over packed tokens."""

    def with_only(sequences: Sequences, *names: str) -> Sequences:
        read = {name: getattr(sequences.packing, name) for name in names}
        return sequences._replace(packing=Packing(**{**dict.fromkeys(Packing._fields, ()), **read}))

    of_cudnn = () if model.is_transformer else ("lengths",)
    return share._replace(
        source=with_only(share.source, *of_cudnn),
        target_in=with_only(share.target_in, *of_cudnn, "to_packed", "to_padded")._replace(mask=()),
        samples=() if model.sampled is None else share.samples,
    )


def samples_of(model: Seq2Seq, seed: int, number: int) -> npt.NDArray[np.int64]:
    """Draw the ids of a sampled softmax for step `number`; none if the model's softmax is exact.

    All towers and pieces of a step use the same ones: each machine decides for itself into how many pieces it divides
    its shares, and the ids of all machines must agree (`ids_used`).
    """
    if model.sampled is None:
        return np.zeros(0, np.int64)
    return draw_samples(model.sampled, model.bias.shape[0], (seed, number))


def ids_used(batch: GlobalBatch, model: Seq2Seq, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return all ids that the towers of all machines look up in a step, sorted, each once."""
    return np.unique(np.concatenate([batch.ids, samples])) if model.looks_up_samples else batch.ids


def looked_up(share: Share, model: Seq2Seq) -> list[Any]:
    """Return the ids of the embedding's rows that a tower reads, in order: arrays or tensors of any shape.

    With an exact softmax, the projection reads the whole matrix, and its ids are not among them; nor are they with a
    projection of its own.
    """
    inputs = [share.source.ids, share.target_in.ids]
    return [*inputs, share.targets, share.samples] if model.looks_up_samples else inputs


class Buffer(NamedTuple):
    """The arrays of a structure in one buffer, which one copy, one call of the driver, brings to a GPU.

    Arrays on the host, tensors in a graph. int32 stays in the host's memory.
    """

    content: Any  # [bytes] int8, of all arrays that are not int32; TensorFlow's GPU kernel of tf.slice has no uint8
    layout: Any  # [numbers] int32, for each of these arrays: its first byte, its number of bytes, its shape in bytes
    on_host: tuple[Any, ...]  # the int32 arrays


def buffer_of(arrays: Any) -> Buffer:
    """Return the buffer of a structure of arrays, at least one of which is neither int32 nor empty."""
    content, layout, on_host, begin = [], [], [], 0
    for array in map(np.asarray, tf.nest.flatten(arrays)):
        if array.dtype == np.int32:
            on_host.append(array)
            continue
        content.append(array.tobytes())
        layout += [begin, array.nbytes, *array.shape, *_bytes_of_item(tf.as_dtype(array.dtype))]
        begin += array.nbytes
    return Buffer(np.frombuffer(b"".join(content), np.int8), np.array(layout, np.int32), tuple(on_host))


def tensors_of(buffer: Buffer, specs: Any) -> Any:
    """Return the tensors of a buffer, on the device of the caller. specs: in the structure that `buffer_of` took."""
    in_content = [spec for spec in tf.nest.flatten(specs) if spec.dtype != tf.int32]
    sizes = [n for spec in in_content for n in (1, 1, spec.shape.rank + len(_bytes_of_item(spec.dtype)))]
    layout, on_host = iter(tf.split(buffer.layout, sizes)), iter(buffer.on_host)

    def tensor(spec: tf.TensorSpec) -> tf.Tensor:
        if spec.dtype == tf.int32:
            return next(on_host)
        begin, size, shape = next(layout), next(layout), next(layout)
        of_array = tf.reshape(tf.slice(buffer.content, begin, size), shape)
        # TensorFlow has no bitcast to bool.
        return tf.cast(of_array, tf.bool) if spec.dtype == tf.bool else tf.bitcast(of_array, spec.dtype)

    return tf.nest.map_structure(tensor, specs)


def _bytes_of_item(dtype: tf.DType) -> list[int]:
    """Return the last dimension of an array in bytes, which tf.bitcast wants for types of several bytes."""
    return [dtype.size] if dtype.size > 1 else []


class Prepared(NamedTuple):
    """A global batch with all that the step needs of it, on the devices."""

    number: int  # the step, counted from 0
    batch: GlobalBatch
    pieces: int  # the number that each share was to be divided into
    shares: list[tuple[Share | Buffer, ...]]  # [piece][tower]; `Preparation.tensors` takes a buffer apart
    used: tf.Tensor  # [used] int64, `ids_used`

    @property
    def size(self) -> tuple[int, int, int]:
        """The pairs of the batch, and the lengths of its longest source and target, the same on all machines."""
        share = self.batch.shares[0]
        return self.batch.pairs, share.source.shape[1], share.target_in.shape[1]


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Prepares the batches of a step.

    devices: those of this process's towers. machine: the index of this process. home: the device that keeps the shares
    until the step; None: each its own.
    """

    model: Seq2Seq
    seed: int
    devices: Sequence[str]
    machine: int = 0
    home: str | None = None

    def __call__(self, batch: GlobalBatch, number: int, pieces: int = 1) -> Prepared:
        """Compute on the host all that step `number` needs, and copy it to the towers' devices, to a GPU in one buffer.

        Each share is divided into pieces, or into single pairs if it has fewer pairs.
        """
        parts = min(pieces, max(len(share.source) for share in batch.shares))
        samples = samples_of(self.model, self.seed, number)
        used = ids_used(batch, self.model, samples)
        divided = [split(share, parts) for share in batch.shares]
        first = self.machine * len(self.devices)

        def prepared(tower: int, device: str, piece: int) -> Share | Buffer:
            seed = self.seed, number, first + tower, piece
            with computed_on(device):
                share = share_of(divided[tower][piece], self.model, seed, samples, used)
                return on_device(buffer_of(share) if on_gpu() else share, self.home or device)

        shares = [tuple(prepared(i, device, piece) for i, device in enumerate(self.devices)) for piece in range(parts)]
        return Prepared(number, batch, pieces, shares, on_device(used, self.home or self.devices[0]))

    def tensors(self, share: Share | Buffer) -> Share:
        """Return a share of `Prepared` as the gradient function takes it, on the device of the caller."""
        return tensors_of(share, self._specs_on_gpu) if isinstance(share, Buffer) else share

    @functools.cached_property
    def _specs_on_gpu(self) -> Share:
        """The types and ranks of a share on a GPU, which no batch changes."""
        ids, weights = np.ones([1, 1], np.int32), np.ones([1, 1], np.float32)
        batch, samples = Batch(ids, ids, ids, weights), samples_of(self.model, 0, 0)
        with computed_on("/GPU:0"):
            return specs_of(share_of(batch, self.model, (0,), samples, np.ones(1, np.int64)))


def on_device(share: Any, device: str) -> Any:
    """Copy arrays to a device. What is int32 stays in the host's memory, where the step wants it.

    TensorFlow would hold Python's lock while it copies an array to a GPU, so that a GPU that is silent would stop all
    threads. It does not hold it while an operation copies a tensor.
    """
    with tf.device("/CPU:0" if is_gpu(device) else device):
        tensors = [tf.convert_to_tensor(array) for array in tf.nest.flatten(share)]
    if is_gpu(device):
        with tf.device(device):
            tensors = [tf.identity(tensor) for tensor in tensors]
    return tf.nest.pack_sequence_as(share, tensors)

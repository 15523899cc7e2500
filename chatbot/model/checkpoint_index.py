"""Reads the index of a checkpoint, and checks it before TensorFlow does.

TensorFlow's reader ends the process, or allocates what the file demands, when an index was made to harm: a shape that
is negative or has more than 2 ** 63 elements, a block of a terabyte. An index that passes the checks here is safe for
it.

The format is that of TensorFlow's tensor bundle: a table of LevelDB, whose values are messages BundleEntryProto. See
tensorflow/core/util/tensor_bundle.
"""

import math
import struct
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from chatbot.model.index_table import read_table

MOST_SHARDS, MOST_DIMENSIONS, MOST_ELEMENTS = 1000, 254, 1 << 60


class Stored(NamedTuple):
    """The type and the shape of a tensor in a checkpoint."""

    dtype: tf.DType
    shape: tuple[int, ...]


def read_index(prefix: Path) -> dict[str, Stored]:
    """Return the types and shapes of the tensors in a checkpoint, by name.

    prefix: the path of its files without an ending. Raises OSError, and ValueError for an index that is damaged, or
    that names bytes beyond the end of the data.
    """
    try:
        entries = dict(read_table(Path(f"{prefix}.index")))
        header = BundleHeaderProto.FromString(entries.pop(b""))
        if not 0 < header.num_shards <= MOST_SHARDS or header.endianness != BundleHeaderProto.LITTLE:
            raise ValueError("its index has a header that TensorFlow does not write")
        shards = [Path(f"{prefix}.data-{i:05}-of-{header.num_shards:05}") for i in range(header.num_shards)]
        sizes = [shard.stat().st_size for shard in shards]
        return {name.decode(): _checked(BundleEntryProto.FromString(entry), sizes) for name, entry in entries.items()}
    except (DecodeError, LookupError, UnicodeDecodeError, struct.error, TypeError) as error:
        raise ValueError(f"its index is damaged ({type(error).__name__})") from None


def _checked(entry: BundleEntryProto, sizes: list[int]) -> Stored:
    """Return the type and shape of an entry. sizes: of the files with data.

    Raises ValueError, LookupError and TypeError.
    """
    dtype = tf.dtypes.as_dtype(entry.dtype)
    shape = tuple(dim.size for dim in entry.shape.dim)
    if entry.shape.unknown_rank or len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0 or entry.slices:
        raise ValueError("its index has a tensor without a definite shape")
    if entry.shard_id < 0 or entry.offset < 0 or not 0 <= entry.size <= sizes[entry.shard_id] - entry.offset:
        raise ValueError("its index names bytes beyond the end of the data")
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
    if entry.dtype >= 100 or not (is_number or dtype == tf.string):  # 100 and above: references
        raise ValueError(f"its index has a tensor of type {dtype.name}")
    if math.prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        raise ValueError("its index has a tensor that is too large")
    if math.prod(shape) * (dtype.size if is_number else 1) > entry.size:
        raise ValueError("its index has a tensor that is larger than its data")
    return Stored(dtype, shape)

"""Reads the index of a checkpoint, and checks it before TensorFlow does.

TensorFlow's reader ends the process, or allocates what the file demands, when an index was made to harm: a shape that
is negative or has more than 2 ** 63 elements, a block of a terabyte. An index that passes the checks here is safe for
it.

The format is that of TensorFlow's tensor bundle: a table of LevelDB, whose values are messages BundleEntryProto. See
tensorflow/core/util/tensor_bundle and tensorflow/core/lib/io/table_format.txt.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

MOST_BYTES, MOST_ENTRIES, LONGEST_KEY = 16_000_000, 100_000, 1000
FOOTER, MAGIC = 48, 0xDB4775248B80FB57
TRAILER = 5  # the type of compression and a checksum, after each block
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
    with Path(f"{prefix}.index").open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"its index has more than {MOST_BYTES:,} bytes")
    try:
        entries = dict(_table(content))
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


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table in their order. Raises ValueError, LookupError, struct.error."""
    footer = content[-FOOTER:]
    if len(footer) < FOOTER or struct.unpack("<Q", footer[-8:])[0] != MAGIC:
        raise ValueError("its index has no table")
    _, at = _handle(footer, 0)  # of a block that is not used
    (offset, size), _ = _handle(footer, at)
    before, count = b"", 0
    for _, handle in _block(content, offset, size):
        for key, value in _block(content, *_handle(handle, 0)[0]):
            if (count and key <= before) or count == MOST_ENTRIES:
                raise ValueError("its index is not in order, or too long")
            before, count = key, count + 1
            yield key, value


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block. A key begins with bytes of the one before, except at a restart."""
    if offset + size + TRAILER > len(content) - FOOTER:
        raise ValueError("its index names a block beyond its end")
    if content[offset + size]:
        raise ValueError("its index is compressed")
    block = content[offset : offset + size]
    (restarts,) = struct.unpack("<I", block[-4:])
    end = size - 4 * (restarts + 1)
    if end < 0:
        raise ValueError("its index has a block without an end")
    starts, key, at = {0}, b"", 0
    while at < end:
        begin = at
        (shared, unshared, length), at = _numbers(block, at, 3)
        if shared > len(key) or shared + unshared > LONGEST_KEY or at + unshared + length > end:
            raise ValueError("its index has an entry beyond the end of a block, or a key that is too long")
        if not shared:
            starts.add(begin)
        key, value = key[:shared] + block[at : at + unshared], block[at + unshared : at + unshared + length]
        at += unshared + length
        yield key, value
    # TensorFlow searches from these places, so it finds the entries above only.
    if not starts.issuperset(struct.unpack(f"<{restarts}I", block[end:-4])):
        raise ValueError("its index has a restart within an entry")


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return the offset and the size of a block, and the place after them."""
    (offset, size), at = _numbers(content, at, 2)
    return (offset, size), at


def _numbers(content: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return `count` numbers of 7 bits a byte, the lowest first, and the place after them.

    Raises LookupError at the end of the content, and ValueError for a number of more than 70 bits.
    """
    numbers = []
    for _ in range(count):
        number = shift = 0
        while content[at] & 0x80:
            number |= (content[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if shift > 63:
                raise ValueError("its index has a number that is too long")
        numbers.append(number | content[at] << shift)
        at += 1
    return numbers, at

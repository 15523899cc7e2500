"""The index of a checkpoint as a table of bytes, without TensorFlow.

It is a table of LevelDB (tensorflow/core/lib/io/table_format.txt): blocks of entries, and a footer that says where the
block is that lists them.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES, MOST_ENTRIES, LONGEST_KEY = 16_000_000, 100_000, 1000
FOOTER, MAGIC = 48, 0xDB4775248B80FB57
TRAILER = 5  # the type of compression and a checksum, after each block


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table in their order.

    Raises OSError, and ValueError, LookupError and struct.error for a table that is damaged or too long.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"its index has more than {MOST_BYTES:,} bytes")
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
        (shared, unshared, length), at = numbers(block, at, 3)
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
    (offset, size), at = numbers(content, at, 2)
    return (offset, size), at


def numbers(content: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return `count` numbers of 7 bits a byte, the lowest first, and the place after them.

    Raises LookupError at the end of the content, and ValueError for a number of more than 70 bits.
    """
    found = []
    for _ in range(count):
        number = shift = 0
        while content[at] & 0x80:
            number |= (content[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if shift > 63:
                raise ValueError("its index has a number that is too long")
        found.append(number | content[at] << shift)
        at += 1
    return found, at

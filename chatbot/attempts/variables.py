"""The variables of a checkpoint, read from its index without TensorFlow, whose import takes seconds.

The values of the index's table are serialised messages: tensorflow/core/protobuf/tensor_bundle.proto. For loading,
`chatbot.model.checkpoint_index` checks them further.
"""

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chatbot.errors import UserError
from chatbot.model.index_table import numbers, read_table

# The fields of BundleEntryProto, the message for a tensor, and of its shape.
SHAPE, SHARD, OFFSET, SIZE = 2, 3, 4, 5
DIMENSION, LENGTH = 2, 1
# The number of files of values, in BundleHeaderProto, whose key is empty.
SHARDS, MOST_SHARDS = 1, 1000
VALUE = re.compile(rb"(\w+)/(\d+)/\.ATTRIBUTES/VARIABLE_VALUE")


class Variable(NamedTuple):
    """A variable in a checkpoint."""

    group: str  # such as weights or optimizer
    number: int  # its place in the group
    shape: tuple[int, ...]


def read_variables(prefix: Path) -> list[Variable]:
    """Return the variables of a checkpoint that this program has written, by group and number.

    prefix: the path of the checkpoint without .index. Raises UserError for a missing or damaged index, and for files of
    values that are missing or too short.
    """
    index = Path(f"{prefix}.index")
    try:
        entries = {key: dict(_fields(value)) for key, value in read_table(index)}
        shards = _number(entries.pop(b"")[SHARDS])
        if shards > MOST_SHARDS:
            raise ValueError("too many files of values")
        variables, needed = [], [0] * shards
        for key, entry in entries.items():
            shard = _number(entry.get(SHARD, 0))
            needed[shard] = max(needed[shard], _number(entry.get(OFFSET, 0)) + _number(entry.get(SIZE, 0)))
            if found := VALUE.fullmatch(key):
                dimensions = [dict(_fields(d)) for field, d in _fields(entry.get(SHAPE, b"")) if field == DIMENSION]
                shape = tuple(_number(dimension.get(LENGTH, 0)) for dimension in dimensions)
                variables.append(Variable(found[1].decode(), int(found[2]), shape))
    except FileNotFoundError:
        raise UserError(f"{index}: missing") from None
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise UserError(f"{index}: damaged ({error})") from None
    for shard, size in enumerate(needed):
        data = Path(f"{prefix}.data-{shard:05}-of-{shards:05}")
        if not data.exists():
            raise UserError(f"{data}: missing")
        if data.stat().st_size < size:
            raise UserError(f"{data}: damaged, {data.stat().st_size:,} of {size:,} bytes")
    return sorted(variables)


def count(variables: list[Variable], group: str) -> int:
    """Return the number of values in a group."""
    return sum(math.prod(variable.shape) for variable in variables if variable.group == group)


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the content of each field of a protocol buffer's message.

    https://protobuf.dev/programming-guides/encoding/
    """
    if not isinstance(message, bytes):
        raise ValueError("a field is of another type")
    at = 0
    while at < len(message):
        (tag,), at = numbers(message, at, 1)
        kind = tag & 7
        if kind == 0:
            (content,), at = numbers(message, at, 1)
            yield tag >> 3, content
            continue
        length = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            (length,), at = numbers(message, at, 1)
        if length is None or at + length > len(message):
            raise ValueError("a field is cut off")
        yield tag >> 3, message[at : at + length]
        at += length


def _number(content: int | bytes) -> int:
    if not isinstance(content, int):
        raise ValueError("a number is of another type")
    return content

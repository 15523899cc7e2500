"""A text as input of ijson's parser: a limit on the size of a value, errors of one line, and steps through its events.

The events are those of `ijson.basic_parse`: with the path of each value, as `ijson.parse` gives it, nested lists would
take quadratic memory.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TextIO

import ijson

from chatbot.corpus.reading.values.value_builder import build_values
from chatbot.errors import UserError

MAX_ITEM = 16 * 2**20  # bytes of a value that is held in memory, such as a conversation
STARTS, ENDS = frozenset(("start_array", "start_map")), frozenset(("end_array", "end_map"))

_CONSTANT = re.compile(r"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=\s*[,\]}])")

Event = tuple[str, object]


@dataclass
class JsonInput:
    """The text as UTF-8 bytes. The reader tells it when a value is complete."""

    stream: TextIO
    place: str  # for messages
    read_bytes: int = 0
    value_start: int = 0  # approximate offset of the current value in bytes
    values: int = 0  # read so far

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises UserError when the current value is too large."""
        if self.read_bytes - self.value_start > MAX_ITEM:
            raise UserError(
                f"{self.place}: an item larger than {MAX_ITEM // 2**20} MiB; split it into conversations, "
                "or give JSON Lines"
            )
        data = self.stream.read(size).encode()
        self.read_bytes += len(data)
        return data

    def value_is_read(self) -> None:
        """Count a value, and begin the next one."""
        self.values += 1
        self.value_start = self.read_bytes


def items_of(events: Iterator[Event], source: JsonInput) -> Iterator[object]:
    """Yield the items of a list whose first event has been taken."""
    return (value for _, _, value in numbered_items_of(events, source))


def numbered_items_of(events: Iterator[Event], source: JsonInput) -> Iterator[tuple[int, int, object]]:
    """Yield (number in the document, bytes, item) for the items of a list whose first event has been taken."""
    before = source.read_bytes
    for value in build_values(chain([("start_array", None)], events), 1, source.place):
        source.value_is_read()
        yield source.values, source.read_bytes - before, value
        before = source.read_bytes


def fields_of(events: Iterator[Event], source: JsonInput) -> Iterator[tuple[object, Event]]:
    """Yield (key, first event of the value) for an object whose first event has been taken.

    The other events of the value must be taken before the next field is requested.
    """
    for name, key in events:
        if name == "end_map":
            return
        source.value_start = source.read_bytes
        yield key, next(events)


def skip_value(first: Event, events: Iterator[Event], source: JsonInput) -> None:
    """Take the other events of a value that begins with this one."""
    depth = int(first[0] in STARTS)
    for name, _ in events if depth else ():
        source.value_start = source.read_bytes
        depth += (name in STARTS) - (name in ENDS)
        if not depth:
            return


@contextlib.contextmanager
def json_errors(source: JsonInput, sample: str) -> Iterator[None]:
    """Raise UserError for JSON that is incomplete or invalid. sample: the beginning of the text."""
    try:
        yield
    except ijson.IncompleteJSONError as error:
        if "premature EOF" in str(error):
            raise UserError(
                f"{source.place}: ends in the middle after item {source.values:,} (of {source.read_bytes:,} bytes "
                "read); check the file or download it again"
            ) from None
        raise UserError(_invalid(source, sample)) from None
    except (ijson.JSONError, ArithmeticError, ValueError, SystemError):  # the last three: numbers beyond Python's range
        raise UserError(
            f"{source.place}: is not JSON after item {source.values:,}; correct it or give JSON Lines"
        ) from None


def _invalid(source: JsonInput, sample: str) -> str:
    """Return the message for invalid JSON: what it is, where, and the remedy."""
    position = _first_error(sample)
    if position is None and (constant := _CONSTANT.search(sample)):
        position = constant.start()
    if position is None:
        return f"{source.place}: is not JSON after item {source.values:,}; correct it or give JSON Lines"
    before, after = sample[:position].rstrip(), sample[position:]
    if after[:1] in ("]", "}") and before.endswith(","):
        position = len(before) - 1
        problem = "a comma before a closing bracket, which JSON does not have; delete it"
    elif after.startswith(("//", "/*", "#")):
        problem = "a comment, which JSON does not have; delete it"
    elif after.startswith("'"):
        problem = "single quotes, as in Python's own notation; write the file with json.dumps"
    elif after.startswith(("NaN", "Infinity", "-Infinity")):
        problem = "NaN or Infinity, which JSON does not have; write null"
    else:
        problem = f"is not JSON after item {source.values:,}; correct it"
    line, column = sample.count("\n", 0, position) + 1, position - sample.rfind("\n", 0, position)
    return f"{source.place}, line {line:,}, column {column:,}: {problem}"


def _first_error(sample: str) -> int | None:
    """Return where a text is no JSON, None if that is not within the sample."""
    decoder, position = json.JSONDecoder(), 0
    try:
        while position < len(sample):
            position += len(sample[position:]) - len(sample[position:].lstrip())
            if position < len(sample):
                _, position = decoder.raw_decode(sample, position)
    except json.JSONDecodeError as error:
        position = error.pos
        if sample[position : position + 1] == ",":  # Python 3.13 names the comma itself
            position += len(sample[position + 1 :]) - len(sample[position + 1 :].lstrip()) + 1
        return position if position < len(sample) else None
    except (RecursionError, ValueError):
        pass
    return None

"""A text as input of ijson's parser: a limit on the size of a value, errors of one line, and steps through its events.

The events are those of `ijson.basic_parse`: with the path of each value, as `ijson.parse` gives it, nested lists would
take quadratic memory.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TextIO

import ijson

from chatbot.corpus.reading.values.value_builder import build_values
from chatbot.errors import UserError

MAX_ITEM = 16 * 2**20  # bytes of a value that is held in memory, such as a conversation
STARTS, ENDS = frozenset(("start_array", "start_map")), frozenset(("end_array", "end_map"))

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
    for value in build_values(chain([("start_array", None)], events), 1, source.place):
        source.value_is_read()
        yield value


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
def json_errors(source: JsonInput) -> Iterator[None]:
    """Raise UserError for JSON that is incomplete or invalid."""
    try:
        yield
    except ijson.IncompleteJSONError as error:
        what = "ends in the middle" if "premature EOF" in str(error) else "is not JSON"
        raise UserError(
            f"{source.place}: {what} after item {source.values:,} (of {source.read_bytes:,} bytes read); "
            "check the file or download it again"
        ) from None
    except (ijson.JSONError, ArithmeticError, ValueError, SystemError):  # the last three: numbers beyond Python's range
        raise UserError(
            f"{source.place}: is not JSON after item {source.values:,}; correct it or give JSON Lines"
        ) from None

"""JSON Lines, and JSON documents of any size.

A list is read item by item, an object too large for memory field by field.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TextIO

import ijson
import orjson

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.formats.fields import CONVERSATION, MAX_DEPTH, SEPARATE, Ahead, Walk
from chatbot.corpus.reading.formats.messages import are_replies, kind_of
from chatbot.corpus.reading.formats.records import KNOWN
from chatbot.corpus.reading.formats.values import pairs_in, pairs_of
from chatbot.corpus.reading.open.sources import part_of_key, part_of_object
from chatbot.corpus.reading.open.text_file import TextFile, decoded, lines
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

MAX_NESTED = 32  # of nested lists and objects, which bounds the parser's memory


def build_values(events: Iterable[tuple[str, object]], level: int, place: str) -> Iterator[object]:
    """Yield the values at this level: 0 for whole documents, 1 for the items of one document that is a list.

    An event is (its name in ijson, its scalar). Keys that are not text are dropped with their values.
    Raises UserError for values that are nested too deeply.
    """
    stack: list[list[object]] = []
    for event, scalar in events:
        value = scalar
        if event in ("start_array", "start_map"):
            if len(stack) == MAX_NESTED:
                raise UserError(
                    f"{place}: lists nested more than {MAX_NESTED} deep, so not conversations; give another file"
                )
            stack.append([])
            continue
        if event in ("end_array", "end_map"):
            value = stack.pop()
            if event == "end_map":
                parts = iter(value)
                value = {key: part for key, part in zip(parts, parts, strict=False) if isinstance(key, str)}
            if level and not stack:
                return
        if len(stack) == level:
            yield value
        elif stack:
            stack[-1].append(value)


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


def items_of(events: Iterator[Event], source: JsonInput) -> Iterator[tuple[int, int, object]]:
    """Yield (number in the document, bytes, item) for the items of a list whose first event has been taken."""
    before = source.read_bytes
    for value in build_values(chain([("start_array", None)], events), 1, source.place):
        source.value_is_read()
        yield source.values, source.read_bytes - before, value
        before = source.read_bytes


@contextlib.contextmanager
def json_errors(source: JsonInput) -> Iterator[None]:
    """Raise UserError for JSON that is incomplete or invalid, or has numbers beyond Python's range."""
    try:
        yield
    except (ijson.JSONError, ArithmeticError, ValueError, SystemError):
        raise UserError(
            f"{source.place}: is not JSON after item {source.values:,}, in the first {source.read_bytes:,} bytes; "
            "correct it, download it again or give JSON Lines"
        ) from None


JSON_START = re.compile(r"[\[{]\s*([\"'\[\]{}]|$)")


def is_json_lines(text: TextFile) -> bool:
    """Return whether each line is a JSON value, or the only one an object or a list of utterances."""
    return _json_format(text) == "jsonl"


def is_json(text: TextFile) -> bool:
    """Return whether the text begins as a JSON document of lists and objects does."""
    return _json_format(text) == "json"


def _json_format(text: TextFile) -> str | None:
    lines = [line.strip("\r\n ") for line in text.first_lines if line.strip()]
    values = [_value(line) for line in lines if line[0] in "[{"]
    complete = [value for value in values if value is not None]
    if len(lines) == 1 and complete:
        # A single line is valid in both formats; only a document is a list of conversations.
        utterances = isinstance(complete[0], list) and not any(isinstance(item, list | dict) for item in complete[0])
        return "jsonl" if utterances or isinstance(complete[0], dict) else "json"
    # In a document of several lines, only the last value can be a complete line: the others end in a comma.
    if complete and (_value(lines[0]) is not None or len(complete) * 2 >= len(lines)):
        return "jsonl"
    return "json" if JSON_START.match(lines[0]) and "\t" not in lines[0].strip() else None


def _value(line: str) -> list[object] | dict[str, object] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list | dict) else None


def read_json_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the conversation or record on each line, or of messages with one on each line."""
    values = Ahead(_values(text, options, report))
    walk = Walk(options, report, text.place, lambda: f"{text.place}, line {values.number}")
    return walk.checked(pairs_of_rows(values, walk))


def pairs_of_rows(values: Ahead, walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of values that are conversations or records, or together messages."""
    head = values.head()
    if len(head) > 1 and are_messages(head):
        yield from pairs_in(values, walk)
        return
    for value in values:
        yield from pairs_of(value, walk, alone=len(head) == 1)


def are_messages(head: Sequence[object]) -> bool:
    """Return whether these rows are messages of conversations, one on each."""
    objects = all(isinstance(value, dict) for value in head)
    return objects and bool(are_replies(head) or kind_of(head, False))


def _values(text: TextFile, options: ReadOptions, report: Report) -> Iterator[tuple[int, int, object]]:
    """Yield (number of the line, its length, its value)."""
    loads = orjson.loads
    for number, line in lines(text, report):
        if not line or line.isspace():
            continue
        try:
            value = loads(line)
        except orjson.JSONDecodeError:
            report.drop("lines that are not JSON", f"{text.place}, line {number}")
            continue
        yield number, len(line), part_of_object(value, options.part)


MAX_OBJECT = MAX_ITEM // 2  # bytes of an object that is read as a whole


def read_json(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or more JSON documents.

    Raises UserError when a document is incomplete or invalid, or has a value that is too large.
    """
    source = JsonInput(text.stream, text.place)
    is_list = text.sample.lstrip().startswith("[")
    reader = _Reader(source, options)

    def locate() -> str:
        return f"{text.place}, item {reader.items.number:,}" if is_list else text.place

    walk = reader.walk = Walk(options, report, text.place, locate)

    with json_errors(source):
        yield from walk.checked(decoded(reader.pairs(), text, report, walk.drop))


class _Reader:
    """The walk through the events of a document."""

    walk: Walk

    def __init__(self, source: JsonInput, options: ReadOptions) -> None:
        self.source = source
        self.part = options.part
        self.events: Iterator[Event] = iter(ijson.basic_parse(source, multiple_values=True))
        self.items = Ahead(())  # of the list that is read

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs of all documents."""
        for event in self.events:
            yield from self._pairs_of_value(event, 0)

    def _pairs_of_value(self, first: Event, depth: int) -> Iterator[Pair]:
        """Yield the pairs of one value. first: its first event; the others follow."""
        if first[0] == "start_array":
            yield from self._pairs_of_items(depth, False)
        elif first[0] == "start_map":
            head, complete = self._head(first)
            if complete:
                value = next(build_values(head, 0, self.source.place))
                self.source.value_is_read()
                value = value if depth else part_of_object(value, self.part)
                yield from pairs_of(value, self.walk, depth)
            else:
                self.events = chain(head[1:], self.events)
                yield from self._pairs_of_fields(depth)
        elif first[0] == "string":
            self.source.value_is_read()
            yield from pairs_of(first[1], self.walk, depth)
        else:
            self.source.value_is_read()
            self.walk.drop("values that are not a conversation")

    def _pairs_of_items(self, depth: int, inside: bool, objects: bool = False) -> Iterator[Pair]:
        """Yield the pairs of a list whose first event has been taken. objects: whether its texts are left out."""
        items = items_of(self.events, self.source)
        self.items = Ahead(item for item in items if isinstance(item[2], list | dict)) if objects else Ahead(items)
        yield from pairs_in(self.items, self.walk, depth, inside)

    def _head(self, first: Event) -> tuple[list[Event], bool]:
        """Return the events of an object and True, or its first events and False if it is too large."""
        source, head, depth = self.source, [first], 1
        while depth and source.read_bytes - source.value_start < MAX_OBJECT:
            event = next(self.events, None)
            if event is None:
                break
            head.append(event)
            depth += (event[0] in STARTS) - (event[0] in ENDS)
        return head, not depth

    def _pairs_of_fields(self, depth: int) -> Iterator[Pair]:
        """Yield the pairs of the lists and objects of a large object, whose first event has been taken.

        As in `values.pairs_of`, a list of utterances is a conversation only under a known key. Texts are counted.
        """
        source = self.source
        if depth == MAX_DEPTH:
            raise UserError(f"{source.place}: objects nested more than {MAX_DEPTH} deep; give a list of conversations")
        for name, key in self.events:
            if name == "end_map":
                return
            source.value_start = source.read_bytes
            first = next(self.events)
            if not depth and self.part not in (None, part_of_key(key)):
                self._skip(first)
            elif first[0] == "start_array":
                known = key in CONVERSATION
                yield from self._pairs_of_items(depth + 1, known and key not in SEPARATE, not known)
            elif first[0] == "start_map":
                yield from self._pairs_of_value(first, depth + 1)
            elif first[0] == "string" and not depth and key not in KNOWN:
                self.walk.drop("texts of an object too large to be read as a map of questions")

    def _skip(self, first: Event) -> None:
        """Take the other events of a value that begins with this one."""
        depth = int(first[0] in STARTS)
        while depth:
            name, _ = next(self.events)
            self.source.value_start = self.source.read_bytes
            depth += (name in STARTS) - (name in ENDS)

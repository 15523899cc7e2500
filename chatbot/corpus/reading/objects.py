"""Parsers for JSON, JSON Lines and YAML, which stream the values at a path in a document.

A path (`Place`) is a sequence of steps. A step is a field name, ANY field, or each ITEM of a list. The items of a list
are parsed one at a time, so that a document can be larger than the memory.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TextIO

import ijson
import orjson
import yaml

from chatbot.corpus.reading.layouts import ANY, HEAD, ITEM, Place
from chatbot.corpus.reading.report import Location, ReadOptions
from chatbot.corpus.reading.sources import part_of_key, part_of_object
from chatbot.corpus.reading.text_file import TextFile, lines, read_whole_text
from chatbot.display import one_line
from chatbot.errors import UserError

MAX_NESTED = 32  # maximum nesting depth of lists and objects in a value
MAX_VALUE = 16 * 2**20  # maximum size of a value, such as a conversation, in bytes
Event = tuple[str, Any]
_STARTS = frozenset(("start_array", "start_map"))
_ENDS = frozenset(("end_array", "end_map"))
_WRONG = (ijson.JSONError, ArithmeticError, ValueError, SystemError)


# BaseLoader is used if PyYAML was built without its C extension.
class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """A YAML loader that does not convert numbers, booleans or dates: all scalars except null remain strings."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a dictionary. A null key becomes an empty string."""
        return {key or "": value for key, value in super().construct_mapping(node, deep).items()}


Loader.add_implicit_resolver("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
Loader.add_constructor("null", lambda loader, node: None)
_NAN = re.compile(r"(?<=[:\[,\s])-?(?:NaN|Infinity)(?=\s*[,\]}])")  # missing values written by Python and pandas


def _too_deep(place: str) -> UserError:
    return UserError(
        f"{place}: nested more than {MAX_NESTED} levels deep, so it contains no conversations; give another file"
    )


def values_at(value: object, place: Place) -> Iterator[object]:
    """Yield the parts of a value that are at a path. None is yielded after each list of parts."""
    if not place:
        yield value
        return
    step, *rest = place
    if step is ITEM and isinstance(value, list):
        for item in value:
            yield from values_at(item, (*rest,))
        if not rest:
            yield None
    elif step is not ITEM and isinstance(value, dict):
        for name, part in value.items():
            if step in (name, ANY):
                yield from values_at(part, (*rest,))


def json_lines(text: TextFile, options: ReadOptions, location: Location) -> Iterator[object]:
    """Yield the JSON value of each line. Lines that are not JSON are counted as dropped in the report."""
    loads = orjson.loads
    for number, line in lines(text, location.report):
        if not line or line.isspace():
            continue
        location.number = number
        try:
            value = loads(line)
        except orjson.JSONDecodeError:
            try:
                value = loads(_NAN.sub("null", line))
            except orjson.JSONDecodeError:
                location.drop("lines that are not JSON")
                continue
        yield part_of_object(value, options.part)


@dataclass
class _Source:
    """The input of the JSON parser: a text stream encoded as UTF-8. Limits the size of each value."""

    stream: TextIO
    location: Location
    read_bytes: int = 0
    value_start: int = 0  # approximate byte offset of the current value

    def read(self, size: int) -> bytes:
        """Return the next `size` characters as UTF-8. Raises UserError if the current value is too large."""
        if self.read_bytes - self.value_start > MAX_VALUE:
            raise UserError(
                f"{self.location.place}: an item larger than {MAX_VALUE // 2**20} MiB; split it into conversations, "
                "or give JSON Lines"
            )
        data = self.stream.read(size).encode()
        self.read_bytes += len(data)
        return data


def json_values(
    text: TextFile, options: ReadOptions, steps: Place, location: Location, are_independent: bool = False
) -> Iterator[Any]:
    """Yield the values at a path in one or more JSON documents. None is yielded after each list of values.

    Args:
        text: The documents.
        options: Read options. `part` ("training", "validation" or "test") selects the keys to read.
        steps: The path.
        location: Location of the current value, which is updated.
        are_independent: Whether the values do not form conversations, so that None after lists may be omitted.

    Raises:
        UserError: If a document is incomplete or invalid, or a value is too large.
    """
    source = _Source(text.stream, location)
    try:
        if steps == (ITEM,) and are_independent:  # This case uses ijson's C code, because most large files are lists.
            for value in ijson.items(source, "item", multiple_values=True, use_float=True):
                location.number += 1
                source.value_start = source.read_bytes
                yield value
            return
        events: Iterator[Event] = iter(ijson.basic_parse(source, multiple_values=True, use_float=True))
        for event in events:
            yield from _walk(event, events, steps, source, options.part)
    except _WRONG:
        raise UserError(
            f"{text.place}: is not JSON after item {location.number:,}, in the first {source.read_bytes:,} bytes; "
            "correct it, download it again or give JSON Lines"
        ) from None


def _walk(event: Event, events: Iterator[Event], steps: Place, source: _Source, part: str | None) -> Iterator[Any]:
    """Yield the values at a path inside the value that begins with `event`. None is yielded after each list."""
    if not steps:
        value = build_value(event, events, source.location.place)
        source.location.number += 1
        yield value
        source.value_start = source.read_bytes
    elif steps[0] is ITEM and event[0] == "start_array":
        for event in events:
            if event[0] == "end_array":
                if len(steps) == 1:
                    yield None
                return
            yield from _walk(event, events, steps[1:], source, None)
    elif steps[0] is not ITEM and event[0] == "start_map":
        for name, key in events:
            if name == "end_map":
                return
            inner = next(events)
            if steps[0] in (key, ANY) and part in (None, part_of_key(key)):
                yield from _walk(inner, events, steps[1:], source, None)
            else:
                _skip(inner, events, source)
    else:
        _skip(event, events, source)


def _skip(event: Event, events: Iterator[Event], source: _Source) -> None:
    depth = int(event[0] in _STARTS)
    while depth:
        name, _ = next(events)
        source.value_start = source.read_bytes
        depth += (name in _STARTS) - (name in _ENDS)
    source.value_start = source.read_bytes


def build_value(first: Event, events: Iterator[Event], place: str) -> Any:
    """Build a value from parser events. If the events end early, incomplete parts are omitted.

    Raises:
        UserError: If the value is nested too deeply.
    """
    builder = ijson.ObjectBuilder()
    depth = 0
    for name, scalar in chain((first,), events):
        builder.event(name, scalar)
        depth += (name in _STARTS) - (name in _ENDS)
        if depth > MAX_NESTED:
            raise _too_deep(place)
        if not depth:
            return builder.value
    return _drop_incomplete(builder.value, depth)


def _drop_incomplete(value: Any, depth: int) -> Any:
    """Remove the last item, which may be incomplete, of the lists down to `depth`. A list's only item is kept."""
    inner = value
    for _ in range(depth - 1):
        inner, outer = (inner[-1] if isinstance(inner, list) else [*inner.values()][-1]), inner
        if isinstance(outer, list) and len(outer) > 1:
            outer.pop()
    return value


def json_beginning(text: TextFile) -> list[Any]:
    """Parse the JSON documents at the beginning of a text. Returns an empty list if the text is not JSON."""
    values: list[Any] = []
    events = ijson.basic_parse(text.sample.encode(), multiple_values=True, use_float=True)

    def valid_events() -> Iterator[Event]:
        with contextlib.suppress(*_WRONG):
            yield from events

    valid = valid_events()
    while len(values) < HEAD and (event := next(valid, None)):
        values.append(build_value(event, valid, text.place))
    return values


def yaml_values(text: TextFile) -> list[Any]:
    """Parse the documents of a YAML file. Scalars such as 1 and yes remain strings.

    Raises:
        UserError: If the file contains invalid YAML, aliases, or values that are nested too deeply.
    """
    content = read_whole_text(text, "YAML")
    depth = 0
    try:
        for event in yaml.parse(content, Loader=Loader):
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.AliasEvent):  # Nested aliases can expand to billions of values.
                raise UserError(
                    f"{text.place}, line {line}: an alias (*{one_line(str(event.anchor))}) is not supported; "
                    "write the text itself, in quotes"
                )
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_NESTED:
                raise _too_deep(text.place)
        return [*yaml.load_all(content, Loader=Loader)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{text.place}, line {mark.line + 1}" if mark else text.place
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise UserError(f"{place}: not YAML ({one_line(str(problem))}); correct that line") from None

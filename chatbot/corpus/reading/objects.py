"""Values of JSON, JSON Lines and YAML: the values of a file that a map applies to, streamed; the beginning of a file.

A place says where in a document these values stand, as a path of steps: the name of a field, ANY field, or each ITEM of
a list. Of a list that a map walks, the items are read one by one, so that a chat may be larger than the memory.
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

from chatbot.corpus.reading.report import Located, ReadOptions
from chatbot.corpus.reading.sources import part_of_key, part_of_object
from chatbot.corpus.reading.text_file import TextFile, lines, whole_text
from chatbot.display import one_line
from chatbot.errors import UserError

MAX_NESTED = 32  # of nested lists and objects, which bounds the parser's memory
MAX_VALUE = 16 * 2**20  # bytes of a value that is held in memory, such as a conversation
HEAD = 50  # items of a list, from which its layout is detected
ANY, ITEM = "*", None  # steps of a place, beside the names of fields
Place = tuple[str | None, ...]
Event = tuple[str, Any]
_STARTS = frozenset(("start_array", "start_map"))
_ENDS = frozenset(("end_array", "end_map"))
_WRONG = (ijson.JSONError, ArithmeticError, ValueError, SystemError)


# PyYAML may be installed without its C extension.
class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Reads plain scalars as text, but for null, which is a name of a field as well."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        return {key or "": value for key, value in super().construct_mapping(node, deep).items()}


Loader.add_implicit_resolver("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
Loader.add_constructor("null", lambda loader, node: None)
_NAN = re.compile(r"(?<=[:\[,\s])-?(?:NaN|Infinity)(?=\s*[,\]}])")  # as Python and pandas write a missing number


def _too_deep(place: str) -> UserError:
    return UserError(f"{place}: nested more than {MAX_NESTED} deep, so not conversations; give another file")


def units_of(value: object, place: Place) -> Iterator[object]:
    """Yield the values at this place of a value in memory, and None after each list of them."""
    if not place:
        yield value
        return
    step, *rest = place
    if step is ITEM and isinstance(value, list):
        for item in value:
            yield from units_of(item, (*rest,))
        if not rest:
            yield None
    elif step is not ITEM and isinstance(value, dict):
        for name, part in value.items():
            if step in (name, ANY):
                yield from units_of(part, (*rest,))


def json_lines(text: TextFile, options: ReadOptions, located: Located) -> Iterator[object]:
    """Yield the value of each line; the report counts other lines."""
    loads = orjson.loads
    for number, line in lines(text, located.report):
        if not line or line.isspace():
            continue
        located.number = number
        try:
            value = loads(line)
        except orjson.JSONDecodeError:
            try:
                value = loads(_NAN.sub("null", line))
            except orjson.JSONDecodeError:
                located.drop("lines that are not JSON")
                continue
        yield part_of_object(value, options.part)


@dataclass
class _Source:
    """The text as UTF-8 bytes. The reader tells it when a value is complete."""

    stream: TextIO
    located: Located
    read_bytes: int = 0
    value_start: int = 0  # approximate offset of the current value in bytes

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises UserError when the current value is too large."""
        if self.read_bytes - self.value_start > MAX_VALUE:
            raise UserError(
                f"{self.located.place}: an item larger than {MAX_VALUE // 2**20} MiB; split it into conversations, "
                "or give JSON Lines"
            )
        data = self.stream.read(size).encode()
        self.read_bytes += len(data)
        return data


def json_values(
    text: TextFile, options: ReadOptions, steps: Place, located: Located, are_apart: bool = False
) -> Iterator[Any]:
    """Yield the values at the end of these steps in one or more documents, and None after each list of them.

    are_apart: whether each value stands for itself, so that the ends of lists may be left out.
    Raises UserError when a document is incomplete or invalid, or has a value that is too large.
    """
    source = _Source(text.stream, located)
    try:
        if steps == (ITEM,) and are_apart:  # most large files: ijson builds the items of a list in C
            for value in ijson.items(source, "item", multiple_values=True, use_float=True):
                located.number += 1
                source.value_start = source.read_bytes
                yield value
            return
        events: Iterator[Event] = iter(ijson.basic_parse(source, multiple_values=True, use_float=True))
        for event in events:
            yield from _walk(event, events, steps, source, options.part)
    except _WRONG:
        raise UserError(
            f"{text.place}: is not JSON after item {located.number:,}, in the first {source.read_bytes:,} bytes; "
            "correct it, download it again or give JSON Lines"
        ) from None


def _walk(event: Event, events: Iterator[Event], steps: Place, source: _Source, part: str | None) -> Iterator[Any]:
    """Yield the values at the end of these steps in a value that begins with this event, and None after their list."""
    if not steps:
        value = built(event, events, source.located.place)
        source.located.number += 1
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


def built(first: Event, events: Iterator[Event], place: str) -> Any:
    """Return the value that begins with this event, or what is there of one whose events end early.

    Raises UserError for values that are nested too deeply.
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
    return _without_ends(builder.value, depth)


def _without_ends(value: Any, depth: int) -> Any:
    """Return a value of which so many lists and objects are not complete, without such items of lists of several."""
    inner = value
    for _ in range(depth - 1):
        inner, outer = (inner[-1] if isinstance(inner, list) else [*inner.values()][-1]), inner
        if isinstance(outer, list) and len(outer) > 1:
            outer.pop()
    return value


def json_beginning(text: TextFile) -> list[Any]:
    """Return the first documents of a text, as far as its sample has them; [] for a text that is no JSON."""
    values: list[Any] = []
    events = ijson.basic_parse(text.sample.encode(), multiple_values=True, use_float=True)

    def until_wrong() -> Iterator[Event]:
        with contextlib.suppress(*_WRONG):
            yield from events

    known = until_wrong()
    while len(values) < HEAD and (event := next(known, None)):
        values.append(built(event, known, text.place))
    return values


def yaml_values(text: TextFile) -> list[Any]:
    """Return the documents of a YAML file, with plain scalars ("1", "yes") as text.

    Raises UserError, with the line, for invalid YAML, aliases, and values that are nested too deeply.
    """
    content = whole_text(text, "YAML")
    depth = 0
    try:
        for event in yaml.parse(content, Loader=Loader):
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.AliasEvent):  # a few nested aliases can expand to billions of values
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

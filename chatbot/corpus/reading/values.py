"""Reads pairs from JSON, JSON Lines and YAML files, and from table rows that are dictionaries.

By default, the structure of the values determines which fields are read. Users can instead select two fields with
--columns, or specify an expression with --map.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import orjson

from chatbot.corpus.reading.binary_tables import Table
from chatbot.corpus.reading.layouts import HEAD, ITEM, MESSAGES, NO_PAIR, PAIRS, UNDECLARED, Layout, Place, compile_map
from chatbot.corpus.reading.objects import json_beginning, json_lines, json_values, values_at, yaml_values
from chatbot.corpus.reading.places import (
    ENTRIES,
    PlacedLayout,
    find,
    leaves,
    shape_of,
    suggest_by_columns,
    suggest_by_values,
)
from chatbot.corpus.reading.records import pairs_by_layout
from chatbot.corpus.reading.report import UNUSED_FIELDS, LeftOutError, Location, ReadOptions, Report
from chatbot.corpus.reading.tables import find_header, pairs_of_table
from chatbot.corpus.reading.text_file import MARKUP, TextFile, drop_undecodable
from chatbot.corpus.reading.turns import Pair
from chatbot.display import SHOWN_NAME, listing, one_line
from chatbot.errors import UserError

NO_FIELDS = "files without question and answer"


def read_json_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a JSON Lines file."""
    location = Location("line", text.place, report)
    return pairs_of_values(json_lines(text, options, location), options, location)


def read_json(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or more JSON documents of any size.

    Raises:
        UserError: If a document is incomplete or invalid, or a value is too large.
    """
    location = Location("item", text.place, report)
    head = json_beginning(text)

    def pairs() -> Iterator[Pair]:
        rows = _rows_of(head)
        if header := find_header(rows) if rows else None:
            items = json_values(text, options, (ITEM,), location, are_independent=True)
            numbered = ((location.number, row) for row in items if isinstance(row, list))
            yield from pairs_of_table(Table(text.place, "json", rows, numbered, "item"), header, options, report)
            return
        places = _places(head, options, location)
        place = places[0].place
        layout = places[0].layout
        is_chat = layout.map.is_list and ("time" in layout.map.names or layout.name == UNDECLARED)
        if len(places) == 1 and is_chat and not layout.unfold and layout.map.path is not None:
            values = json_values(text, options, (*place, *layout.map.path, ITEM), location)
            yield from pairs_by_layout(values, layout, options, location, are_items=True)
        else:
            are_independent = not any(each.layout.map.kind is MESSAGES for each in places)
            values = json_values(text, options, place, location, are_independent)
            yield from _read_by_shape(values, places, options, location)

    yield from drop_undecodable(pairs(), text, report, location.drop)


def _rows_of(head: Sequence[Any]) -> list[list[str]]:
    """Return the first rows of a table, if `head` is a table stored as lists of strings, or an empty list."""
    rows = head[0] if head and isinstance(head[0], list) else []
    are_rows = len(rows) > 1 and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    return rows if are_rows and all(isinstance(cell, str) for row in rows for cell in row) else []


def read_yaml(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a YAML file."""
    location = Location("item", text.place, report)
    pairs = pairs_of_values(iter(yaml_values(text)), options, location)
    return drop_undecodable(pairs, text, report, lambda reason: report.drop(reason, text.place))


def pairs_of_values(values: Iterator[Any], options: ReadOptions, location: Location) -> Iterator[Pair]:
    """Yield the pairs of values. Raises UserError if it is unknown how to read the first values."""
    head = [(location.number, value) for value in islice(values, HEAD)]
    places = _places([value for _, value in head], options, location)

    def units() -> Iterator[Any]:
        for location.number, value in head:
            yield from values_at(value, places[0].place)
        if not places[0].place:  # a faster way for most files
            yield from values
        for value in values:
            yield from values_at(value, places[0].place)

    return _read_by_shape(units(), places, options, location)


def _places(head: Sequence[Any], options: ReadOptions, location: Location) -> list[PlacedLayout]:
    """Return the layouts of the first values, and add any doubt to the report.

    Raises:
        UserError: If no layout is found.
    """
    report = location.report
    are_rows = location.unit == "row"  # The keys of rows are column names, so they cannot be questions.
    if options.map:
        user_map = compile_map(options.map)
        place: Place = () if user_map.path == () or not (head and isinstance(head[0], list)) else (ITEM,)
        return [PlacedLayout(place, Layout(user_map))]
    propose = suggest_by_columns(options.columns) if options.columns else None
    places = find(head, propose=propose) or ([] if propose else _guess_places(head))
    if not places or (are_rows and not propose and places[0].layout in ENTRIES.values()):
        raise _unknown_fields_error(head, options, location.place)
    for each in places:
        if each.unused:
            report.warn(
                f"{UNUSED_FIELDS}: {', '.join(one_line(name, SHOWN_NAME) for name in each.unused)}", location.place
            )
    report.doubt = next((found.doubt for found in places if found.doubt), "")
    distinct = [*dict.fromkeys(found.place for found in places)]
    if len(distinct) > 1:
        paths = ", ".join(".".join(step or "[]" for step in steps) for steps in distinct[:4])
        raise UserError(f"{location.place}: pairs in several places, {paths[:80]}; give --map with the one to read")
    return places


def _guess_places(head: Sequence[Any]) -> list[PlacedLayout]:
    """Guess the layouts of objects with unknown keys from their values. Layouts of messages are preferred."""
    places = find(head, propose=suggest_by_values)
    best = min(places, key=lambda found: found.layout.map.kind is PAIRS, default=None)
    return [found for found in places if best and found.place == best.place]


def _read_by_shape(
    units: Iterable[Any], places: Sequence[PlacedLayout], options: ReadOptions, location: Location
) -> Iterator[Pair]:
    """Yield the pairs of values. Each value is read with the layout found for values of the same shape."""
    layouts: dict[object, Layout | None] = {found.shape: found.layout for found in places}
    last: Layout | None = None

    def layout_of(value: Any) -> Layout | None:
        nonlocal last
        if value is not None:  # None ends a list.
            shape = None if None in layouts else shape_of(value)
            if shape not in layouts:
                found = next((each for each in find([value]) if not each.place and not each.doubt), None)
                layouts[shape] = found.layout if found else None
            last = layouts[shape]
        return last

    for layout, group in groupby(units, layout_of):
        if layout is not None:
            yield from pairs_by_layout(group, layout, options, location)
        else:
            for value in group:
                if value is not None:
                    location.drop(NO_PAIR)


def _unknown_fields_error(head: Sequence[Any], options: ReadOptions, place: str) -> UserError:
    """Return the error for values that cannot be read because their fields are unknown. It lists the fields."""
    inner = head
    while inner and all(isinstance(value, list) for value in inner):
        inner = [item for value in inner for item in value]
    objects = [value for value in inner if isinstance(value, dict)]
    if options.columns:
        names = [name for value in objects[:1] for name in value]
        problem = f"{place}: no fields {one_line(' and '.join(options.columns), 40)}"
        return UserError(listing(f"{problem}; give --columns and two of: ", [one_line(n, SHOWN_NAME) for n in names]))
    remedy = "select the data with --map, such as '{question: q, answer: a}'"
    problem = f"{place}: no known question and answer; {remedy}"
    fields = [*dict.fromkeys(one_line(path, SHOWN_NAME) for value in objects for path, _ in leaves(value))]
    return LeftOutError(NO_FIELDS, listing(f"{problem}; fields: ", fields) if fields else problem)


_JSON_START = re.compile(r"[\[{]\s*([\"'\[\]{}]|$)")


def is_json_lines(text: TextFile) -> bool:
    """Return whether a text is JSON Lines. A single line counts only if it is an object or a list of utterances."""
    return _json_format(text) == "jsonl"


def is_json(text: TextFile) -> bool:
    """Return whether a text is JSON, but not JSON Lines."""
    return _json_format(text) == "json"


def _json_format(text: TextFile) -> str | None:
    filled = [line.strip("\r\n ") for line in text.first_lines if line.strip()]
    values = [_value(line) for line in filled if line[0] in "[{"]
    complete = [value for value in values if value is not None]
    if len(filled) == 1 and complete:
        # A single line is valid in both formats. If it is a list of lists or objects, it is treated as JSON.
        is_list = isinstance(complete[0], list) and any(isinstance(item, list | dict) for item in complete[0])
        return "json" if is_list else "jsonl"
    # In a JSON document, lines end in commas, so that at most the last value in a list is valid JSON by itself.
    if complete and (_value(filled[0]) is not None or len(complete) * 2 >= len(filled)):
        return "jsonl"
    return "json" if _JSON_START.match(filled[0]) and "\t" not in filled[0] else None


def _value(line: str) -> list[object] | dict[str, object] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list | dict) else None


_YAML_KEY = r"(?:[^\s:：\"'#-][^:：\n]{0,40}|\"[^\"\n]{0,60}\"|'[^'\n]{0,60}'):(?=\s|$)"
_YAML_START = re.compile(r"(categories|conversations)\s*:|-( +- | +\[|\s*$)")
_YAML_OBJECT = re.compile(rf"- +{_YAML_KEY}.*\n +{_YAML_KEY}")


def is_yaml(text: TextFile) -> bool:
    """Return whether a text is YAML. Without the extension .yaml or .yml, it must be a list of lists or objects."""
    filled = [*islice((s for s in text.first_lines if s.strip() and not s.startswith(("#", "---", "%YAML"))), 2)]
    first = filled[0] if filled else ""
    if "\t" in first or text.ending in MARKUP:
        return False
    has_extension = text.ending in ("yaml", "yml") and re.match(rf"{_YAML_KEY}|-(\s|$)", first)
    return bool(has_extension or _YAML_START.match(first.strip()) or _YAML_OBJECT.match("".join(filled)))

"""The pairs of values: of JSON, JSON Lines and YAML, and of rows that are objects.

Each value is read by the layout that its shape has. The user may name the two fields with --columns, or give a map.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.mapping import compiled, written
from chatbot.corpus.reading.names import key_of
from chatbot.corpus.reading.objects import (
    HEAD,
    ITEM,
    Located,
    Place,
    json_beginning,
    json_entries,
    json_lines,
    units_of,
    yaml_values,
)
from chatbot.corpus.reading.proposals import ENTRIES, Found, are_entries, find, shape_of
from chatbot.corpus.reading.records import NO_PAIR, Layout, pairs_of_entries
from chatbot.corpus.reading.report import UNUSED_FIELDS, ReadOptions, Report, UnknownFieldsError
from chatbot.corpus.reading.rows import Table
from chatbot.corpus.reading.tables import has_known_header, pairs_of_table
from chatbot.corpus.reading.text_file import TextFile, decoded
from chatbot.display import SHOWN_NAME, listing, one_line
from chatbot.errors import UserError


def read_json_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the value on each line."""
    located = Located("line", text.place)
    return pairs_of_values(json_lines(text, options, report, located), options, report, located)


def read_json(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or more JSON documents of any size.

    Raises UserError when a document is incomplete or invalid, or has a value that is too large.
    """
    located = Located("item", text.place)
    head = json_beginning(text)

    def drop(reason: str) -> None:
        report.drop(reason, str(located))

    def pairs() -> Iterator[Pair]:
        if rows := _rows_with_header(head):
            items = json_entries(text, options, (ITEM,), compiled("@"), located)
            numbered = ((located.number, row) for row in items if isinstance(row, list))
            yield from pairs_of_table(Table(text.place, "json", rows, numbered, "item"), options, report)
            return
        places = _places(head, options, report, text.place)
        place, layout = places[0].place, places[0].layout
        if (
            len(places) == 1
            and layout.map.is_list
            and not layout.unfold
            and ("time" in layout.map.names or layout.name == "--map")
        ):
            entries = json_entries(text, options, place, layout.map, located)
            yield from pairs_of_entries(entries, layout, options, report, text.place, drop)
        else:
            values = json_entries(text, options, place, compiled("@"), located)
            yield from _dispatched(values, places, options, report, located)

    yield from decoded(pairs(), text, report, drop)


def _rows_with_header(head: Sequence[Any]) -> list[list[str]]:
    """Return the first rows of a table that is a list of lists, of which the first names the columns; [] for others."""
    rows = head[0] if head and isinstance(head[0], list) else []
    are_rows = len(rows) > 1 and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    if not are_rows or not all(isinstance(cell, str) for row in rows for cell in row):
        return []
    return rows if has_known_header(rows) else []


def read_yaml(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a YAML file."""
    located = Located("item", text.place)
    pairs = pairs_of_values(iter(yaml_values(text)), options, report, located)
    return decoded(pairs, text, report, lambda reason: report.drop(reason, text.place))


def pairs_of_values(values: Iterator[Any], options: ReadOptions, report: Report, located: Located) -> Iterator[Pair]:
    """Yield the pairs of values in memory. Raises UserError if nothing is known of the first ones."""
    head = [*islice(values, HEAD)]
    places = _places(head, options, report, located.place, located.unit == "row")

    def units() -> Iterator[Any]:
        for value in chain(head, values):
            yield from units_of(value, places[0].place)

    return _dispatched(units(), places, options, report, located)


def _places(
    head: Sequence[Any], options: ReadOptions, report: Report, place: str, are_rows: bool = False
) -> list[Found]:
    """Return the layouts of the first values, all at one place, and set the doubt of the report.

    are_rows: whether their keys are the names of columns. Raises UserError if nothing is known of them.
    """
    if options.map:
        found = compiled(options.map)
        at: Place = () if found.path == () or not (head and isinstance(head[0], list)) else (ITEM,)
        return [Found(at, Layout(found))]
    places = _of_columns(head, options.columns) if options.columns else find(head)
    if not places or (are_rows and not options.columns and places[0].layout in ENTRIES.values()):
        raise _unknown(head, options, place)
    for each in places:
        if each.unused:
            report.warn(f"{UNUSED_FIELDS}: {', '.join(one_line(name, SHOWN_NAME) for name in each.unused)}", place)
    report.doubt = next((found.doubt for found in places if found.doubt), "")
    different = [*dict.fromkeys(found.place for found in places)]
    if len(different) > 1:
        named = ", ".join(".".join(step or "[]" for step in steps) for steps in different[:4])
        raise UserError(f"{place}: pairs in several places, {named[:80]}; give --map with the one to read")
    return places


def _dispatched(
    units: Iterable[Any], places: Sequence[Found], options: ReadOptions, report: Report, located: Located
) -> Iterator[Pair]:
    """Yield the pairs of values, each by the layout of its shape."""
    layouts: dict[object, Layout | None] = {found.shape: found.layout for found in places}
    single = places[0].layout if options.map or options.columns else None
    last: Layout | None = None

    def drop(reason: str) -> None:
        report.drop(reason, str(located))

    def layout_of(value: Any) -> Layout | None:
        nonlocal last
        if value is not None:  # the end of a list
            shape = shape_of(value)
            if not single and shape not in layouts:
                found = next((each for each in find([value]) if not each.place and not each.doubt), None)
                layouts[shape] = found.layout if found else None
            last = single or layouts[shape]
        return last

    for layout, group in groupby(units, layout_of):
        if layout is not None:
            entries = _entries(group, layout, drop)
            yield from pairs_of_entries(entries, layout, options, report, located.place, drop)
        else:
            for value in group:
                if value is not None:
                    drop(NO_PAIR)


def _entries(units: Iterable[Any], layout: Layout, drop: Callable[[str], None]) -> Iterator[Any]:
    for unit in units:
        if unit is None:
            yield None
            continue
        results = layout.map.results(layout.unfold(unit) if layout.unfold and isinstance(unit, dict) else unit)
        if not results:
            drop(layout.rejected)
        yield from results
        if layout.map.is_list:
            yield None


def _of_columns(head: Sequence[Any], columns: tuple[str, ...], place: Place = ()) -> list[Found]:
    """Return how the two fields that the user named are read."""
    if not head or len(place) > 3:
        return []
    if all(isinstance(value, list) for value in head):
        return _of_columns([item for value in head for item in value], columns, (*place, ITEM))
    objects = [value for value in head if isinstance(value, dict)]
    if not objects:
        return []
    fields = {key_of(name): name for value in objects for name in reversed(value)}
    if all(key_of(column) in fields for column in columns):
        question, answer = (fields[key_of(column)] for column in columns)
        if all(isinstance(objects[0].get(name), list) for name in (question, answer)):  # the columns of a table
            unfold = functools.partial(_rows_of, question, answer)
            return [Found(place, Layout(compiled("[*].{question: [0], answer: [1]}"), unfold=unfold))]
        return [Found(place, Layout(compiled(written({"question": question, "answer": answer}))))]
    if all(column.isdecimal() for column in columns):
        if columns in ENTRIES and (are_entries(objects) or all(len(value) == 1 for value in objects)):
            return [Found(place, ENTRIES[columns])]
        ordered = [*objects[0]]
        if max(map(int, columns)) <= len(ordered) and all([*value] == ordered for value in objects):
            question, answer = (ordered[int(column) - 1] for column in columns)
            return [Found(place, Layout(compiled(written({"question": question, "answer": answer}))))]
    for name in objects[0]:
        parts = [value[name] for value in objects if isinstance(value.get(name), list | dict)]
        if parts and (found := _of_columns(parts, columns, (*place, name))):
            return found
    return []


def _rows_of(question: str, answer: str, value: dict[str, Any]) -> list[list[Any]]:
    return [[*row] for row in zip(value[question], value[answer], strict=False)]


def _unknown(head: Sequence[Any], options: ReadOptions, place: str) -> UserError:
    """Return the error about values of which nothing is known, with what may be read."""
    inner = head
    while inner and all(isinstance(value, list) for value in inner):
        inner = [item for value in inner for item in value]
    objects = [value for value in inner if isinstance(value, dict)]
    if options.columns:
        names = [name for value in objects[:1] for name in value]
        problem = f"{place}: no fields {one_line(' and '.join(options.columns), 40)}"
        return UserError(listing(f"{problem}; give --columns and two of: ", [one_line(n, SHOWN_NAME) for n in names]))
    texts = [name for value in objects[:1] for name, part in value.items() if isinstance(part, str)]
    if len(texts) > 1:
        problem = f"{place}: no known question and answer; give --columns and two of: "
        return UnknownFieldsError(listing(problem, [one_line(name, SHOWN_NAME) for name in texts]))
    remedy = "say what to read with --map, such as '{question: q, answer: a}'"
    return UnknownFieldsError(f"{place}: no known question and answer; {remedy}")

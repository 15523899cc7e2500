"""The pairs of values: of JSON, JSON Lines and YAML, and of rows that are objects.

Each value is read by the layout that its shape has. The user may name the two fields with --columns, or give a map.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.layouts import NO_PAIR, UNDECLARED, Layout, by_values, leaves
from chatbot.corpus.reading.mapping import MESSAGES, PAIRS, compiled
from chatbot.corpus.reading.objects import (
    HEAD,
    ITEM,
    Place,
    json_beginning,
    json_lines,
    json_values,
    units_of,
    yaml_values,
)
from chatbot.corpus.reading.places import ENTRIES, Found, by_columns, find, shape_of
from chatbot.corpus.reading.records import pairs_of_entries
from chatbot.corpus.reading.report import UNUSED_FIELDS, Located, ReadOptions, Report, UnknownFieldsError
from chatbot.corpus.reading.rows import Table
from chatbot.corpus.reading.tables import of_header, pairs_of_table
from chatbot.corpus.reading.text_file import TextFile, decoded
from chatbot.display import SHOWN_NAME, listing, one_line
from chatbot.errors import UserError


def read_json_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the value on each line."""
    located = Located("line", text.place, report)
    return pairs_of_values(json_lines(text, options, located), options, located)


def read_json(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or more JSON documents of any size.

    Raises UserError when a document is incomplete or invalid, or has a value that is too large.
    """
    located = Located("item", text.place, report)
    head = json_beginning(text)

    def pairs() -> Iterator[Pair]:
        rows = _rows_of(head)
        if header := of_header(rows) if rows else None:
            items = json_values(text, options, (ITEM,), located, are_apart=True)
            numbered = ((located.number, row) for row in items if isinstance(row, list))
            yield from pairs_of_table(Table(text.place, "json", rows, numbered, "item"), header, options, report)
            return
        places = _places(head, options, located)
        place = places[0].place
        layout = places[0].layout
        is_chat = layout.map.is_list and ("time" in layout.map.names or layout.name == UNDECLARED)
        if len(places) == 1 and is_chat and not layout.unfold and layout.map.path is not None:
            values = json_values(text, options, (*place, *layout.map.path, ITEM), located)
            entries = (
                each for value in values for each in ((None,) if value is None else layout.map.results(value, True))
            )
            yield from pairs_of_entries(entries, layout, options, located)
        else:
            are_apart = not any(each.layout.map.kind is MESSAGES for each in places)
            values = json_values(text, options, place, located, are_apart)
            yield from _dispatched(values, places, options, located)

    yield from decoded(pairs(), text, report, located.drop)


def _rows_of(head: Sequence[Any]) -> list[list[str]]:
    """Return the first rows of what may be a table, a list of lists of texts; [] for others."""
    rows = head[0] if head and isinstance(head[0], list) else []
    are_rows = len(rows) > 1 and all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    return rows if are_rows and all(isinstance(cell, str) for row in rows for cell in row) else []


def read_yaml(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a YAML file."""
    located = Located("item", text.place, report)
    pairs = pairs_of_values(iter(yaml_values(text)), options, located)
    return decoded(pairs, text, report, lambda reason: report.drop(reason, text.place))


def pairs_of_values(values: Iterator[Any], options: ReadOptions, located: Located) -> Iterator[Pair]:
    """Yield the pairs of values in memory. Raises UserError if nothing is known of the first ones."""
    head = [(located.number, value) for value in islice(values, HEAD)]
    places = _places([value for _, value in head], options, located)

    def units() -> Iterator[Any]:
        for located.number, value in head:
            yield from units_of(value, places[0].place)
        if not places[0].place:  # as most files have it
            yield from values
        for value in values:
            yield from units_of(value, places[0].place)

    return _dispatched(units(), places, options, located)


def _places(head: Sequence[Any], options: ReadOptions, located: Located) -> list[Found]:
    """Return the layouts of the first values, all at one place, and set the doubt of the report.

    Raises UserError if nothing is known of them.
    """
    report = located.report
    are_rows = located.unit == "row"  # whose keys are the names of columns
    if options.map:
        found = compiled(options.map)
        at: Place = () if found.path == () or not (head and isinstance(head[0], list)) else (ITEM,)
        return [Found(at, Layout(found))]
    given = by_columns(options.columns) if options.columns else None
    places = find(head, propose=given) or ([] if given else _suggested(head))
    if not places or (are_rows and not given and places[0].layout in ENTRIES.values()):
        raise _unknown(head, options, located.place)
    for each in places:
        if each.unused:
            report.warn(
                f"{UNUSED_FIELDS}: {', '.join(one_line(name, SHOWN_NAME) for name in each.unused)}", located.place
            )
    report.doubt = next((found.doubt for found in places if found.doubt), "")
    different = [*dict.fromkeys(found.place for found in places)]
    if len(different) > 1:
        named = ", ".join(".".join(step or "[]" for step in steps) for steps in different[:4])
        raise UserError(f"{located.place}: pairs in several places, {named[:80]}; give --map with the one to read")
    return places


def _suggested(head: Sequence[Any]) -> list[Found]:
    """Return what values without known names may be: of several places, that of messages, or the first one."""
    places = find(head, propose=by_values)
    chosen = min(places, key=lambda found: found.layout.map.kind is PAIRS, default=None)
    return [found for found in places if chosen and found.place == chosen.place]


def _dispatched(
    units: Iterable[Any], places: Sequence[Found], options: ReadOptions, located: Located
) -> Iterator[Pair]:
    """Yield the pairs of values, each by the layout of its shape."""
    layouts: dict[object, Layout | None] = {found.shape: found.layout for found in places}
    single = places[0].layout if places[0].shape is None else None
    last: Layout | None = None

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
            yield from pairs_of_entries(_entries(group, layout, located.drop), layout, options, located)
        else:
            for value in group:
                if value is not None:
                    located.drop(NO_PAIR)


def _entries(units: Iterable[Any], layout: Layout, drop: Callable[[str], None]) -> Iterator[Any]:
    for unit in units:
        if unit is None:
            yield None
            continue
        if layout.unfold and isinstance(unit, dict):
            try:
                unit = layout.unfold(unit)
            except (AttributeError, KeyError, TypeError):  # a later object of another form: it is left out, and counted
                unit = None
        results = layout.map.results(unit)
        if not results:
            drop(layout.rejected)
        yield from results
        if layout.map.is_list:
            yield None


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
    remedy = "say what to read with --map, such as '{question: q, answer: a}'"
    problem = f"{place}: no known question and answer; {remedy}"
    fields = [*dict.fromkeys(one_line(path, SHOWN_NAME) for value in objects for path, _ in leaves(value))]
    return UnknownFieldsError(listing(f"{problem}; fields: ", fields) if fields else problem)

"""JSON documents of any size: a list is read item by item, an object too large for memory field by field."""

from collections.abc import Callable, Iterator
from itertools import chain

import ijson

from chatbot.corpus.reading.files.json_parts import part_of_key, part_of_object
from chatbot.corpus.reading.files.lines import decoded
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.values.conversations import CONTAINERS, MAX_DEPTH, pairs_in, pairs_of
from chatbot.corpus.reading.values.json_input import (
    MAX_ITEM,
    Event,
    JsonInput,
    fields_of,
    items_of,
    json_errors,
    skip_value,
)
from chatbot.corpus.reading.values.value_builder import build_values
from chatbot.corpus.reading.weights import at_place
from chatbot.errors import UserError

# The events and bytes of an object that is read as a whole, which takes some ten megabytes.
MAX_EVENTS = 200_000
MAX_OBJECT = MAX_ITEM // 2

Drop = Callable[[str], None]


def read_json(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or more JSON documents.

    Raises UserError when a document is incomplete or invalid, or has a value that is too large.
    """
    source = JsonInput(text.stream, text.place)
    is_list = text.sample.lstrip().startswith("[")

    def drop(reason: str) -> None:
        report.drop(reason, f"{text.place}, item {source.values}" if is_list else text.place)

    def pairs() -> Iterator[Pair]:
        events: Iterator[Event] = iter(ijson.basic_parse(source, multiple_values=True))
        for event in events:
            yield from _pairs(event, events, source, options, drop)

    with json_errors(source), at_place(lambda: f"{text.place}, item {source.values:,}"):
        yield from decoded(pairs(), text, report, drop)


def _pairs(
    first: Event, events: Iterator[Event], source: JsonInput, options: ReadOptions, drop: Drop, depth: int = 0
) -> Iterator[Pair]:
    """Yield the pairs of one value. first: its first event; the others are taken from `events`."""
    if first[0] == "start_array":
        yield from pairs_in(items_of(events, source), options, drop, depth)
    elif first[0] == "start_map":
        head, complete = _head(first, events, source)
        if complete:
            value = next(build_values(head, 0, source.place))
            source.value_is_read()
            value = value if depth else part_of_object(value, options.part)
            yield from pairs_of(value, options, drop, depth)
        else:
            yield from _pairs_of_fields(chain(head[1:], events), source, options, drop, depth)
    else:
        source.value_is_read()
        drop("values that are not a conversation")


def _head(first: Event, events: Iterator[Event], source: JsonInput) -> tuple[list[Event], bool]:
    """Return the events of an object and True, or its first events and False if it is too large."""
    head, depth = [first], 1
    while depth and len(head) < MAX_EVENTS and source.read_bytes - source.value_start < MAX_OBJECT:
        event = next(events, None)
        if event is None:
            break
        head.append(event)
        depth += (event[0] in ("start_map", "start_array")) - (event[0] in ("end_map", "end_array"))
    return head, not depth


def _pairs_of_fields(
    events: Iterator[Event], source: JsonInput, options: ReadOptions, drop: Drop, depth: int
) -> Iterator[Pair]:
    """Yield the pairs of the lists and objects of a large object, whose first event has been taken.

    As in `conversations.pairs_of`, a list of utterances is a conversation only under a known key.
    """
    if depth == MAX_DEPTH:
        raise UserError(f"{source.place}: objects nested more than {MAX_DEPTH} deep; give a list of conversations")
    for key, first in fields_of(events, source):
        if not depth and options.part not in (None, part_of_key(key)):
            skip_value(first, events, source)
            continue
        if first[0] == "start_array":
            items = items_of(events, source)
            if key not in CONTAINERS:
                items = (item for item in items if isinstance(item, list | dict))
            yield from pairs_in(items, options, drop, depth + 1)
        elif first[0] == "start_map":
            yield from _pairs(first, events, source, options, drop, depth + 1)

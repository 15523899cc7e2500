"""JSON documents of any size: a list is read item by item, an object too large for memory field by field."""

from collections.abc import Iterator, Sequence
from itertools import chain

import ijson

from chatbot.corpus.reading.files.json_parts import part_of_key, part_of_object
from chatbot.corpus.reading.files.lines import decoded
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.values.conversations import pairs_in, pairs_of
from chatbot.corpus.reading.values.fields import CONVERSATION, SEPARATE
from chatbot.corpus.reading.values.json_input import (
    ENDS,
    MAX_ITEM,
    STARTS,
    Event,
    JsonInput,
    fields_of,
    json_errors,
    numbered_items_of,
    skip_value,
)
from chatbot.corpus.reading.values.question_map import pairs_of_entry, reading_of
from chatbot.corpus.reading.values.value_builder import build_values
from chatbot.corpus.reading.values.walk import MAX_DEPTH, Ahead, Walk
from chatbot.errors import UserError

# The events and bytes of an object that is read as a whole, which takes some ten megabytes.
MAX_EVENTS = 200_000
MAX_OBJECT = MAX_ITEM // 2


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

    with json_errors(source, text.sample):
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
                yield from self._pairs_of_fields(depth, _is_question_map(head))
        elif first[0] == "string":
            self.source.value_is_read()
            yield from pairs_of(first[1], self.walk, depth)
        else:
            self.source.value_is_read()
            self.walk.drop("values that are not a conversation")

    def _pairs_of_items(self, depth: int, inside: bool, objects: bool = False) -> Iterator[Pair]:
        """Yield the pairs of a list whose first event has been taken. objects: whether its texts are left out."""
        items = numbered_items_of(self.events, self.source)
        self.items = Ahead(item for item in items if isinstance(item[2], list | dict)) if objects else Ahead(items)
        yield from pairs_in(self.items, self.walk, depth, inside)

    def _head(self, first: Event) -> tuple[list[Event], bool]:
        """Return the events of an object and True, or its first events and False if it is too large."""
        source, head, depth = self.source, [first], 1
        while depth and len(head) < MAX_EVENTS and source.read_bytes - source.value_start < MAX_OBJECT:
            event = next(self.events, None)
            if event is None:
                break
            head.append(event)
            depth += (event[0] in STARTS) - (event[0] in ENDS)
        return head, not depth

    def _pairs_of_fields(self, depth: int, is_question_map: bool) -> Iterator[Pair]:
        """Yield the pairs of the lists and objects of a large object, whose first event has been taken.

        As in `conversations.pairs_of`, a list of utterances is a conversation only under a known key.
        """
        source = self.source
        if depth == MAX_DEPTH:
            raise UserError(f"{source.place}: objects nested more than {MAX_DEPTH} deep; give a list of conversations")
        for key, first in fields_of(self.events, source):
            if not depth and self.part not in (None, part_of_key(key)):
                skip_value(first, self.events, source)
            elif is_question_map:
                value = next(build_values(chain([first], self.events), 0, source.place))
                yield from pairs_of_entry(str(key), value)
            elif first[0] == "start_array":
                known = key in CONVERSATION
                yield from self._pairs_of_items(depth + 1, known and key not in SEPARATE, not known)
            elif first[0] == "start_map":
                yield from self._pairs_of_value(first, depth + 1)


def _is_question_map(head: Sequence[Event]) -> bool:
    """Return whether the first events of an object are those of questions and their answers."""
    depth = last = 0  # the last key, whose value may be incomplete
    for number, (name, _) in enumerate(head):
        depth += (name in STARTS) - (name in ENDS)
        if name == "map_key" and depth == 1:
            last = number
    value = next(build_values([*head[:last], ("end_map", None)], 0, "")) if last else None
    return isinstance(value, dict) and reading_of(value) == "questions"

"""JSON Lines: one JSON value on each line."""

from collections.abc import Iterator, Sequence

import orjson

from chatbot.corpus.reading.files.json_parts import part_of_object
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.values.conversations import pairs_in, pairs_of
from chatbot.corpus.reading.values.messages import kind_of
from chatbot.corpus.reading.values.question_map import reading_of_single
from chatbot.corpus.reading.values.trees import are_replies
from chatbot.corpus.reading.values.walk import Ahead, Walk


def read_json_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the conversation or record on each line, or of messages with one on each line."""
    values = Ahead(_values(text, options, report))
    walk = Walk(options, report, text.place, lambda: f"{text.place}, line {values.number}")
    return walk.checked(pairs_of_rows(values, walk))


def pairs_of_rows(values: Ahead, walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of values that are conversations or records, or together messages or the entries of a map."""
    head = values.head()
    if len(head) > 1 and (are_messages(head) or reading_of_single(head)):
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

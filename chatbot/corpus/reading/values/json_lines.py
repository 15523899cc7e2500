"""JSON Lines: one JSON value on each line."""

from collections.abc import Iterator

import orjson

from chatbot.corpus.reading.files.json_parts import part_of_object
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.values.conversations import pairs_of
from chatbot.corpus.reading.weights import WeightError
from chatbot.errors import UserError


def read_json_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the conversation or record on each line."""
    loads = orjson.loads
    reasons: list[str] = []
    for number, line in lines(text, report):
        if not line or line.isspace():
            continue
        try:
            value = loads(line)
        except orjson.JSONDecodeError:
            report.drop("lines that are not JSON", f"{text.place}, line {number}")
            continue
        try:
            yield from pairs_of(part_of_object(value, options.part), options, reasons.append)
        except WeightError as error:
            raise UserError(f"{text.place}, line {number}: {error}") from None
        if reasons:
            for reason in reasons:
                report.drop(reason, f"{text.place}, line {number}")
            reasons.clear()

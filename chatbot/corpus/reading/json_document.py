"""A JSON document: a list of any size, an item at a time, or an object that fits into memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import ijson

from chatbot.corpus.reading.conversations import pairs_in, pairs_of
from chatbot.corpus.reading.lines import Pair, decoded
from chatbot.corpus.reading.nested import built
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text import Text
from chatbot.errors import UserError

LARGEST_ITEM = 16 * 2**20  # bytes of one item of a list
LARGEST_OBJECT = 64 * 2**20  # bytes of a document that is an object


@dataclass
class _Input:
    """The text as ijson reads it, in UTF-8, and no more of it than one value may take."""

    stream: TextIO
    refusal: str
    allowance: int
    taken: int = 0  # bytes
    value_start: int = 0  # where the current value begins, about
    values: int = 0  # read so far

    def read(self, size: int) -> bytes:
        if self.taken - self.value_start > self.allowance:
            raise UserError(self.refusal)
        data = self.stream.read(size).encode()
        self.taken += len(data)
        return data


def read_json(text: Text, columns: tuple[str, ...], report: Report) -> Iterator[Pair]:
    """The pairs of a JSON document, or of several after each other.

    Raises UserError where it ends too early, stops being JSON, or has a value that is too large.
    """
    is_list = text.sample.lstrip().startswith("[")
    if is_list:
        refusal, allowance = f"an item larger than {LARGEST_ITEM // 2**20} MiB; cut it into conversations", LARGEST_ITEM
    else:
        refusal = f"an object larger than {LARGEST_OBJECT // 2**20} MiB; give a list of conversations, or JSON Lines"
        allowance = LARGEST_OBJECT
    source = _Input(text.stream, f"{text.place}: {refusal}", allowance)

    def drop(reason: str) -> None:
        report.drop(reason, f"{text.place}, item {source.values}" if is_list else text.place)

    def values() -> Iterator[object]:
        events = ijson.basic_parse(source, multiple_values=True)
        for value in built(events, int(is_list), text.place):
            source.values += 1
            source.value_start = source.taken
            yield value

    def pairs() -> Iterator[Pair]:
        if is_list:
            yield from pairs_in(values(), columns, drop)
        else:
            for value in values():
                yield from pairs_of(value, columns, drop)

    try:
        yield from decoded(pairs(), text, report, drop)
    except ijson.IncompleteJSONError as error:
        what = "ends in the middle" if "premature EOF" in str(error) else "is not JSON"
        raise UserError(
            f"{text.place}: {what} after item {source.values:,} (of {source.taken:,} bytes read); was it fetched whole?"
        ) from None
    except (ijson.JSONError, ArithmeticError, ValueError, SystemError):  # the last three: numbers beyond Python's
        raise UserError(f"{text.place}: is not JSON after item {source.values:,}; mend it or give JSON Lines") from None

"""JSON documents: a list of any size, read item by item, or an object that fits into memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import ijson

from chatbot.corpus.reading.conversations import pairs_in, pairs_of
from chatbot.corpus.reading.json_parts import part_of_object
from chatbot.corpus.reading.lines import Pair, decoded
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import TextFile
from chatbot.corpus.reading.value_builder import build_values
from chatbot.errors import UserError

MAX_ITEM = 16 * 2**20  # bytes of one item of a list
MAX_OBJECT = 64 * 2**20  # bytes of a document that is an object


@dataclass
class _Input:
    """The text as UTF-8 bytes, as ijson reads it, with a limit on the bytes of one value."""

    stream: TextIO
    refusal: str  # the message of the error for a value that is too large
    allowance: int  # bytes
    read_bytes: int = 0
    value_start: int = 0  # approximate offset of the current value in bytes
    values: int = 0  # read so far

    def read(self, size: int) -> bytes:
        if self.read_bytes - self.value_start > self.allowance:
            raise UserError(self.refusal)
        data = self.stream.read(size).encode()
        self.read_bytes += len(data)
        return data


def read_json(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or more JSON documents.

    Raises UserError when a document is incomplete or invalid, or has a value that is too large.
    """
    is_list = text.sample.lstrip().startswith("[")
    if is_list:
        refusal, allowance = f"an item larger than {MAX_ITEM // 2**20} MiB; split it into conversations", MAX_ITEM
    else:
        refusal = f"an object larger than {MAX_OBJECT // 2**20} MiB; give a list of conversations, or JSON Lines"
        allowance = MAX_OBJECT
    source = _Input(text.stream, f"{text.place}: {refusal}", allowance)

    def drop(reason: str) -> None:
        report.drop(reason, f"{text.place}, item {source.values}" if is_list else text.place)

    def values() -> Iterator[object]:
        events = ijson.basic_parse(source, multiple_values=True)
        for value in build_values(events, int(is_list), text.place):
            source.values += 1
            source.value_start = source.read_bytes
            yield value

    def pairs() -> Iterator[Pair]:
        if is_list:
            yield from pairs_in(values(), options.columns, drop)
        else:
            for value in values():
                value = part_of_object(value, options.part)
                yield from pairs_of(value, options.columns, drop)

    try:
        yield from decoded(pairs(), text, report, drop)
    except ijson.IncompleteJSONError as error:
        what = "ends in the middle" if "premature EOF" in str(error) else "is not JSON"
        raise UserError(
            f"{text.place}: {what} after item {source.values:,} (of {source.read_bytes:,} bytes read); "
            "check the file or download it again"
        ) from None
    except (ijson.JSONError, ArithmeticError, ValueError, SystemError):  # the last three: numbers beyond Python's range
        raise UserError(
            f"{text.place}: is not JSON after item {source.values:,}; correct it or give JSON Lines"
        ) from None

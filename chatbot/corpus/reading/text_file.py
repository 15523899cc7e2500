"""Text files, opened for reading: decompressed, decoded, with a sample of the beginning."""

import codecs
import contextlib
import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatbot.corpus.reading.archive import members
from chatbot.corpus.reading.charset import detect_encoding
from chatbot.corpus.reading.compression import Stream, decompress
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

SAMPLE = 256 * 2**10  # bytes
FIRST_LINES = 2000
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class TextFile:
    """A text that can be read once, from its beginning."""

    place: str  # for messages: "a.tsv", "a.zip: b.tsv"
    stream: io.TextIOWrapper  # with U+FFFD for bytes that could not be decoded
    sample: str  # the beginning; its last line may be incomplete
    whole: bool  # whether the sample is the whole text
    encoding: str  # name for messages


def open_text_files(
    path: Path, name: str, report: Report, wanted: Sequence[str] = (), encoding: str | None = None
) -> Generator[TextFile, None, None]:
    """Yield the text of a file, or the texts in a zip file. Updates report.read_bytes.

    wanted: the file names to read from a zip file, in this order; () for all. encoding: one of Python's codecs; None
    to detect it.

    Each text must be read before the next is requested. Raises UserError for data that cannot be decompressed.
    """
    with path.open("rb") as file:
        if file.peek(4)[:4] not in (b"PK\3\4", b"PK\5\6"):
            with contextlib.closing(decompress(file, name, path.stat().st_size, report)) as stream:
                yield _text(name, stream, encoding)
            return
    for place, stream in members(path, name, report, wanted):
        yield _text(place, stream, encoding)


def first_lines(text: TextFile) -> list[str]:
    """Return the first lines with their line ends; an incomplete one only if there is no other."""
    lines = [line + "\n" for line in text.sample.split("\n", FIRST_LINES)]
    # The last element is an incomplete line, the rest of the sample, or empty after the last line end.
    is_rest = len(lines) > FIRST_LINES or not text.whole or lines[-1] == "\n"
    return lines[:-1] if is_rest and len(lines) > 1 else lines


def _text(place: str, stream: Stream, encoding: str | None) -> TextFile:
    buffered = io.BufferedReader(stream, SAMPLE)
    head = buffered.peek()  # fills the whole buffer without consuming it
    whole = len(head) < SAMPLE
    codec, name = detect_encoding(head) if encoding is None else (encoding, encoding)
    try:
        sample = codecs.getincrementaldecoder(codec)("replace").decode(head, whole)
    except UnicodeError as error:  # "utf-16" and "utf-32" need a byte order mark
        remedy = f"give --encoding {codec}-le or {codec}-be"
        raise UserError(f"{place}: cannot be read as {codec} ({error}); {remedy}") from None
    if sample.startswith(BYTE_ORDER_MARK):  # the codec of an encoding that was given may keep it
        buffered.read(len(BYTE_ORDER_MARK.encode(codec)) - len("".encode(codec)))
        sample = sample[1:]
    # Old Macintosh files end their lines with a carriage return alone.
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    decoded = io.TextIOWrapper(buffered, codec, errors="replace", newline=newline)
    return TextFile(place, decoded, sample.replace("\r", "\n") if newline == "\r" else sample, whole, name)

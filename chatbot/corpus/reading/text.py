"""A text file ready to be read: unpacked, its encoding found, its beginning at hand."""

import contextlib
import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatbot.corpus.reading.archive import members
from chatbot.corpus.reading.encoding import encoding_of
from chatbot.corpus.reading.packed import Stream, unpacked
from chatbot.corpus.reading.report import Report

SAMPLE = 256 * 2**10  # bytes
FIRST_LINES = 2000


@dataclass(frozen=True)
class Text:
    """A text to be read from its beginning, once."""

    place: str  # as the user would name it: "a.tsv", "a.zip: b.tsv"
    stream: io.TextIOWrapper  # U+FFFD stands where bytes could not be decoded
    sample: str  # its beginning; the last line may be cut
    whole: bool  # whether the sample is all of it
    encoding: str  # as people name it


def texts(path: Path, name: str, report: Report, wanted: Sequence[str] = ()) -> Generator[Text, None, None]:
    """The one text of a file, or each of a zip file (or those wanted by file name). Counts report.read_bytes.

    A text is to be read before the next is asked for. Raises UserError for packed data that cannot be unpacked.
    """
    with path.open("rb") as file:
        if file.peek(4)[:4] not in (b"PK\3\4", b"PK\5\6"):
            with contextlib.closing(unpacked(file, name, path.stat().st_size, report)) as stream:
                yield _text(name, stream)
            return
    for place, stream in members(path, name, report, wanted):
        yield _text(place, stream)


def first_lines(text: Text) -> list[str]:
    """The lines at the text's beginning, with their ends; none that is cut, unless there is no other."""
    lines = [line + "\n" for line in text.sample.split("\n", FIRST_LINES)]
    # The last is a cut line, what is beyond the first lines, or the nothing after the last line's end.
    is_rest = len(lines) > FIRST_LINES or not text.whole or lines[-1] == "\n"
    return lines[:-1] if is_rest and len(lines) > 1 else lines


def _text(place: str, stream: Stream) -> Text:
    buffered = io.BufferedReader(stream, SAMPLE)
    head = buffered.peek()  # fills the whole buffer, and nothing is lost for those who read after
    whole = len(head) < SAMPLE
    codec, name = encoding_of(head)
    sample = head.decode(codec, "replace")
    # Old Macintosh files end their lines with a carriage return alone.
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    decoded = io.TextIOWrapper(buffered, codec, errors="replace", newline=newline)
    return Text(place, decoded, sample.replace("\r", "\n") if newline == "\r" else sample, whole, name)

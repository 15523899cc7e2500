"""Text files, opened for reading: decompressed, decoded, with a sample of the beginning."""

import codecs
import contextlib
import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chatbot.corpus.reading.files.archive import ZIP, is_tar, tar_members, zip_members
from chatbot.corpus.reading.files.charset import detect_encoding
from chatbot.corpus.reading.files.compression import decompress
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

SAMPLE = 256 * 2**10  # bytes
FIRST_LINES = 2000
BYTE_ORDER_MARK = "\ufeff"


# The first bytes of content that is no text, for messages.
PACKED = (
    *((magic, "zip file") for magic in ZIP),
    *((b"\x1f\x8b", "gzip file"), (b"BZh", "bzip2 file"), (b"\xfd7zXZ\0", "xz file")),
    *((b"PAR1", "Parquet file"), (b"7z\xbc\xaf", "7z file"), (b"Rar!", "rar file")),
)


@dataclass(frozen=True)
class TextFile:
    """A text that can be read once, from its beginning."""

    place: str  # for messages: "a.tsv", "a.zip: b.tsv"
    stream: io.TextIOWrapper  # with U+FFFD for bytes that could not be decoded
    sample: str  # the beginning; its last line may be incomplete
    whole: bool  # whether the sample is the whole text
    encoding: str  # name for messages
    member: str = ""  # its name in an archive
    packed: str = ""  # "zip file" for the content of a zip file inside another archive; "" for text


class OpenFile(NamedTuple):
    """The decompressed content of a file, or of a member of an archive."""

    member: str  # its name in the archive, "" for a file that is no archive
    place: str
    stream: io.BufferedReader  # that has read its first SAMPLE bytes


def open_files(path: Path, name: str, report: Report, wanted: Sequence[str] = ()) -> Generator[OpenFile, None, None]:
    """Yield the content of a file, or of the members of a zip or tar file. Updates report.read_bytes.

    wanted: the names of the members to read from an archive; () for all.

    Each content must be read before the next is requested. Raises UserError for data that cannot be decompressed.
    """
    with path.open("rb") as file:
        if file.peek(4)[:4] in ZIP:
            for member in zip_members(path, name, report, wanted):
                yield OpenFile(member.name, member.place, _buffered(member.stream))
            return
        size, before = path.stat().st_size, report.read_bytes
        with contextlib.closing(decompress(file, name, size, report)) as stream:
            buffered = _buffered(stream)
            if is_tar(buffered.peek()):
                for member in tar_members(buffered, name, wanted):
                    yield OpenFile(member.name, member.place, _buffered(member.stream))
                report.read_bytes = before + size
            else:
                yield OpenFile("", name, buffered)


def open_text_files(
    path: Path, name: str, report: Report, wanted: Sequence[str] = (), encoding: str | None = None
) -> Generator[TextFile, None, None]:
    """Yield the text of a file, or the texts in an archive, as `open_files` does.

    encoding: one of Python's codecs; None to detect it.
    """
    for file in open_files(path, name, report, wanted):
        yield _text(file, encoding)


def _buffered(stream: io.RawIOBase) -> io.BufferedReader:
    buffered: io.BufferedReader = io.BufferedReader(stream, SAMPLE)
    buffered.peek()  # fills the whole buffer without consuming it
    return buffered


def first_lines(text: TextFile) -> list[str]:
    """Return the first lines with their line ends; an incomplete one only if there is no other."""
    lines = [line + "\n" for line in text.sample.split("\n", FIRST_LINES)]
    # The last element is an incomplete line, the rest of the sample, or empty after the last line end.
    is_rest = len(lines) > FIRST_LINES or not text.whole or lines[-1] == "\n"
    return lines[:-1] if is_rest and len(lines) > 1 else lines


def _text(file: OpenFile, encoding: str | None) -> TextFile:
    head = file.stream.peek()
    whole = len(head) < SAMPLE
    codec, name = detect_encoding(head) if encoding is None else (encoding, encoding)
    try:
        sample = codecs.getincrementaldecoder(codec)("replace").decode(head, whole)
    except UnicodeError as error:  # "utf-16" and "utf-32" need a byte order mark
        remedy = f"give --encoding {codec}-le or {codec}-be"
        raise UserError(f"{file.place}: cannot be read as {codec} ({error}); {remedy}") from None
    if sample.startswith(BYTE_ORDER_MARK):  # the codec of an encoding that was given may keep it
        file.stream.read(len(BYTE_ORDER_MARK.encode(codec)) - len("".encode(codec)))
        sample = sample[1:]
    # Old Macintosh files end their lines with a carriage return alone.
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    decoded = io.TextIOWrapper(file.stream, codec, errors="replace", newline=newline)
    packed = next((kind for magic, kind in PACKED if head.startswith(magic)), "tar file" if is_tar(head) else "")
    sample = sample.replace("\r", "\n") if newline == "\r" else sample
    return TextFile(file.place, decoded, sample, whole, name, file.member, packed)

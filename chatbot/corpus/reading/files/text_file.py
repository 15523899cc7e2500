"""Text files, opened for reading: decompressed, decoded, with a sample of the beginning."""

import codecs
import contextlib
import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from chatbot.corpus.reading.files.archive import is_tar, tar_members, zip_members
from chatbot.corpus.reading.files.charset import detect_encoding
from chatbot.corpus.reading.files.compression import decompress
from chatbot.corpus.reading.files.damage import damage_of
from chatbot.corpus.reading.files.file_kinds import OLE, UNPACK, ZIP, kind_of
from chatbot.corpus.reading.files.workbooks import is_workbook, sheets
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

SAMPLE = 256 * 2**10  # bytes
FIRST_LINES = 2000
SEPARATORS = "\t,;|"
BYTE_ORDER_MARK = "\ufeff"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class TextFile:
    """A text that can be read once, from its beginning."""

    place: str  # for messages: "a.tsv", "a.zip: b.tsv"
    stream: io.TextIOWrapper  # with U+FFFD for bytes that could not be decoded
    sample: str  # the beginning; its last line may be incomplete
    whole: bool  # whether the sample is the whole text
    encoding: str  # name for messages
    ending: str = ""  # of its name without that of a compression, in small letters: "csv" for A.CSV.gz
    member: str = ""  # its name in an archive
    damage: str = ""  # what happened to the text before it was saved, and the remedy
    binary: str = ""  # what it is and what to do, for a file that is no text, such as one of an archive in an archive


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
        if file.peek(4)[:4] in (*ZIP, OLE[:4]):
            read = sheets if is_workbook(path) else zip_members
            for member in read(path, name, report, wanted):
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
    encoding = "utf-8" if is_workbook(path) else encoding
    for file in open_files(path, name, report, wanted):
        yield _text(file, encoding, _ending(file.member or path.name))


def _ending(name: str) -> str:
    *_, ending = ["", *(suffix for suffix in PurePosixPath(name.lower()).suffixes if suffix not in COMPRESSED)]
    return ending[1:]


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


def _newline_of(sample: str) -> str | None:
    """Return how lines end, as io.TextIOWrapper wants it; None for line feeds and carriage returns in one table.

    Old Macintosh files end their lines with a carriage return alone. Among line feeds, one is text, or white space,
    unless the pieces on either side have as many columns as the other lines.
    """
    if "\r" not in sample or "\n" not in sample:
        return "\r" if "\r" in sample else "\n"
    lines = [line for line in sample.replace("\r\n", "\n").split("\n")[:FIRST_LINES] if line.strip()]
    pieces = [piece for line in lines if "\r" in line for piece in line.split("\r")]
    counts = {tuple(map(piece.count, SEPARATORS)) for piece in pieces if piece.strip()}
    others = {tuple(map(line.count, SEPARATORS)) for line in lines if "\r" not in line}
    return None if len(counts) == 1 and any(*counts) and counts & others else "\n"


def _text(file: OpenFile, encoding: str | None, ending: str) -> TextFile:
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
    newline = _newline_of(sample)
    decoded = io.TextIOWrapper(file.stream, codec, errors="replace", newline=newline)
    sample = sample if newline == "\n" else sample.replace("\r\n", "\n").replace("\r", "\n")
    damage = damage_of(sample, head) if codec in ("utf-8", "utf-8-sig") and encoding is None else ""
    binary = kind_of(head) or (f"a tar file, {UNPACK}" if is_tar(head) else "")
    return TextFile(file.place, decoded, sample, whole, name, ending, file.member, damage, binary)

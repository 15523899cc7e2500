"""Text files, opened for reading: decompressed, decoded, with a sample of the beginning; their lines."""

import codecs
import contextlib
import functools
import io
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair, without_lost
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.open.archive import is_tar, tar_members, zip_members
from chatbot.corpus.reading.open.charset import damage_of, detect_charset
from chatbot.corpus.reading.open.compression import decompress
from chatbot.corpus.reading.open.file_kinds import CONVERT, NO_TEXT, OLE, ZIP
from chatbot.corpus.reading.open.workbooks import is_workbook, sheets
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

SAMPLE = 256 * 2**10  # bytes
FIRST_LINES = 2000
BYTE_ORDER_MARK = "\ufeff"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class TextFile:
    """A text that can be read once, from its beginning."""

    place: str  # for messages: "a.tsv", "a.zip: b.tsv"
    stream: io.TextIOWrapper  # with U+FFFD for bytes that could not be decoded
    sample: str  # the beginning; its last line may be incomplete
    whole: bool  # whether the sample is the whole text
    charset: str  # name for messages
    ending: str = ""  # of its name without that of a compression, in small letters: "csv" for A.CSV.gz
    member: str = ""  # its name in an archive
    damage: str = ""  # why it is no text, or what happened to it before it was saved, and the remedy

    @functools.cached_property
    def first_lines(self) -> list[str]:
        """The first lines with their line ends; an incomplete one only if there is no other."""
        lines = [line + "\n" for line in self.sample.split("\n", FIRST_LINES)]
        # The last element is an incomplete line, the rest of the sample, or empty after the last line end.
        is_rest = len(lines) > FIRST_LINES or not self.whole or lines[-1] == "\n"
        return lines[:-1] if is_rest and len(lines) > 1 else lines


class OpenFile(NamedTuple):
    """The decompressed content of a file, or of a member of an archive."""

    member: str  # its name in the archive, "" for a file that is no archive
    place: str
    stream: io.BufferedReader  # that has read its first SAMPLE bytes


def open_files(path: Path, name: str, report: Report, members: Sequence[str] = ()) -> Generator[OpenFile, None, None]:
    """Yield the content of a file, or of the members of a zip or tar file. Updates report.read_bytes.

    members: the names of the members to read from an archive; () for all.

    Each content must be read before the next is requested. Raises UserError for data that cannot be decompressed.
    """
    with path.open("rb") as file:
        if file.peek(4)[:4] in (*ZIP, OLE[:4]):
            read = sheets if is_workbook(path) else zip_members
            for member in read(path, name, report, members):
                yield OpenFile(member.name, member.place, _buffered(member.stream))
            return
        size, before = path.stat().st_size, report.read_bytes
        with contextlib.closing(decompress(file, name, size, report)) as stream:
            buffered = _buffered(stream)
            if is_tar(buffered.peek()):
                for member in tar_members(buffered, name, members):
                    yield OpenFile(member.name, member.place, _buffered(member.stream))
                report.read_bytes = before + size
            else:
                yield OpenFile("", name, buffered)


def open_text_files(
    path: Path, name: str, report: Report, members: Sequence[str] = (), charset: str | None = None
) -> Generator[TextFile, None, None]:
    """Yield the text of a file, or the texts in an archive, as `open_files` does.

    charset: one of Python's codecs; None to detect it.
    """
    charset = "utf-8" if is_workbook(path) else charset
    for file in open_files(path, name, report, members):
        yield _text(file, charset, _ending(file.member or path.name))


def _ending(name: str) -> str:
    *_, ending = ["", *(suffix for suffix in PurePosixPath(name.lower()).suffixes if suffix not in COMPRESSED)]
    return ending[1:]


def _buffered(stream: io.RawIOBase) -> io.BufferedReader:
    buffered: io.BufferedReader = io.BufferedReader(stream, SAMPLE)
    buffered.peek()  # fills the whole buffer without consuming it
    return buffered


def _text(file: OpenFile, charset: str | None, ending: str) -> TextFile:
    head = file.stream.peek()
    whole = len(head) < SAMPLE
    codec, name = detect_charset(head) if charset is None else (charset, charset)
    try:
        sample = codecs.getincrementaldecoder(codec)("replace").decode(head, whole)
    except UnicodeError as error:  # "utf-16" and "utf-32" need a byte order mark
        remedy = f"give --encoding {codec}-le or {codec}-be"
        raise UserError(f"{file.place}: cannot be read as {codec} ({error}); {remedy}") from None
    if sample.startswith(BYTE_ORDER_MARK):  # the codec of a charset that was given may keep it
        file.stream.read(len(BYTE_ORDER_MARK.encode(codec)) - len("".encode(codec)))
        sample = sample[1:]
    newline = "\n" if "\n" in sample else None  # old Macintosh files end their lines with a carriage return
    decoded = io.TextIOWrapper(file.stream, codec, errors="replace", newline=newline)
    sample = sample if newline == "\n" else sample.replace("\r\n", "\n").replace("\r", "\n")
    damage = damage_of(sample, head) if codec in ("utf-8", "utf-8-sig") and charset is None else ""
    if head.startswith(NO_TEXT) or is_tar(head):
        begins = one_line(head[:8].decode("latin-1"))
        damage = f"no text, it begins with {begins!r}, {CONVERT}"
    return TextFile(file.place, decoded, sample, whole, name, ending, file.member, damage)


MAX_LINE = 2**20  # characters
MAX_CHARACTERS = 64 * 2**20  # of a text that is held in memory
MANY_NUL = 0.1  # of the characters of a line; fewer are stray ones, and are left out
UNDECODABLE = "\ufffd"


_RULE = re.compile(r"\s*[-=*#_~+—─]{3,}(?:\s*[^-=*#_~+—─]{1,40}[-=*#_~+—─]{3,})?\s*")


def is_rule(line: str) -> bool:
    """Return whether a line is drawn to separate others, with a title or without: "-----", "=== 2 ==="."""
    return _RULE.fullmatch(line[:200]) is not None


def raw_lines(text: TextFile, report: Report) -> Iterator[str]:
    """Yield each line with its line end, or "" for a line that is too long or full of NUL, which the report counts."""
    readline = functools.partial(text.stream.readline, MAX_LINE + 1)
    for number, line in enumerate(iter(readline, ""), start=1):
        if len(line) > MAX_LINE and line[-1] not in "\r\n":
            while (part := readline()) and part[-1] not in "\r\n":
                pass
            report.drop(f"lines longer than {MAX_LINE:,} characters", f"{text.place}, line {number}")
            yield ""
        elif "\0" in line and line.count("\0") <= MANY_NUL * len(line):
            yield line.replace("\0", "")
        elif "\0" in line:
            report.drop("lines with NUL characters", f"{text.place}, line {number}")
            yield ""
        else:
            yield line


def lines(text: TextFile, report: Report) -> Iterator[tuple[int, str | None]]:
    """Yield (number from 1, line without its line end), with None for an unusable line, which the report counts.

    Raises UserError at the end if more than half of the lines that are not blank are unusable.
    """
    bad = blank = number = 0
    for number, raw in enumerate(raw_lines(text, report), start=1):
        line = raw.rstrip("\r\n")
        if UNDECODABLE in line:
            report.drop(f"lines not {text.charset}", f"{text.place}, line {number}")
            bad += 1
            yield number, None
        elif line:
            yield number, line
        elif raw:
            blank += 1
            yield number, line
        else:
            bad += 1
            yield number, None
    refuse_if_mostly_bad(text, report, bad, number - blank)


def decoded(pairs: Iterable[Pair], text: TextFile, report: Report, drop: Callable[[str], None]) -> Iterator[Pair]:
    """Yield the pairs that could be decoded, and count the others; for formats that are not read line by line.

    Raises UserError at the end if more than half of the pairs could not be decoded.
    """
    bad = count = 0

    def lost() -> None:
        nonlocal bad
        bad += 1
        drop(f"pairs not {text.charset}")

    for pair in without_lost(pairs, UNDECODABLE, lost):
        count += 1
        yield pair
    refuse_if_mostly_bad(text, report, bad, bad + count)


def refuse_if_mostly_bad(text: TextFile, report: Report, bad: int, count: int) -> None:
    """Raise UserError when more than half of the lines (or pairs) are bad."""
    if bad * 2 > count:
        raise UserError(
            f"{text.place}: read as {text.charset}, {bad:,} of {count:,} lines cannot be used "
            f"({'; '.join(report.lines()[:3])}); name the encoding with --encoding, or save the whole file as UTF-8"
        )


def whole_text(text: TextFile, content: str) -> str:
    """Return a text that is held in memory. content: for the UserError if it is too large, such as "YAML"."""
    whole = text.stream.read(MAX_CHARACTERS + 1)
    if len(whole) > MAX_CHARACTERS:
        raise UserError(f"{text.place}: more than {MAX_CHARACTERS // 2**20} MiB of {content}; give JSON Lines or TSV")
    return whole


def read_word_list(path: str, kind: str) -> tuple[str, str]:
    """Return (the text of the file, the displayed name of its charset), which is detected as that of data.

    kind: for messages, such as "block list". Raises UserError when the file cannot be read or decoded.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {kind} cannot be read ({error.strerror})") from None
    codec, name = detect_charset(content)
    text = codecs.decode(content, codec, "replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if UNDECODABLE in line:
            raise UserError(
                f"{path}: {kind} read as {name}, but line {number} is not; save it as UTF-8, one word a line"
            )
    return text, name

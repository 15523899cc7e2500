"""Text files, opened for reading: decompressed, decoded, with a sample of the beginning; their lines."""

import codecs
import functools
import io
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath

from chatbot.corpus.reading.charset import COMPARED, damage_of, detect_charset
from chatbot.corpus.reading.containers import (
    CHUNK,
    CONVERT,
    NOT_OPENED,
    SAMPLE,
    OpenFile,
    Stream,
    open_files,
    opener_of,
)
from chatbot.corpus.reading.conversation import Pair, without_lost
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

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
    charsets: list[str]  # names for messages; the last one grows known while a text that begins in ASCII is read
    ending: str = ""  # of its name without that of a compression, in small letters: "csv" for A.CSV.gz
    member: str = ""  # its name in an archive
    damage: str = ""  # why it is no text, or what happened to it before it was saved, and the remedy
    details: tuple[str, ...] = ()  # lines to show with the damage

    @property
    def charset(self) -> str:
        """The name of its charset, as far as it is known."""
        return self.charsets[-1]

    @functools.cached_property
    def first_lines(self) -> list[str]:
        """The first lines with their line ends; an incomplete one only if there is no other."""
        lines = [line + "\n" for line in self.sample.split("\n", FIRST_LINES)]
        # The last element is an incomplete line, the rest of the sample, or empty after the last line end.
        is_rest = len(lines) > FIRST_LINES or not self.whole or lines[-1] == "\n"
        return lines[:-1] if is_rest and len(lines) > 1 else lines

    @functools.cached_property
    def filled(self) -> list[str]:
        """The first lines that are not blank, without their line ends."""
        return [line.rstrip("\r\n") for line in self.first_lines if line.strip()]


def open_text_files(path: Path, report: Report, charset: str | None = None) -> Generator[TextFile, None, None]:
    """Yield the text of a file, or the texts in an archive, as `open_files` and `text_of` do."""
    for file in open_files(path, one_line(str(path)), report):
        yield text_of(file, path, report, charset)


def text_of(file: OpenFile, path: Path, report: Report, charset: str | None = None) -> TextFile:
    """Return the text in a file with this path.

    charset: one of Python's codecs; None to detect it; if it is not certain, a text has that as its damage.
    """
    endings = PurePath((file.member or path.name).lower()).suffixes
    ending = next((ending[1:] for ending in reversed(endings) if ending not in COMPRESSED), "")
    head = file.stream.peek()
    codec = charset or "utf-8"
    name = charset or "UTF-8"
    damage = ""
    details = tuple[str, ...]()
    if head.startswith(NOT_OPENED) or opener_of(head):
        damage = f"no text, it begins with {one_line(head[:8].decode('latin-1'))!r}, {CONVERT}"
    elif not charset:
        try:
            codec, name = detect_charset(head, file.place)
        except UserError as error:
            damage = str(error).removeprefix(f"{file.place}: ")
            details = error.details
    if not damage and (damage := damage_of(head[:COMPARED].decode(codec, "ignore"))) and charset:
        damage += ", or leave out --encoding"
    whole = len(head) < SAMPLE
    try:
        sample = codecs.getincrementaldecoder(codec)("replace").decode(head, whole)
    except UnicodeError as error:  # "utf-16" and "utf-32" need a byte order mark
        remedy = f"give --encoding {codec}-le or {codec}-be"
        raise UserError(f"{file.place}: cannot be read as {codec} ({error}); {remedy}") from None
    stream = file.stream
    names = [name]
    if codec == "utf-8" and not charset and not whole and head.isascii():
        stream = io.BufferedReader(Stream(_as_utf_8(file, names, report), file.place), CHUNK)
    newline = "\n" if "\n" in sample else None  # old Macintosh files end their lines with a carriage return
    text = io.TextIOWrapper(stream, codec, errors="replace", newline=newline)
    sample = sample if newline else sample.replace("\r", "\n")
    if sample.startswith(BYTE_ORDER_MARK):  # the codec of a charset that was given may keep it
        sample = sample[len(text.read(1)) :]
    return TextFile(file.place, text, sample, whole, names, ending, file.member, damage, details)


def _as_utf_8(file: OpenFile, names: list[str], report: Report) -> Iterator[bytes]:
    """Yield a text that begins in ASCII as UTF-8. Its charset is detected at its first bytes beyond, and noted."""
    chunks = iter(functools.partial(file.stream.read1, CHUNK), b"")
    for chunk in chunks:
        if not chunk.isascii() or b"\x1b" in chunk:
            codec, name = detect_charset(chunk + file.stream.peek(), file.place)
            names.append(name)
            if name not in report.charsets:
                report.charsets.append(name)
            yield from (text.encode() for text in codecs.iterdecode(chain([chunk], chunks), codec, "replace"))
        else:
            yield chunk


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
        line = line.removeprefix(BYTE_ORDER_MARK)  # of a file behind another
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
        if raw and UNDECODABLE not in line:
            blank += not line
            yield number, line
            continue
        if raw:
            report.drop(f"lines not {text.charset}", f"{text.place}, line {number}")
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

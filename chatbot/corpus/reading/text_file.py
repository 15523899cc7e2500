"""Opens text files, which may be compressed, decodes them, and iterates over their lines."""

import codecs
import functools
import io
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath

from chatbot.corpus.reading.charset import COMPARED, detect_charset, detect_damage
from chatbot.corpus.reading.containers import (
    CHUNK,
    CONVERT,
    NOT_OPENED,
    SAMPLE,
    OpenFile,
    Stream,
    find_opener,
    open_files,
)
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.turns import NEW, Pair
from chatbot.display import one_line
from chatbot.errors import UserError

FIRST_LINES = 2000  # maximum number of lines used to detect a format
BYTE_ORDER_MARK = "\ufeff"
MARKUP = ("md", "markdown", "org", "adoc", "rst")  # extensions of files whose headings may be questions
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class TextFile:
    """A decoded text whose stream can be read only once."""

    place: str  # name shown in messages, e.g. "a.tsv" or "a.zip: b.tsv"
    stream: io.TextIOWrapper  # the text, with U+FFFD in place of undecodable bytes
    sample: str  # beginning of the text, whose last line may be incomplete
    whole: bool  # whether the sample is the whole text
    charsets: list[str]  # names of the detected charsets; may grow while the text is read
    ending: str = ""  # lower-case extension, ignoring compression, e.g. "csv" for A.CSV.gz
    member: str = ""  # name in the archive
    damage: str = ""  # error message if the text cannot be used, e.g. because it was saved in a wrong charset
    details: tuple[str, ...] = ()  # further lines of the error message

    @property
    def charset(self) -> str:
        """The name of the charset that has been detected so far."""
        return self.charsets[-1]

    @functools.cached_property
    def first_lines(self) -> list[str]:
        """The first complete lines, with line feeds. If the sample has a single line, it may be incomplete."""
        lines = [line + "\n" for line in self.sample.split("\n", FIRST_LINES)]
        # The last element is not a complete line, or is empty.
        is_rest = len(lines) > FIRST_LINES or not self.whole or lines[-1] == "\n"
        return lines[:-1] if is_rest and len(lines) > 1 else lines

    @functools.cached_property
    def filled(self) -> list[str]:
        """The first non-blank lines, without line feeds."""
        return [line.rstrip("\r\n") for line in self.first_lines if line.strip()]


def open_text_files(path: Path, report: Report, charset: str | None = None) -> Generator[TextFile, None, None]:
    """Yield a text file, or each text file in an archive."""
    for file in open_files(path, one_line(str(path)), report):
        yield text_of(file, path, report, charset)


def text_of(file: OpenFile, path: Path, report: Report, charset: str | None = None) -> TextFile:
    """Decode an open file.

    If the charset is uncertain, `damage` of the returned text describes the problem.

    Args:
        file: The open file.
        path: Path of the file, or of the archive that contains it.
        report: Report that is updated if another charset is detected while the text is read.
        charset: A Python codec, or None to detect the charset.

    Raises:
        UserError: If the charset requires a byte order mark that is missing.
    """
    endings = PurePath((file.member or path.name).lower()).suffixes
    ending = next((ending[1:] for ending in reversed(endings) if ending not in COMPRESSED), "")
    head = file.stream.peek()
    codec = charset or "utf-8"
    name = charset or "UTF-8"
    damage = ""
    details = tuple[str, ...]()
    if head.startswith(NOT_OPENED) or find_opener(head):
        damage = f"not text, it begins with {one_line(head[:8].decode('latin-1'))!r}, {CONVERT}"
    elif not charset:
        try:
            codec, name = detect_charset(head, file.place)
        except UserError as error:
            damage = str(error).removeprefix(f"{file.place}: ")
            details = error.details
    if not damage and (damage := detect_damage(head[:COMPARED].decode(codec, "ignore"))) and charset:
        damage += ", or leave out --encoding"
    whole = len(head) < SAMPLE
    try:
        sample = codecs.getincrementaldecoder(codec)("replace").decode(head, whole)
    except UnicodeError as error:  # A text in "utf-16" or "utf-32" must begin with a byte order mark.
        remedy = f"give --encoding {codec}-le or {codec}-be"
        raise UserError(f"{file.place}: cannot be read as {codec} ({error}); {remedy}") from None
    stream = file.stream
    names = [name]
    if codec == "utf-8" and not charset and not whole and head.isascii():
        stream = io.BufferedReader(Stream(_as_utf_8(file, names, report), file.place), CHUNK)
    newline = "\n" if "\n" in sample else None  # None also splits lines at carriage returns, as in classic Mac OS.
    text = io.TextIOWrapper(stream, codec, errors="replace", newline=newline)
    sample = sample if newline else sample.replace("\r", "\n")
    if sample.startswith(BYTE_ORDER_MARK):  # Some codecs, such as utf-8, do not remove the mark.
        sample = sample[len(text.read(1)) :]
    return TextFile(file.place, text, sample, whole, names, ending, file.member, damage, details)


def _as_utf_8(file: OpenFile, names: list[str], report: Report) -> Iterator[bytes]:
    """Convert a text to UTF-8. Its charset is detected at the first non-ASCII bytes, because the beginning is ASCII."""
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


MAX_LINE = 2**20  # maximum length of a line in characters
MAX_CHARACTERS = 64 * 2**20  # maximum number of characters of a text that is read into memory
MANY_NUL = 0.1  # NUL characters are removed from a line. If their fraction is larger, the line is dropped.
UNDECODABLE = "\ufffd"


_RULE = re.compile(r"\s*[-=*#_~+—─]{3,}(?:\s*[^-=*#_~+—─]{1,40}[-=*#_~+—─]{3,})?\s*")


def is_rule(line: str) -> bool:
    """Return whether a line is a horizontal rule such as "-----" or "=== 2 ==="."""
    return _RULE.fullmatch(line[:200]) is not None


def raw_lines(text: TextFile, report: Report) -> Iterator[str]:
    """Yield each line with its line feed. Lines that are too long or have many NUL characters are replaced with ""."""
    readline = functools.partial(text.stream.readline, MAX_LINE + 1)
    for number, line in enumerate(iter(readline, ""), start=1):
        line = line.removeprefix(BYTE_ORDER_MARK)  # If files were concatenated, each may begin with a mark.
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
    """Yield the number (from 1) and the text of each line. The text of an unusable line is None.

    Raises:
        UserError: At the end, if more than half of the non-blank lines are unusable.
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
    check_mostly_usable(text, report, bad, number - blank)


def drop_undecodable(
    pairs: Iterable[Pair], text: TextFile, report: Report, drop: Callable[[str], None]
) -> Iterator[Pair]:
    """Drop pairs with undecodable bytes. For formats that are not read line by line.

    Args:
        pairs: The pairs.
        text: The text that contains the pairs.
        report: Report whose dropped items are shown in the error.
        drop: Called with the reason for each dropped pair.

    Raises:
        UserError: At the end, if more than half of the pairs could not be decoded.
    """
    bad = count = 0

    def lost() -> None:
        nonlocal bad
        bad += 1
        drop(f"pairs not {text.charset}")

    for pair in drop_lost_texts(pairs, UNDECODABLE, lost):
        count += 1
        yield pair
    check_mostly_usable(text, report, bad, bad + count)


def drop_lost_texts(pairs: Iterable[Pair], lost: str, drop: Callable[[], None]) -> Iterator[Pair]:
    """Drop the pairs that contain the character `lost`. `drop` is called for each of them.

    The next pair then begins a new conversation.
    """
    interrupted = False
    for question, answer, link in pairs:
        if lost in question or lost in answer:
            drop()
            interrupted = True
        else:
            yield question, answer, NEW if interrupted else link
            interrupted = False


def check_mostly_usable(text: TextFile, report: Report, bad: int, count: int) -> None:
    """Raise UserError if more than half of the lines or pairs (`bad` of `count`) are unusable."""
    if bad * 2 > count:
        raise UserError(
            f"{text.place}: read as {text.charset}, {bad:,} of {count:,} lines cannot be used "
            f"({'; '.join(report.lines()[:3])}); name the encoding with --encoding, or save the whole file as UTF-8"
        )


def read_whole_text(text: TextFile, content: str) -> str:
    """Read a whole text into memory. Raises UserError if it is too large.

    Args:
        text: The text.
        content: Kind of content named in the error, e.g. "YAML".
    """
    whole = text.stream.read(MAX_CHARACTERS + 1)
    if len(whole) > MAX_CHARACTERS:
        raise UserError(f"{text.place}: more than {MAX_CHARACTERS // 2**20} MiB of {content}; give JSON Lines or TSV")
    return whole

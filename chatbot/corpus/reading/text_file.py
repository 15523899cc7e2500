"""Text files, opened for reading: decompressed, decoded, with a sample of the beginning; their lines."""

import codecs
import contextlib
import functools
import io
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from chatbot.corpus.reading.archive import OpenFile, is_tar, tar_members, zip_members
from chatbot.corpus.reading.charset import COMPARED, damage_of, detect_charset
from chatbot.corpus.reading.compression import SAMPLE, Stream, buffered, decompress, reading
from chatbot.corpus.reading.conversation import Pair, without_lost
from chatbot.corpus.reading.file_kinds import CONVERT, NO_TEXT, ZIP
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

FIRST_LINES = 2000
CHUNK = 2**15  # bytes
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


def open_files(path: Path, name: str, report: Report, members: Sequence[str] = ()) -> Generator[OpenFile, None, None]:
    """Yield the content of a file, or of the members of a zip or tar file. Updates report.read_bytes.

    members: the names of the members to read from an archive; () for all.

    Each content must be read before the next is requested. Raises UserError for data that cannot be decompressed.
    """
    with path.open("rb") as file:
        if file.peek(4)[:4] in ZIP:
            yield from zip_members(path, name, report, members)
            return
        size, before = path.stat().st_size, report.read_bytes
        with contextlib.closing(buffered(decompress(file, name, size, report))) as stream:
            if is_tar(stream.peek()):
                yield from tar_members(stream, name, members)
                report.read_bytes = before + size
            else:
                yield OpenFile("", name, stream)


def open_text_files(
    path: Path, name: str, report: Report, members: Sequence[str] = (), charset: str | None = None
) -> Generator[TextFile, None, None]:
    """Yield the text of a file, or the texts in an archive, as `open_files` does.

    charset: one of Python's codecs; None to detect it; if it is not certain, a text has that as its damage.
    """
    for file in open_files(path, name, report, members):
        *_, ending = [
            "",
            *(part for part in PurePath((file.member or path.name).lower()).suffixes if part not in COMPRESSED),
        ]
        yield _text(file, charset, ending[1:], report)


def _text(file: OpenFile, charset: str | None, ending: str, report: Report) -> TextFile:
    head = file.stream.peek()
    whole = len(head) < SAMPLE
    is_text = not head.startswith(NO_TEXT) and not is_tar(head)
    codec, name, asked = charset or "utf-8", charset or "UTF-8", None
    try:
        if is_text and not charset:
            codec, name = detect_charset(head, file.place)
    except UserError as error:
        asked = error
    try:
        sample = codecs.getincrementaldecoder(codec)("replace").decode(head, whole)
    except UnicodeError as error:  # "utf-16" and "utf-32" need a byte order mark
        remedy = f"give --encoding {codec}-le or {codec}-be"
        raise UserError(f"{file.place}: cannot be read as {codec} ({error}); {remedy}") from None
    if sample.startswith(BYTE_ORDER_MARK):  # the codec of a charset that was given may keep it
        file.stream.read(len(BYTE_ORDER_MARK.encode(codec)) - len("".encode(codec)))
        sample = sample[1:]
    stream, names = file.stream, [name]
    if codec == "utf-8" and is_text and not charset and not whole and head.isascii():
        stream = io.BufferedReader(Stream(reading(_as_utf_8(file, names, report))), CHUNK)
    newline = "\n" if "\n" in sample else None  # old Macintosh files end their lines with a carriage return
    decoded = io.TextIOWrapper(stream, codec, errors="replace", newline=newline)
    sample = sample if newline == "\n" else sample.replace("\r\n", "\n").replace("\r", "\n")
    damage = damage_of(head[:COMPARED].decode(codec, "ignore"))
    if asked:
        damage = str(asked).removeprefix(f"{file.place}: ")
    elif damage and charset:
        damage += ", or leave out --encoding"
    elif not is_text:
        damage = f"no text, it begins with {one_line(head[:8].decode('latin-1'))!r}, {CONVERT}"
    return TextFile(
        file.place, decoded, sample, whole, names, ending, file.member, damage, asked.details if asked else ()
    )


def _as_utf_8(file: OpenFile, names: list[str], report: Report) -> Iterator[bytes]:
    """Yield a text that begins in ASCII as UTF-8. Its charset is detected at its first bytes beyond, and noted."""
    while (chunk := file.stream.read1(CHUNK)) and chunk.isascii() and b"\x1b" not in chunk:
        yield chunk
    codec, name = detect_charset(chunk + file.stream.peek(), file.place)
    names.append(name)
    if name not in report.charsets:
        report.charsets.append(name)
    decoder = codecs.getincrementaldecoder(codec)("replace")
    while chunk:
        yield decoder.decode(chunk).encode()
        chunk = file.stream.read1(CHUNK)
    yield decoder.decode(b"", True).encode()


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
    codec, name = detect_charset(content, path)
    text = codecs.decode(content, codec, "replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if UNDECODABLE in line:
            raise UserError(
                f"{path}: {kind} read as {name}, but line {number} is not; save it as UTF-8, one word a line"
            )
    return text, name

"""What files contain: CONTAINERS has the first bytes of archives, compressed files and tables, and what opens them.

Nothing is written to disk; links and devices are skipped; what a file expands to is limited.
"""

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from chatbot.corpus.reading.charset import name_of
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

if TYPE_CHECKING:
    from chatbot.corpus.reading.binary_tables import Sheet

# The limit in bytes: FREE_OUTPUT + OUTPUT_RATIO for each compressed byte. Text compresses to a tenth at best.
FREE_OUTPUT = 64 * 2**20
OUTPUT_RATIO = 100

BEGINNING = 2**20  # bytes of a file that are kept: enough to tell what it is, and to look at its first pairs
KEPT = 16  # files whose beginnings are kept
_BEGINNINGS: dict[tuple[Path, int, int], bytes] = {}  # by the date and the size of a file, too
SAMPLE = 256 * 2**10  # bytes at the beginning of a content, by which it is told what it is
CHUNK = 2**15  # bytes that are unpacked at once

CONVERT = "which is not read here; unpack it, or save it as text, CSV or JSON"
# The beginnings of files that are no text and are not opened: archives, documents, databases, pictures, pickles.
NOT_OPENED = (
    *(b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"%PDF-", b"{\\rtf", b"SQLite format 3\0"),
    *(b"\x89PNG", b"\xff\xd8\xff", *(bytes((0x80, version)) for version in range(2, 6))),
)
WORKBOOK = "xl/workbook.xml"  # a member of a zip file that is a workbook
# A member of a zip file that is another document of Microsoft's, an e-book or a document of LibreOffice.
DOCUMENTS = frozenset(("[Content_Types].xml", "META-INF/container.xml", "META-INF/manifest.xml"))

ZSTANDARD_BLOCK = 2**10  # bytes of input at once, which expand to 32 MiB at most
ZSTANDARD_WINDOW = 2**31  # bytes; large dumps are compressed with --long=31
UTF_8_NAME = 0x800  # the flag of a zip file's member whose name is in UTF-8


class OpenFile(NamedTuple):
    """The content of a file that is no archive, or of a member of an archive."""

    member: str  # its name in the archive, "" for a file that is no archive
    place: str  # for messages: "a.zip: b.tsv"
    stream: io.BufferedReader  # whose first SAMPLE bytes can be peeked at


class Rows(NamedTuple):
    """The rows of a file, which can be read once. A row is an object with the names of the columns, or a list."""

    format: str
    rows: Iterator[Any]


class Sheets(NamedTuple):
    """The sheets of a workbook."""

    titles: list[str]
    sheets: "Iterator[Sheet]"  # can be read once


Content = OpenFile | Rows | Sheets


class Container(NamedTuple):
    """A file that is opened for what it contains."""

    path: Path
    name: str  # for messages
    stream: io.BufferedReader  # its bytes; of a tar file that is compressed, decompressed
    allowed: "Allowance"  # what it may expand to
    report: Report
    members: Sequence[str]  # the names of those to read, () for all


class Allowance:
    """The number of bytes that a compressed file of this size in bytes may still expand to."""

    def __init__(self, place: str, compressed_size: int) -> None:
        self.place = place
        self.remaining = FREE_OUTPUT + OUTPUT_RATIO * compressed_size

    def spend(self, count: int) -> None:
        """Subtract these bytes. Raises UserError if fewer remain."""
        self.remaining -= count
        if self.remaining < 0:
            raise UserError(
                f"{self.place}: refused, it expands to more than {FREE_OUTPUT // 2**20} MiB and {OUTPUT_RATIO} times "
                "its size; if it is genuine, unpack it and give the file"
            )


class _Readable(io.RawIOBase):
    closed = False  # an attribute, since a text looks at it for each line

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self.closed = True

    def sampled(self) -> io.BufferedReader:
        """Return these bytes, of which the first SAMPLE can be peeked at."""
        return io.BufferedReader(self, SAMPLE)


class Stream(_Readable):
    """The bytes of these chunks. Raises UserError for damaged data, and for more of it than the allowance."""

    def __init__(self, chunks: Iterator[bytes], place: str, allowed: Allowance | None = None) -> None:
        self._chunks = chunks
        self._place = place
        self._allowed = allowed
        self._unread = bytearray()

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # any writable buffer, named only since 3.12
        """Fill the buffer, but for the end of the stream."""
        try:
            while len(self._unread) < len(buffer) and (chunk := next(self._chunks, None)) is not None:
                self._unread += chunk
                if self._allowed:
                    self._allowed.spend(len(chunk))
        except (EOFError, tarfile.TarError):
            raise UserError(f"{self._place}: the data ends early; download the file again") from None
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, ValueError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk, not of the content
            raise UserError(f"{self._place}: the data is damaged; download the file again") from None
        count = min(len(buffer), len(self._unread))
        buffer[:count] = self._unread[:count]
        del self._unread[:count]
        return count


class _File(_Readable):
    """A file that is opened once for its beginning, and then for what is beyond. report.read_bytes grows."""

    def __init__(self, path: Path, report: Report) -> None:
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size)
        self._path = path
        self._size = status.st_size
        self._file: io.FileIO | None = None
        self._position = 0
        self._report = report
        if key not in _BEGINNINGS:
            self._file = path.open("rb", buffering=0)
            _BEGINNINGS[key] = self._file.read(BEGINNING)
            self._file.seek(0)
            if len(_BEGINNINGS) > KEPT:
                _BEGINNINGS.pop(next(iter(_BEGINNINGS)), None)
        self.beginning = _BEGINNINGS[key]

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place = offset + (0, self._position, self._size)[whence]
        self._report.read_bytes += place - self._position
        self._position = place
        if self._file:
            self._file.seek(place)
        return place

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        if self._file is None and len(self.beginning) <= self._position < self._size:
            self._file = self._path.open("rb", buffering=0)
            self._file.seek(self._position)
        if self._file:
            count = self._file.readinto(buffer)
        else:
            part = self.beginning[self._position : self._position + len(buffer)]
            count = len(part)
            buffer[:count] = part
        self._position += count
        self._report.read_bytes += count
        return count

    def close(self) -> None:
        if self._file:
            self._file.close()
        super().close()


def open_contents(path: Path, name: str, report: Report, members: Sequence[str] = ()) -> Generator[Content, None, None]:
    """Yield what a file contains, itself if it is no container. Updates report.read_bytes.

    members: the names of the members, or of the sheets, to read; () for all.

    Each content must be read before the next is requested. Raises UserError for data that cannot be unpacked, and for
    an archive without files.
    """
    before = report.read_bytes
    size = path.stat().st_size
    file = _File(path, report)
    with file.sampled() as stream:
        container = Container(path, name, stream, Allowance(name, size), report, members)
        yield from (opener_of(file.beginning) or _plain)(container)
    report.read_bytes = before + size


def open_files(path: Path, name: str, report: Report) -> Iterator[OpenFile]:
    """Yield the contents that are files, as `open_contents`. Raises UserError for a table, too."""
    for content in open_contents(path, name, report):
        if not isinstance(content, OpenFile):
            raise UserError(f"{name}: a table, where a text is needed; save it as text")
        yield content


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(functools.partial(read, CHUNK), b"")


def _plain(container: Container) -> Iterator[Content]:
    yield OpenFile("", container.name, container.stream)


def _compressed(decompressed: Callable[[Container], Iterator[bytes]], container: Container) -> Iterator[Content]:
    """Yield a file with the content that is decompressed, or if it is a tar file, the files in it."""
    stream = Stream(decompressed(container), container.name, container.allowed).sampled()
    opener = _tar if is_tar(stream.peek()) else _plain
    yield from opener(container._replace(stream=stream))


def _opened_by(open_stream: Callable[..., Any]) -> Callable[[Container], Iterator[bytes]]:
    return lambda container: _chunks(open_stream(container.stream).read)


def _zstandard(container: Container) -> Iterator[bytes]:
    """Yield the content of a Zstandard file. Raises EOFError if it ends within a frame, ValueError if it is damaged."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UserError(f"{container.name}: a Zstandard file; run `pip install zstandard`, which reads it") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTANDARD_WINDOW)
    frame = None
    try:
        while data := container.stream.read(ZSTANDARD_BLOCK):
            while data:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(data)
                data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if frame is not None:
        raise EOFError


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder of this relative path is hidden, or written by macOS beside another."""
    return any(step.startswith(".") or step == "__MACOSX" for step in PurePosixPath(name).parts or (".",))


def _archive(
    container: Container, kind: str, found: Iterator[tuple[str, Callable[[int], bytes]]], allowed: Allowance | None
) -> Iterator[Content]:
    """Yield the files of an archive. found: the name of each, and what reads it."""
    is_empty = True
    for member, read in found:
        if member in container.members if container.members else member and not is_hidden(member):
            is_empty = False
            place = f"{container.name}: {one_line(member)}"
            yield OpenFile(member, place, Stream(_chunks(read), place, allowed).sampled())
    if is_empty:
        raise UserError(f"{container.name}: the {kind} file contains no file of pairs; give another")


@contextlib.contextmanager
def _damaged(name: str, kind: str) -> Iterator[None]:
    """Convert the errors of an archive that cannot be unpacked to UserError."""
    try:
        yield
    except (zipfile.BadZipFile, tarfile.TarError, struct.error, EOFError, ValueError, OverflowError):
        raise UserError(f"{name}: damaged {kind} file; download it again") from None
    except NotImplementedError as error:
        raise UserError(f"{name}: cannot be unpacked ({error}); unpack it yourself and give the file") from None
    except RuntimeError:  # of zipfile
        raise UserError(f"{name}: encrypted; unpack it and give the file") from None


def _zip(container: Container) -> Iterator[Content]:
    """Yield the files of a zip file, sorted by name, or the sheets of a workbook."""
    with _damaged(container.name, "zip"), zipfile.ZipFile(container.stream) as archive:
        if WORKBOOK in archive.namelist():
            yield from _workbook(container, archive)
            return
        infos = [(_name_in_zip(info), info) for info in archive.infolist() if info.file_size]  # a name may come twice
        if not DOCUMENTS.isdisjoint(member for member, _ in infos):
            raise UserError(f"{container.name}: a document of an office program, {CONVERT}")
        infos.sort(key=lambda item: item[0])
        found = ((member, archive.open(info).read) for member, info in infos)
        yield from _archive(container, "zip", found, container.allowed)


def _name_in_zip(info: zipfile.ZipInfo) -> str:
    """Return the name of a member. Windows writes it in the charset of its language; `zipfile` decodes it as cp437.

    From Python 3.12 on, `zipfile` takes the name in an extra field (0x7075, of WinRAR) instead, if there is one.
    """
    is_unicode = info.flag_bits & UTF_8_NAME or info.filename != info.orig_filename
    return info.filename if is_unicode else name_of(info.orig_filename.encode("cp437"))


def _workbook(container: Container, archive: zipfile.ZipFile | None = None) -> Iterator[Content]:
    from chatbot.corpus.reading.binary_tables import open_workbook, sheets

    book = open_workbook(container.stream, archive, container.name)
    yield Sheets(book.sheet_names, sheets(book, archive, container.name, container.report, container.members))


def _columnar(kind: str, container: Container) -> Iterator[Content]:
    from chatbot.corpus.reading.binary_tables import columnar_rows

    path, name, _, allowed, report, _ = container
    yield Rows(kind, columnar_rows(path, kind, name, report, allowed.spend))


class _TarInfo(tarfile.TarInfo):
    """A header of a tar file. `tarfile` takes a damaged header for the end of the archive."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):  # type: ignore[no-untyped-def]  # typed differently by versions of typeshed
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from None


def is_tar(head: bytes) -> bool:
    """Return whether content that begins with these bytes is a tar file: the checksum of its first header."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def _tar(container: Container) -> Iterator[Content]:
    """Yield the files of a tar file in its order."""

    def found() -> Iterator[tuple[str, Callable[[int], bytes]]]:
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all headers
            content = archive.extractfile(info) if info.isreg() and not info.issparse() and info.size else None
            if content is not None:
                yield name_of(info.name.encode("utf-8", "surrogateescape")), content.read

    with (
        _damaged(container.name, "tar"),
        tarfile.open(
            fileobj=container.stream, mode="r|", tarinfo=_TarInfo, encoding="utf-8", errors="surrogateescape"
        ) as archive,
    ):
        yield from _archive(container, "tar", found(), None)


Opener = Callable[[Container], Iterator[Content]]
# The packages that parse files, whose versions are in the key of encoded pairs: which of them reads a file is known
# only after archives in it are open, and locked versions change seldom.
PARSERS = ("ijson", "jmespath", "orjson", "pyarrow", "pysubs2", "python-calamine", "pyyaml", "zstandard")
# To add a container, add its first bytes and a function that yields what it contains, to PARSERS the package that it
# needs, and remove it from NOT_OPENED. Tar files have no first bytes.
CONTAINERS: dict[bytes, Opener] = {
    b"PK\3\4": _zip,
    b"PK\5\6": _zip,  # without a member
    b"\x1f\x8b": functools.partial(_compressed, _opened_by(gzip.open)),
    b"BZh": functools.partial(_compressed, _opened_by(bz2.open)),
    b"\xfd7zXZ\0": functools.partial(_compressed, _opened_by(lzma.open)),
    b"\x28\xb5\x2f\xfd": functools.partial(_compressed, _zstandard),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _workbook,  # Office documents of before 2007
    b"PAR1": functools.partial(_columnar, "parquet"),
    b"ARROW1\0\0": functools.partial(_columnar, "arrow"),  # a Feather file, too
    b"\xff\xff\xff\xff": functools.partial(_columnar, "arrow"),  # a stream, as `datasets` saves it
}


def opener_of(head: bytes) -> Opener | None:
    """Return what opens a container that begins with these bytes, None for no container."""
    known = next((opener for magic, opener in CONTAINERS.items() if head.startswith(magic)), None)
    return known or (_tar if is_tar(head) else None)

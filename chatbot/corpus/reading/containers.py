"""Opens archives, compressed files and binary tables. Their first bytes identify them (see CONTAINERS).

Nothing is written to disk, and the decompressed size is limited. Links and devices in archives are skipped.
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
from typing import Any, NamedTuple

from chatbot.corpus.reading.binary_tables import Table, open_workbook, read_columnar, sheets
from chatbot.corpus.reading.charset import name_of
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

# Limit on decompressed data: FREE_OUTPUT bytes plus OUTPUT_RATIO bytes for each compressed byte. Ordinary text expands
# to about ten times its compressed size at most.
FREE_OUTPUT = 64 * 2**20
OUTPUT_RATIO = 100

BEGINNING = 2**20  # number of bytes cached per file, because format detection reads a file's beginning repeatedly
SAMPLE = 256 * 2**10  # number of bytes at the beginning of a file from which its format is detected
CHUNK = 2**15  # bytes unpacked at a time

CONVERT = "which is not supported; unpack it, or save it as text, CSV or JSON"
# First bytes of unsupported archives, documents, databases, pictures and pickles.
NOT_OPENED = (
    *(b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"%PDF-", b"{\\rtf", b"SQLite format 3\0"),
    *(b"\x89PNG", b"\xff\xd8\xff", *(bytes((0x80, version)) for version in range(2, 6))),
)
WORKBOOK = "xl/workbook.xml"  # A zip file with this member is an .xlsx workbook.
# A zip file with one of these members is a workbook, another Office or LibreOffice document, or an e-book.
DOCUMENTS = frozenset(("[Content_Types].xml", "META-INF/container.xml", "META-INF/manifest.xml"))

ZSTANDARD_BLOCK = 2**10  # input bytes per call of the decompressor, small enough to limit its output to 32 MiB
ZSTANDARD_WINDOW = 2**31  # maximum window size in bytes; files compressed with `zstd --long=31` need it
UTF_8_NAME = 0x800  # flag bit of a zip member whose name is encoded in UTF-8


class OpenFile(NamedTuple):
    """The content of a plain file or an archive member."""

    member: str  # name in the archive; "" for a plain file
    place: str  # name shown in messages, e.g. "a.zip: b.tsv"
    stream: io.BufferedReader  # Supports peeking at the first SAMPLE bytes.


class Rows(NamedTuple):
    """The rows of a columnar file (see `read_columnar`). They can be iterated only once."""

    format: str
    rows: Iterator[Any]


class Sheets(NamedTuple):
    """The sheets of a workbook."""

    titles: list[str]
    sheets: Iterator[Table]  # Can be iterated only once.


Content = OpenFile | Rows | Sheets


class Container(NamedTuple):
    """An open file and the arguments for reading its contents."""

    path: Path
    name: str  # file name shown in messages
    stream: io.BufferedReader  # bytes of the file; decompressed bytes if it is a compressed tar file
    allowed: "Allowance"  # limit on the decompressed size
    report: Report
    members: Sequence[str]  # names of the members to read; () for all


class Allowance:
    """Limit on the decompressed size of a file. Tracks the number of bytes that remain."""

    def __init__(self, place: str, compressed_size: int) -> None:
        self.place = place
        self.remaining = FREE_OUTPUT + OUTPUT_RATIO * compressed_size

    def spend(self, count: int) -> None:
        """Subtract `count` from the remaining bytes. Raises UserError if the result is negative."""
        self.remaining -= count
        if self.remaining < 0:
            raise UserError(
                f"{self.place}: refused, it expands to more than {FREE_OUTPUT // 2**20} MiB and {OUTPUT_RATIO} times "
                "its size; if it is genuine, unpack it and give the file"
            )


class _Readable(io.RawIOBase):
    closed = False  # An attribute is faster than the inherited property, which text streams check for each line.

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self.closed = True

    def buffered(self) -> io.BufferedReader:
        """Return a buffered reader that supports peeking at the first SAMPLE bytes."""
        return io.BufferedReader(self, SAMPLE)


class Stream(_Readable):
    """A readable stream over an iterator of byte chunks.

    Reading raises UserError if the data is damaged or expands to too many bytes.
    """

    def __init__(self, chunks: Iterator[bytes], place: str, allowed: Allowance | None = None) -> None:
        self._chunks = chunks
        self._place = place
        self._allowed = allowed
        self._unread = bytearray()

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # collections.abc.Buffer requires Python 3.12.
        """Fill the whole buffer unless the stream ends."""
        try:
            while len(self._unread) < len(buffer) and (chunk := next(self._chunks, None)) is not None:
                self._unread += chunk
                if self._allowed:
                    self._allowed.spend(len(chunk))
        except (EOFError, tarfile.TarError):
            raise UserError(f"{self._place}: the data ends early; download the file again") from None
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, ValueError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # An error of the operating system does not mean that the data is damaged.
            raise UserError(f"{self._place}: the data is damaged; download the file again") from None
        count = min(len(buffer), len(self._unread))
        buffer[:count] = self._unread[:count]
        del self._unread[:count]
        return count


@functools.lru_cache(maxsize=16)
def _read_beginning(path: Path, modified: int, size: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(BEGINNING)


class _File(_Readable):
    """A file whose first bytes are cached. Reading it updates `report.read_bytes`."""

    def __init__(self, path: Path, report: Report) -> None:
        status = path.stat()
        self.beginning = _read_beginning(path, status.st_mtime_ns, status.st_size)
        self._path = path
        self._size = status.st_size
        self._file: io.FileIO | None = None
        self._position = 0
        self._report = report

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
    """Yield the members of an archive, the contents of a table, or a plain file itself.

    Each item must be read before the next one is requested.

    Args:
        path: Path of the file.
        name: Name of the file, shown in messages.
        report: Report whose `read_bytes` is updated.
        members: Names of the archive members or sheets to read; () for all.

    Raises:
        UserError: If the data cannot be unpacked, or an archive contains no files.
    """
    before = report.read_bytes
    size = path.stat().st_size
    file = _File(path, report)
    with file.buffered() as stream:
        container = Container(path, name, stream, Allowance(name, size), report, members)
        yield from (find_opener(file.beginning) or _open_plain)(container)
    report.read_bytes = before + size


def open_files(path: Path, name: str, report: Report) -> Iterator[OpenFile]:
    """Yield a plain file, or each file in an archive. Raises UserError for a binary table."""
    for content in open_contents(path, name, report):
        if not isinstance(content, OpenFile):
            raise UserError(f"{name}: a table, but a text file is required; save it as text")
        yield content


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(functools.partial(read, CHUNK), b"")


def _open_plain(container: Container) -> Iterator[Content]:
    yield OpenFile("", container.name, container.stream)


def _open_compressed(decompress: Callable[[Container], Iterator[bytes]], container: Container) -> Iterator[Content]:
    """Yield the decompressed file, or the members of a compressed tar file."""
    stream = Stream(decompress(container), container.name, container.allowed).buffered()
    opener = _open_tar if is_tar(stream.peek()) else _open_plain
    yield from opener(container._replace(stream=stream))


def _decompressor(open_stream: Callable[..., Any]) -> Callable[[Container], Iterator[bytes]]:
    return lambda container: _chunks(open_stream(container.stream).read)


def _zstandard(container: Container) -> Iterator[bytes]:
    """Decompress a Zstandard file. Raises EOFError if the file is truncated, and ValueError if it is damaged."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UserError(f"{container.name}: a Zstandard file; run `pip install zstandard` to read it") from None
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
    """Return whether any part of a relative path is hidden (.name) or is macOS metadata (__MACOSX)."""
    return any(step.startswith(".") or step == "__MACOSX" for step in PurePosixPath(name).parts or (".",))


def _archive_members(
    container: Container, kind: str, found: Iterator[tuple[str, Callable[[int], bytes]]], allowed: Allowance | None
) -> Iterator[Content]:
    """Yield the files of an archive. `found` yields the name and the read function of each member."""
    is_empty = True
    for member, read in found:
        if member in container.members if container.members else member and not is_hidden(member):
            is_empty = False
            place = f"{container.name}: {one_line(member)}"
            yield OpenFile(member, place, Stream(_chunks(read), place, allowed).buffered())
    if is_empty:
        raise UserError(f"{container.name}: the {kind} file contains no files with pairs; give another file")


@contextlib.contextmanager
def _archive_errors(name: str, kind: str) -> Iterator[None]:
    """Convert errors of the archive libraries to UserError."""
    try:
        yield
    except (zipfile.BadZipFile, tarfile.TarError, struct.error, EOFError, ValueError, OverflowError):
        raise UserError(f"{name}: damaged {kind} file; download it again") from None
    except NotImplementedError as error:
        raise UserError(f"{name}: cannot be unpacked ({error}); unpack it yourself and give the file") from None
    except RuntimeError:  # zipfile raises RuntimeError for encrypted members.
        raise UserError(f"{name}: encrypted; unpack it and give the file") from None


def _open_zip(container: Container) -> Iterator[Content]:
    """Yield the files of a zip file, sorted by name, or the sheets of a workbook."""
    with _archive_errors(container.name, "zip"), zipfile.ZipFile(container.stream) as archive:
        if WORKBOOK in archive.namelist():
            yield from _open_workbook(container, archive)
            return
        infos = [(_name_in_zip(info), info) for info in archive.infolist() if info.file_size]  # Names can be duplicate.
        if not DOCUMENTS.isdisjoint(member for member, _ in infos):
            raise UserError(f"{container.name}: an Office document, e-book or the like, {CONVERT}")
        infos.sort(key=lambda item: item[0])
        found = ((member, archive.open(info).read) for member, info in infos)
        yield from _archive_members(container, "zip", found, container.allowed)


def _name_in_zip(info: zipfile.ZipInfo) -> str:
    """Return a member's name. `zipfile` decodes names as cp437, but Windows encodes them in a local charset."""
    is_unicode = info.flag_bits & UTF_8_NAME or info.filename != info.orig_filename
    return info.filename if is_unicode else name_of(info.orig_filename.encode("cp437"))


def _open_workbook(container: Container, archive: zipfile.ZipFile | None = None) -> Iterator[Content]:
    book = open_workbook(container.stream, archive, container.name)
    yield Sheets(book.sheet_names, sheets(book, archive, container.name, container.report, container.members))


def _open_columnar(kind: str, container: Container) -> Iterator[Content]:
    path, name, _, allowed, report, _ = container
    yield Rows(kind, read_columnar(path, kind, name, report, allowed.spend))


class _TarInfo(tarfile.TarInfo):
    """A tar header that raises ReadError if it is damaged. `tarfile` alone would end the archive there silently."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):  # type: ignore[no-untyped-def]  # Versions of typeshed differ.
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from None


def is_tar(head: bytes) -> bool:
    """Return whether the first bytes of a file are a tar header with a valid checksum."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def _open_tar(container: Container) -> Iterator[Content]:
    """Yield the files of a tar file in order."""

    def found() -> Iterator[tuple[str, Callable[[int], bytes]]]:
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # Otherwise tarfile keeps all headers in memory.
            content = archive.extractfile(info) if info.isreg() and not info.issparse() and info.size else None
            if content is not None:
                yield name_of(info.name.encode("utf-8", "surrogateescape")), content.read

    with (
        _archive_errors(container.name, "tar"),
        tarfile.open(
            fileobj=container.stream, mode="r|", tarinfo=_TarInfo, encoding="utf-8", errors="surrogateescape"
        ) as archive,
    ):
        yield from _archive_members(container, "tar", found(), None)


Opener = Callable[[Container], Iterator[Content]]
# Packages that parse files. Their versions are part of the cache key, so that an update invalidates cached pairs.
PARSERS = ("ijson", "jmespath", "orjson", "pyarrow", "pysubs2", "python-calamine", "pyyaml", "zstandard")
# Maps the first bytes of a file to the function that opens it. To support another container, add it here, add the
# package that parses it to PARSERS, and remove it from NOT_OPENED. Tar files are detected by `is_tar` instead.
CONTAINERS: dict[bytes, Opener] = {
    b"PK\3\4": _open_zip,
    b"PK\5\6": _open_zip,  # an empty zip file
    b"\x1f\x8b": functools.partial(_open_compressed, _decompressor(gzip.open)),
    b"BZh": functools.partial(_open_compressed, _decompressor(bz2.open)),
    b"\xfd7zXZ\0": functools.partial(_open_compressed, _decompressor(lzma.open)),
    b"\x28\xb5\x2f\xfd": functools.partial(_open_compressed, _zstandard),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _open_workbook,  # pre-2007 Office documents
    b"PAR1": functools.partial(_open_columnar, "parquet"),
    b"ARROW1\0\0": functools.partial(_open_columnar, "arrow"),  # also Feather files
    b"\xff\xff\xff\xff": functools.partial(_open_columnar, "arrow"),  # an Arrow stream, as saved by `datasets`
}


def find_opener(head: bytes) -> Opener | None:
    """Return the function that opens a file with the given first bytes, or None for a plain file."""
    known = next((opener for magic, opener in CONTAINERS.items() if head.startswith(magic)), None)
    return known or (_open_tar if is_tar(head) else None)

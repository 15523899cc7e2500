"""The content of files: archives give their members, and what is compressed is unpacked while it is read.

Nothing is written to disk; links and devices are skipped; what a file expands to is limited.
"""

import bz2
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

from chatbot.corpus.reading.charset import name_of
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

# The limit in bytes: FREE_OUTPUT + OUTPUT_RATIO for each compressed byte. Text compresses to a tenth at best.
FREE_OUTPUT = 64 * 2**20
OUTPUT_RATIO = 100

SAMPLE = 256 * 2**10  # bytes at the beginning of a content, by which it is told what it is
CHUNK = 2**15  # bytes that are unpacked at once
BEGINNING = 4096  # bytes that tell an archive and a JSON object with parts from other files

ZIP = (b"PK\3\4", b"PK\5\6")
ZSTANDARD = b"\x28\xb5\x2f\xfd"
OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Office documents of before 2007
PACKED = (*ZIP, *OPENERS, ZSTANDARD, OLE)
PARQUET = b"PAR1"
ARROW = b"ARROW1\0\0"
ARROW_STREAM = b"\xff\xff\xff\xff"
# The beginnings of files that are no text: archives, columnar files, documents, databases, pickles, pictures.
NO_TEXT = (
    *(*PACKED, b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", PARQUET, ARROW, ARROW_STREAM),
    *(b"%PDF-", b"{\\rtf", b"SQLite format 3\0", b"\x89PNG", b"\xff\xd8\xff"),
    *(bytes((0x80, version)) for version in range(2, 6)),
)
CONVERT = "which is not read here; unpack it, or save it as text, CSV or JSON"
# A member of a zip file that is a document of Microsoft's, an e-book or a document of LibreOffice.
DOCUMENTS = frozenset(("[Content_Types].xml", "META-INF/container.xml", "META-INF/manifest.xml"))

ZSTANDARD_BLOCK = 2**10  # bytes of input at once, which expand to 32 MiB at most
ZSTANDARD_WINDOW = 2**31  # bytes; large dumps are compressed with --long=31
UTF_8_NAME = 0x800  # the flag of a zip file's member whose name is in UTF-8
TAR_HEADER = 512  # bytes


Member = tuple[str, Callable[[int], bytes]]  # of an archive: its name, and what reads it


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, which are read once while it keeps its date and size."""
    status = path.stat()
    return _beginning(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _beginning(path: Path, modified: int, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(BEGINNING)


class OpenFile(NamedTuple):
    """The content of a file that is no archive, or of a member of an archive."""

    member: str  # its name in the archive, "" for a file that is no archive
    place: str  # for messages: "a.zip: b.tsv"
    stream: io.BufferedReader  # whose first SAMPLE bytes can be peeked at


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


class Stream(io.RawIOBase):
    """The bytes of these chunks. Raises UserError for damaged data, and for more of it than the allowance."""

    def __init__(self, chunks: Iterator[bytes], place: str, allowed: Allowance | None = None) -> None:
        self._chunks = chunks
        self._place = place
        self._allowed = allowed
        self._unread = bytearray()

    def readable(self) -> bool:
        return True

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


class _CountedFile(io.FileIO):
    """A file whose position, while it is read, is counted in report.read_bytes."""

    def __init__(self, path: Path, report: Report) -> None:
        super().__init__(path)
        self._report = report
        self._counted = 0

    def count(self, position: int) -> None:
        """Count the bytes up to this position."""
        self._report.read_bytes += position - self._counted
        self._counted = position

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        count = super().readinto(buffer)
        self.count(self.tell())
        return count


def open_files(path: Path, name: str, report: Report, members: Sequence[str] = ()) -> Generator[OpenFile, None, None]:
    """Yield the content of a file; of a zip or tar file, that of its members. Updates report.read_bytes.

    members: the names of the members to read from an archive; () for all.

    Each content must be read before the next is requested. Raises UserError for data that cannot be unpacked, and for
    an archive without files.
    """
    size = path.stat().st_size
    is_empty = True
    counted_file = _CountedFile(path, report)
    with _sampled(counted_file) as file:
        allowed = Allowance(name, size)  # of the members together
        try:
            if file.peek()[:4] in ZIP:
                kind = "zip"
                found = _zip_members(file, name)
            elif is_tar((stream := _decompressed(file, name, size)).peek()):
                kind = "tar"
                found = _tar_members(stream)
            else:
                yield OpenFile("", name, stream)
                return
            for member, read in found:
                if member in members if members else member and not is_hidden(member):
                    is_empty = False
                    place = f"{name}: {one_line(member)}"
                    yield OpenFile(member, place, _sampled(Stream(_chunks(read), place, allowed)))
        except (zipfile.BadZipFile, tarfile.TarError, struct.error, EOFError, ValueError, OverflowError):
            raise UserError(f"{name}: damaged {kind} file; download it again") from None
        except NotImplementedError as error:
            raise UserError(f"{name}: cannot be unpacked ({error}); unpack it yourself and give the file") from None
        except RuntimeError:  # of zipfile
            raise UserError(f"{name}: encrypted; unpack it and give the file") from None
    if is_empty:
        raise UserError(f"{name}: the {kind} file contains no file of pairs; give another")
    counted_file.count(size)


def _sampled(stream: io.RawIOBase) -> io.BufferedReader:
    reader: io.BufferedReader = io.BufferedReader(stream, SAMPLE)
    reader.peek()  # fills the whole buffer without consuming it
    return reader


def _decompressed(file: io.BufferedReader, place: str, size: int) -> io.BufferedReader:
    """Return the content of a file of this size in bytes, decompressed if it is gzip, bzip2, xz or Zstandard."""
    head = file.peek()
    if head.startswith(ZSTANDARD):
        chunks = _zstandard_chunks(file, place)
    elif opener := next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), None):
        chunks = _chunks(opener(file).read)
    else:
        return file
    return _sampled(Stream(chunks, place, Allowance(place, size)))


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(functools.partial(read, CHUNK), b"")


def _zstandard_chunks(file: io.BufferedReader, place: str) -> Iterator[bytes]:
    """Yield the content of a Zstandard file. Raises EOFError if it ends within a frame, ValueError if it is damaged."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UserError(f"{place}: a Zstandard file; run `pip install zstandard`, which reads it") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTANDARD_WINDOW)
    frame = None
    try:
        while data := file.read(ZSTANDARD_BLOCK):
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


def _zip_members(file: io.BufferedReader, name: str) -> Iterator[Member]:
    """Yield the files of a zip file, sorted by name."""
    with zipfile.ZipFile(file) as archive:
        infos = [(_name_in_zip(info), info) for info in archive.infolist() if info.file_size]  # a name may come twice
        if not DOCUMENTS.isdisjoint(member for member, _ in infos):
            raise UserError(f"{name}: a document of an office program, {CONVERT}")
        for member, info in sorted(infos, key=lambda item: item[0]):
            with archive.open(info) as content:
                yield member, content.read


def _name_in_zip(info: zipfile.ZipInfo) -> str:
    """Return the name of a member. Windows writes it in the charset of its language; `zipfile` decodes it as cp437.

    From Python 3.12 on, `zipfile` takes the name in an extra field (0x7075, of WinRAR) instead, if there is one.
    """
    is_unicode = info.flag_bits & UTF_8_NAME or info.filename != info.orig_filename
    return info.filename if is_unicode else name_of(info.orig_filename.encode("cp437"))


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
        tarfile.TarInfo.frombuf(head[:TAR_HEADER], "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def _tar_members(stream: io.BufferedReader) -> Iterator[Member]:
    """Yield the files of a tar file in its order."""
    with tarfile.open(
        fileobj=stream, mode="r|", tarinfo=_TarInfo, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all headers
            content = archive.extractfile(info) if info.isreg() and not info.issparse() and info.size else None
            if content is not None:
                yield name_of(info.name.encode("utf-8", "surrogateescape")), content.read

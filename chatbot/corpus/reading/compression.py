"""Streams that are decompressed while they are read, with a limit on the decompressed size."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from chatbot.corpus.reading.file_kinds import ZSTANDARD
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

# The limit in bytes: FREE_OUTPUT + OUTPUT_RATIO for each compressed byte. Text compresses to a tenth at best.
FREE_OUTPUT = 64 * 2**20
OUTPUT_RATIO = 100

SAMPLE = 256 * 2**10  # bytes at the beginning of a content, by which it is told what it is
Read = Callable[[int], bytes]  # returns at most this many bytes, fewer only at the end

ZSTANDARD_BLOCK = 2**10  # bytes of input at once, which expand to 32 MiB at most
ZSTANDARD_WINDOW = 2**31  # bytes; large dumps are compressed with --long=31
OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


class Stream(io.RawIOBase):
    """A raw stream over a read function, for io.BufferedReader and io.TextIOWrapper."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # any writable buffer, named only since 3.12
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def buffered(stream: io.RawIOBase) -> io.BufferedReader:
    """Return a stream whose first SAMPLE bytes can be peeked at."""
    reader: io.BufferedReader = io.BufferedReader(stream, SAMPLE)
    reader.peek()  # fills the whole buffer without consuming it
    return reader


class Allowance:
    """The number of bytes that a compressed file of this size in bytes may still expand to."""

    def __init__(self, place: str, compressed_size: int) -> None:
        self.place, self.remaining = place, FREE_OUTPUT + OUTPUT_RATIO * compressed_size

    def spend(self, count: int) -> None:
        """Subtract these bytes. Raises UserError if fewer remain."""
        self.remaining -= count
        if self.remaining < 0:
            raise UserError(
                f"{self.place}: refused, it expands to more than {FREE_OUTPUT // 2**20} MiB and {OUTPUT_RATIO} times "
                "its size; if it is genuine, unpack it and give the file"
            )


def guarded(decompress: Read, place: str, allowed: Allowance | None = None) -> Read:
    """Return a function that reads the data of a file in an archive, or decompressed data.

    It raises UserError for damaged data, and for more data than the allowance.
    """

    def read(size: int) -> bytes:
        try:
            data = decompress(size)
        except (EOFError, tarfile.TarError):
            raise UserError(f"{place}: the data ends early; download the file again") from None
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, ValueError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk, not of the content
            raise UserError(f"{place}: the data is damaged; download the file again") from None
        if allowed:
            allowed.spend(len(data))
        return data

    return read


def decompress(file: io.BufferedReader, place: str, size: int, report: Report) -> Stream:
    """Return the content of a file of this size in bytes, decompressed if it is gzip, bzip2, xz or Zstandard."""
    head = file.peek(6)

    def counted(count: int) -> bytes:
        data = file.read(count)
        report.read_bytes += len(data)
        return data

    plain = Stream(counted)
    unpack: Read | None = None
    if head.startswith(ZSTANDARD):
        unpack = reading(_zstandard_chunks(plain, place))
    for magic, opener in OPENERS.items():
        if head.startswith(magic):
            unpack = opener(io.BufferedReader(plain)).read
    return Stream(guarded(unpack, place, Allowance(place, size))) if unpack else plain


def reading(chunks: Iterator[bytes]) -> Read:
    """Return a function that reads from these chunks."""
    buffer = bytearray()

    def read(size: int) -> bytes:
        while len(buffer) < size and (chunk := next(chunks, None)) is not None:
            buffer.extend(chunk)
        data = bytes(buffer[:size])
        del buffer[:size]
        return data

    return read


def _zstandard_chunks(file: Stream, place: str) -> Iterator[bytes]:
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

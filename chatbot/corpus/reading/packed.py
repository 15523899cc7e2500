"""Streams of bytes that are unpacked on the way, and refused when too much comes out of too little."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

FREE_OUTPUT = 64 * 2**20  # bytes that anything may unpack to,
OUTPUT_RATIO = 100  # and so many more for each byte of the packed file; text packs to a tenth at best

Take = Callable[[int], bytes]  # at most so many bytes, fewer only at the end

PACKERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))


class Stream(io.RawIOBase):
    """The raw stream of what a function gives, for io.BufferedReader and io.TextIOWrapper to read."""

    def __init__(self, take: Take) -> None:
        self._take = take

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # any writable buffer, named only since 3.12
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@dataclass
class Allowance:
    """How many bytes may still come out of a packed file."""

    place: str
    left: int

    def spend(self, count: int) -> None:
        """Raises UserError when more came out than is sane."""
        self.left -= count
        if self.left < 0:
            raise UserError(
                f"{self.place}: refused, it unpacks to more than {FREE_OUTPUT // 2**20} MiB and {OUTPUT_RATIO} times "
                "its size; if it is sound, unpack it and name the file"
            )


def allowance(place: str, packed_size: int) -> Allowance:
    """What a packed file of this size in bytes may give."""
    return Allowance(place, FREE_OUTPUT + OUTPUT_RATIO * packed_size)


def counted(file: BinaryIO, report: Report) -> Take:
    """Takes from the file, counting what was read from the disk."""

    def take(size: int) -> bytes:
        data = file.read(size)
        report.read_bytes += len(data)
        return data

    return take


def guarded(unpack: Take, place: str, allowed: Allowance) -> Take:
    """Takes from what unpacks; damage, and more than the allowance, are UserErrors."""

    def take(size: int) -> bytes:
        try:
            data = unpack(size)
        except EOFError:
            raise UserError(f"{place}: cut off inside its packed data; was it fetched whole? Fetch it again") from None
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError, ValueError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's trouble, not the content's
            raise UserError(f"{place}: its packed data is damaged; fetch it again") from None
        allowed.spend(len(data))
        return data

    return take


def unpacked(file: io.BufferedReader, place: str, size: int, report: Report) -> Stream:
    """The content of a file of this size in bytes: as it stands, or out of gzip, bzip2 or xz by its first bytes."""
    head = file.peek(6)
    plain = Stream(counted(file, report))
    for magic, packer in PACKERS:
        if head.startswith(magic):
            return Stream(guarded(packer(io.BufferedReader(plain)).read, place, allowance(place, size)))
    return plain

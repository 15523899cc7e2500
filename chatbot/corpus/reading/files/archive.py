"""The members of zip and tar files, as streams. Nothing is written to disk; links and devices are skipped."""

import struct
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.files.compression import Read, Stream, allowance, guarded
from chatbot.corpus.reading.files.file_names import is_hidden
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

ZIP = (b"PK\3\4", b"PK\5\6")
TAR_HEADER = 512  # bytes


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    place: str  # for messages: "a.zip: b.tsv"
    stream: Stream


def zip_members(path: Path, name: str, report: Report, wanted: Sequence[str] = ()) -> Iterator[Member]:
    """Yield the files of the zip, sorted by name. wanted: the names of those to read, () for all.

    Each content must be read before the next is requested. Raises UserError for a zip file that is damaged, encrypted,
    compressed by an unknown method, suspiciously large when decompressed, or empty.
    """
    size = path.stat().st_size
    before = report.read_bytes
    try:
        with zipfile.ZipFile(path) as archive:
            infos = _chosen(archive, name, wanted)
            allowed = allowance(name, size)
            allowance(name, size).spend(sum(info.file_size for info in infos))  # as its directory declares
            for info in infos:
                place = f"{name}: {one_line(info.filename)}"
                if info.flag_bits & 1:
                    raise UserError(f"{place}: encrypted; unpack it and give the file")
                with archive.open(info) as member:
                    stream = Stream(_with_progress(guarded(member.read, place, allowed), info, report))
                    yield Member(info.filename, place, stream)
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, UnicodeError):
        raise UserError(f"{name}: damaged zip file; download it again") from None
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(f"{name}: cannot be unpacked ({error}); unpack it yourself and give the file") from None
    report.read_bytes = before + size


def _chosen(archive: zipfile.ZipFile, name: str, wanted: Sequence[str]) -> list[zipfile.ZipInfo]:
    infos = {info.filename: info for info in archive.infolist() if info.file_size}
    if "[Content_Types].xml" in infos:
        raise UserError(f"{name}: an Office document; save the table as CSV (UTF-8) and give that file")
    files = [infos[member] for member in sorted(infos) if not member.endswith("/") and _is_read(member, wanted)]
    if not files:
        raise UserError(f"{name}: the zip file contains no file of pairs; give another")
    return files


def _is_read(member: str, wanted: Sequence[str]) -> bool:
    return member in wanted if wanted else bool(member) and not is_hidden(member)


def _with_progress(read: Read, info: zipfile.ZipInfo, report: Report) -> Read:
    before, done = report.read_bytes, 0

    def counting_read(size: int) -> bytes:
        nonlocal done
        data = read(size)
        done += len(data)
        report.read_bytes = before + info.compress_size * done // info.file_size
        return data

    return counting_read


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


def tar_members(file: BinaryIO, name: str, wanted: Sequence[str] = ()) -> Iterator[Member]:
    """Yield the files of a tar file in its order. wanted: the names of those to read, () for all.

    Each content must be read before the next is requested. Raises UserError for a tar file that is damaged or has no
    files.
    """
    found = False
    try:
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_TarInfo, errors="replace") as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all headers
                if not info.isreg() or info.issparse() or not info.size or not _is_read(info.name, wanted):
                    continue
                member = archive.extractfile(info)
                assert member is not None
                found = True
                place = f"{name}: {one_line(info.name)}"
                yield Member(info.name, place, Stream(_whole(member.read, name)))
    except (tarfile.TarError, ValueError, EOFError, OverflowError):
        raise UserError(f"{name}: damaged tar file; download it again") from None
    if not found:
        raise UserError(f"{name}: the tar file contains no file of pairs; give another")


def _whole(read: Read, name: str) -> Read:
    def checked_read(size: int) -> bytes:
        try:
            return read(size)
        except tarfile.TarError:
            raise UserError(f"{name}: the tar file ends early; download it again") from None

    return checked_read

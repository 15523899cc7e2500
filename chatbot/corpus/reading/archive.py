"""The members of zip and tar files, as streams. Nothing is written to disk; links and devices are skipped."""

import io
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from chatbot.corpus.reading.charset import name_of
from chatbot.corpus.reading.compression import Allowance, Stream, buffered, guarded
from chatbot.corpus.reading.file_kinds import CONVERT, is_document, is_hidden
from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

UTF_8_NAME = 0x800  # the flag of a zip file's member whose name is in UTF-8
TAR_HEADER = 512  # bytes


class OpenFile(NamedTuple):
    """The decompressed content of a file, or of a member of an archive."""

    member: str  # its name in the archive, "" for a file that is no archive
    place: str  # for messages: "a.zip: b.tsv"
    stream: io.BufferedReader  # that has read its first SAMPLE bytes


def zip_members(path: Path, name: str, report: Report, members: Sequence[str] = ()) -> Iterator[OpenFile]:
    """Yield the files of the zip, sorted by name. members: the names of those to read, () for all.

    Each content must be read before the next is requested. Raises UserError for a zip file that is damaged, encrypted,
    compressed by an unknown method, suspiciously large when decompressed, or empty.
    """
    size = path.stat().st_size
    before = report.read_bytes
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = _chosen(archive, name, members)
            allowed = Allowance(name, size)
            Allowance(name, size).spend(sum(info.file_size for info in infos.values()))  # as its directory declares
            for member_name, info in infos.items():
                place = f"{name}: {one_line(member_name)}"
                if info.flag_bits & 1:
                    raise UserError(f"{place}: encrypted; unpack it and give the file")
                with archive.open(info) as member:
                    yield OpenFile(member_name, place, buffered(Stream(guarded(member.read, place, allowed))))
                report.read_bytes = before + file.tell()
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, UnicodeError):
        raise UserError(f"{name}: damaged zip file; download it again") from None
    except (NotImplementedError, RuntimeError) as error:  # of zipfile: a way of compression, a password
        raise UserError(f"{name}: cannot be unpacked ({error}); unpack it yourself and give the file") from None
    report.read_bytes = before + size


def _chosen(archive: zipfile.ZipFile, name: str, members: Sequence[str]) -> dict[str, zipfile.ZipInfo]:
    """Return the members to read by their names, sorted."""
    infos = {_name_in_zip(info): info for info in archive.infolist() if info.file_size}
    if is_document(infos):
        raise UserError(f"{name}: a document of an office program, {CONVERT}")
    chosen = {member: infos[member] for member in sorted(infos) if member[-1:] != "/" and _is_read(member, members)}
    if not chosen:
        raise UserError(f"{name}: the zip file contains no file of pairs; give another")
    return chosen


def _name_in_zip(info: zipfile.ZipInfo) -> str:
    """Return the name of a member. Windows writes it in the charset of its language; `zipfile` decodes it as cp437.

    From Python 3.12 on, `zipfile` takes the name in an extra field (0x7075, of WinRAR) instead, if there is one.
    """
    is_unicode = info.flag_bits & UTF_8_NAME or info.filename != info.orig_filename
    return info.filename if is_unicode else name_of(info.orig_filename.encode("cp437"))


def _is_read(member: str, members: Sequence[str]) -> bool:
    return member in members if members else bool(member) and not is_hidden(member)


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


def tar_members(file: BinaryIO, name: str, members: Sequence[str] = ()) -> Iterator[OpenFile]:
    """Yield the files of a tar file in its order. members: the names of those to read, () for all.

    Each content must be read before the next is requested. Raises UserError for a tar file that is damaged or has no
    files.
    """
    has_files = False
    try:
        with tarfile.open(
            fileobj=file, mode="r|", tarinfo=_TarInfo, encoding="utf-8", errors="surrogateescape"
        ) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all headers
                member_name = name_of(info.name.encode("utf-8", "surrogateescape"))
                if not info.isreg() or info.issparse() or not info.size or not _is_read(member_name, members):
                    continue
                member = archive.extractfile(info)
                assert member is not None
                has_files = True
                place = f"{name}: {one_line(member_name)}"
                yield OpenFile(member_name, place, buffered(Stream(guarded(member.read, name))))
    except (tarfile.TarError, ValueError, EOFError, OverflowError):
        raise UserError(f"{name}: damaged tar file; download it again") from None
    if not has_files:
        raise UserError(f"{name}: the tar file contains no file of pairs; give another")

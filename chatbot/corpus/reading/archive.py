"""The members of a zip file, as streams."""

import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from chatbot.corpus.reading.compression import Read, Stream, allowance, guarded
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError


def members(path: Path, name: str, report: Report, wanted: Sequence[str] = ()) -> Iterator[tuple[str, Stream]]:
    """Yield (place, content) for each file of the zip, sorted by name, or for the wanted file names in their order.

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
                    yield place, Stream(_with_progress(guarded(member.read, place, allowed), info, report))
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, UnicodeError):
        raise UserError(f"{name}: damaged zip file; download it again") from None
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(f"{name}: cannot be unpacked ({error}); unpack it yourself and give the file") from None
    report.read_bytes = before + size


def _chosen(archive: zipfile.ZipFile, name: str, wanted: Sequence[str]) -> list[zipfile.ZipInfo]:
    infos = {info.filename: info for info in archive.infolist() if info.file_size}
    if "[Content_Types].xml" in infos:
        raise UserError(f"{name}: an Office document; save the table as CSV (UTF-8) and give that file")
    files = [infos[member] for member in sorted(infos) if not _is_ignored(member)]
    if not files:
        raise UserError(f"{name}: the zip file contains no file of pairs; give another")
    if wanted:
        named = {PurePosixPath(info.filename).name: info for info in reversed(files)}
        return [named[file] for file in wanted if file in named]
    return files


def _is_ignored(member: str) -> bool:
    name = member.rpartition("/")[2]  # empty for a folder
    return not name or name.startswith(".") or member.startswith("__MACOSX/")


def _with_progress(read: Read, info: zipfile.ZipInfo, report: Report) -> Read:
    before, done = report.read_bytes, 0

    def counting_read(size: int) -> bytes:
        nonlocal done
        data = read(size)
        done += len(data)
        report.read_bytes = before + info.compress_size * done // info.file_size
        return data

    return counting_read

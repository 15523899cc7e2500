"""The members of a zip file, each as a stream."""

import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from chatbot.corpus.reading.packed import Stream, Take, allowance, guarded
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.shown import shown
from chatbot.errors import UserError


def members(path: Path, name: str, report: Report, wanted: Sequence[str] = ()) -> Iterator[tuple[str, Stream]]:
    """(place, content) of each file in the zip by name, or of the wanted file names in their order.

    A content is to be read before the next is asked for. Raises UserError for a zip that is damaged, encrypted,
    packed in an unknown way, refused for what it unpacks to, or without a file.
    """
    size = path.stat().st_size
    before = report.read_bytes
    try:
        with zipfile.ZipFile(path) as archive:
            infos = _chosen(archive, name, wanted)
            allowed = allowance(name, size)
            allowance(name, size).spend(sum(info.file_size for info in infos))  # what it says of itself
            for info in infos:
                place = f"{name}: {shown(info.filename)}"
                if info.flag_bits & 1:
                    raise UserError(f"{place}: encrypted; unpack it and name the file")
                with archive.open(info) as member:
                    yield place, Stream(_progressing(guarded(member.read, place, allowed), info, report))
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, UnicodeError):
        raise UserError(f"{name}: a damaged zip file; was it fetched whole? Fetch it again") from None
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(f"{name}: cannot be unpacked ({error}); unpack it and name the file") from None
    report.read_bytes = before + size


def _chosen(archive: zipfile.ZipFile, name: str, wanted: Sequence[str]) -> list[zipfile.ZipInfo]:
    infos = {info.filename: info for info in archive.infolist() if info.file_size}
    if "[Content_Types].xml" in infos:
        raise UserError(f"{name}: an Office document; save the table as CSV (UTF-8) and name that file")
    files = [infos[member] for member in sorted(infos) if not _is_passed_over(member)]
    if not files:
        raise UserError(f"{name}: a zip file with no file of pairs in it; name another")
    if wanted:
        named = {PurePosixPath(info.filename).name: info for info in reversed(files)}
        return [named[file] for file in wanted if file in named]
    return files


def _is_passed_over(member: str) -> bool:
    name = member.rpartition("/")[2]  # a folder's is empty
    return not name or name.startswith(".") or member.startswith("__MACOSX/")


def _progressing(take: Take, info: zipfile.ZipInfo, report: Report) -> Take:
    before, done = report.read_bytes, 0

    def taken(size: int) -> bytes:
        nonlocal done
        data = take(size)
        done += len(data)
        report.read_bytes = before + info.compress_size * done // info.file_size
        return data

    return taken

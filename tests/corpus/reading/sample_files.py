"""Test files: writing, compressing and reading them, and one valid file of each format."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.reading.turns import NEXT, OVERLAP, Pair
from chatbot.errors import UserError

Pairs = list[tuple[str, str]]


def written(folder: Path, name: str, content: str | bytes) -> Path:
    """A file with this content."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    """A zip file with these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(members: Mapping[str, str | bytes], compression: str = "", form: str = "pax", names: str = "utf-8") -> bytes:
    """A tar file with these members. form: pax, gnu or ustar. names: the charset of the names."""
    buffer = io.BytesIO()
    number = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}[form]
    mode = f"w:{compression}"
    with tarfile.open(fileobj=buffer, mode=mode, format=number, encoding=names) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            data = content if isinstance(content, bytes) else content.encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
    "zip": lambda content: zipped({"inner": content}),
}


def texts(pairs: Iterable[Pair]) -> Pairs:
    """The pairs without their links."""
    return [(question, answer) for question, answer, *_ in pairs]


def pairs_of(path: Path, columns: Sequence[str] = (), **options: Any) -> tuple[Pairs, Report]:
    """All pairs of a file, and the report. options: others of ReadOptions."""
    (source,) = find_sources([str(path)])
    report = Report()
    pairs = texts(read(source, report, ReadOptions(tuple(columns), **options)))
    assert report.pairs == len(pairs)
    assert report.file == source.name
    assert report.read_bytes == sum(path.stat().st_size for path in source.paths)
    return pairs, report


def conversations(pairs: Iterable[Pair]) -> list[list[str]]:
    """The turns of each conversation, joined again by the links."""
    found: list[list[str]] = []
    for question, answer, link, *_ in pairs:
        if link == OVERLAP:
            assert found[-1][-1] == question
            found[-1].append(answer)
        elif link == NEXT:
            found[-1] += question, answer
        else:
            found.append([question, answer])
    return found


def conversations_of(path: Path, me: str | None = None, **options: str) -> tuple[list[list[str]], Report]:
    """The conversations of a file, and the report. options: others of ReadOptions."""
    (source,) = find_sources([str(path)])
    report = Report()
    return conversations(read(source, report, ReadOptions((), me=me, **options))), report


def dropped(report: Report) -> dict[str, int]:
    """The number of items dropped for each reason."""
    return {reason: entry.count for reason, entry in report.dropped.items()}


def pairs_or_one_line(path: Path, **options: Any) -> Pairs | str:
    """The result of reading any file: pairs of valid text, or an error of one line."""
    try:
        pairs, _ = pairs_of(path, **options)
    except UserError as error:
        message = str(error)
    else:
        for pair in pairs:
            for utterance in pair:
                assert isinstance(utterance, str)
                assert "\ufffd" not in utterance
                utterance.encode()
        return pairs
    assert message
    assert "\n" not in message
    return message


def cut_and_damaged(folder: Path, content: bytes) -> list[Pairs | str]:
    """The results of reading a file that is cut at some tenths; one with a wrong byte there is read, too."""
    results = []
    for place in (len(content) * tenth // 10 for tenth in (1, 3, 6, 9)):
        results.append(pairs_or_one_line(written(folder, "cut", content[:place])))
        damaged = bytes([*content[:place], content[place] ^ 0x55, *content[place + 1 :]])
        pairs_or_one_line(written(folder, "damaged", damaged))
    return results


# One valid file of each format.
VALID: dict[str, str] = {
    "tsv": "你好\t你好呀\n吃了吗\t刚吃过\n在吗\t在的\n",
    "csv": '问题,答案\n你好,你好呀\n吃了吗,"刚吃过,你呢"\n"他说""在""",第一行\n',
    "conv": "E\nM 你好\nM 你好呀\nE\nM 吃了吗\nM 刚吃过\nM 那就好\n",
    "jsonl": '["你好", "你好呀"]\n{"question": "吃了吗", "answer": "刚吃过"}\n["甲", "乙", "丙"]\n',
    "json": '[["你好", "你好呀"],\n {"messages": [{"role": "user", "content": "吃了吗"},\n'
    '  {"role": "assistant", "content": "刚吃过"}]},\n ["甲", "乙", "丙"]]\n',
    "object": '{"train": [["你好", "你好呀"]],\n "valid": [["甲", "乙", "丙"]]}\n',
    "yaml": "categories:\n- 问候\nconversations:\n- - 你好\n  - 你好呀\n- - 吃了吗\n  - 刚吃过\n  - 那就好\n",
}

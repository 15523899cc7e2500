"""gzip, bzip2, xz and zip: valid, truncated and damaged files, and decompression bombs."""

import bz2
import collections
import gzip
import io
import lzma
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from chatbot.corpus.reading import compression
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import Source
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import (
    COMPRESSORS,
    VALID,
    cut_and_damaged,
    dropped,
    pairs_of,
    pairs_or_one_line,
    written,
    zipped,
)

CONTENT = VALID["tsv"].encode()


@pytest.mark.parametrize("method", COMPRESSORS)
def test_compression_is_detected_from_content(tmp_path: Path, method: str) -> None:
    plain, _ = pairs_of(written(tmp_path, "plain", CONTENT))
    pairs, report = pairs_of(written(tmp_path, "compressed.txt", COMPRESSORS[method](CONTENT)))
    assert pairs == plain
    assert (report.formats, report.charsets) == (["tsv"], ["UTF-8"])


def test_files_in_zip_are_read_in_order(tmp_path: Path) -> None:
    members = {
        "b.tsv": "丙\t丁\n没有\n戊\t己\n",
        "a/a.jsonl": '["甲", "乙"]\n',
        "README.md": "# About\n\nSome pairs of text.\n",
        "empty.tsv": "",
        "__MACOSX/b.tsv": "x\ty\n",
        "a/.hidden": "x\ty\n",
    }
    path = written(tmp_path, "z", zipped(members))
    pairs, report = pairs_of(path)
    assert pairs == [("甲", "乙"), ("丙", "丁"), ("戊", "己")]
    assert report.formats == ["jsonl", "tsv"]
    assert report.lines() == [
        f"files that are not pairs by their names: 1 (first: {path}: README.md)",
        f"lines without a tab: 1 (first: {path}: b.tsv, line 2)",
    ]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "contains no file of pairs"),
        ({"empty": "", ".": "甲\t乙\n"}, "contains no file of pairs"),
        ({"README": "Some words.\nMore words.\n"}, "README: unknown format, it begins with 'Some words.↵More"),
        ({"[Content_Types].xml": "<x/>", "xl/sheet.xml": "<x/>"}, "a document of an office program"),
    ],
)
def test_zip_without_pairs_is_an_error(tmp_path: Path, members: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "z", zipped(members)))
    assert message in str(error.value)


def test_encrypted_zip_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped({"a.tsv": CONTENT}))
    content[6] |= 1
    content[content.rindex(b"PK\1\2") + 8] |= 1
    with pytest.raises(UserError, match=r"a.tsv: encrypted; unpack it"):
        pairs_of(written(tmp_path, "z", bytes(content)))


def test_zip_member_without_name_is_an_error(tmp_path: Path) -> None:
    content = bytearray(zipped({"a": CONTENT}))
    entry = content.rindex(b"PK\1\2")
    content[entry + 28], content[entry + 30] = 0, 1  # the name's one character becomes an extra field
    with pytest.raises(UserError, match=r"contains no file of pairs|damaged zip"):
        pairs_of(written(tmp_path, "z", bytes(content)))


def test_unknown_zip_compression_is_an_error(tmp_path: Path) -> None:
    content = bytearray(zipped({"a.tsv": CONTENT}))
    content[8] = content[content.rindex(b"PK\1\2") + 10] = 97
    with pytest.raises(UserError, match=r"cannot be unpacked"):
        pairs_of(written(tmp_path, "z", bytes(content)))


@pytest.mark.parametrize("method", COMPRESSORS)
@pytest.mark.parametrize("size", [1, 30_000])
def test_truncated_and_damaged_files_give_pairs_or_one_line(tmp_path: Path, method: str, size: int) -> None:
    lines = "".join(f"问{i * 7919 % 10007}\t答{i * 104729 % 10007}\n" for i in range(size))
    *results, last = cut_and_damaged(tmp_path, COMPRESSORS[method](lines.encode()))
    assert all(isinstance(result, str) for result in (*results, last))
    if size > 1:
        assert ("damaged zip file" if method == "zip" else "the data ends early") in str(last)


def bomb(method: str) -> bytes:
    """200 MB of the same pair, compressed."""
    block = b"a\tb\n" * 250_000
    buffer = io.BytesIO()
    if method == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a", "w") as member:
            for _ in range(200):
                member.write(block)
    elif method == "gz":
        deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        repeatable = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
        buffer.write(gzip.compress(b"")[:10] + 200 * repeatable)  # of one member
    else:
        compressors: dict[str, Callable[[bytes], bytes]] = {
            "bz2": bz2.compress,
            "xz": lzma.compress,
            "zst": zstandard.compress,
        }
        compress = compressors[method]
        buffer.write(compress(block) * 200)  # concatenated streams are one
    return buffer.getvalue()


@pytest.mark.parametrize("method", COMPRESSORS)
def test_decompression_bomb_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(compression, "FREE_OUTPUT", 2**20)
    monkeypatch.setattr(compression, "OUTPUT_RATIO", 2)
    path = written(tmp_path, "bomb", bomb(method))
    pairs = read(Source("bomb", (path,), "file"), Report())
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"refused, it expands to more than 1 MiB and 2 times its size"):
            collections.deque(pairs, maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 30 * 2**20  # xz alone keeps the last 8 MiB
    finally:
        tracemalloc.stop()


def test_zip_with_wrong_sizes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "FREE_OUTPUT", 2**20)
    monkeypatch.setattr(compression, "OUTPUT_RATIO", 2)
    content = bytearray(bomb("zip"))
    entry = content.rindex(b"PK\1\2")
    content[entry + 24 : entry + 28] = (1000).to_bytes(4, "little")
    assert isinstance(pairs_or_one_line(written(tmp_path, "bomb", bytes(content))), str)


def test_dropped_lines_of_compressed_file_are_counted(tmp_path: Path) -> None:
    _, report = pairs_of(written(tmp_path, "a", gzip.compress("甲\t乙\n丙\n丁\t戊\n".encode())))
    assert dropped(report) == {"lines without a tab": 1}

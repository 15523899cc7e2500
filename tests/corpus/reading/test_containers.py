"""Compressed files, zip and tar files: what they contain, truncated and damaged ones, and bombs."""

import collections
import gzip
import io
import json
import random
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading import containers
from chatbot.corpus.reading.containers import Container, Content, OpenFile, Rows
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import Source, find_parts
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import (
    COMPRESSORS,
    VALID,
    cut_and_damaged,
    pairs_of,
    pairs_or_one_line,
    tarred,
    written,
    zipped,
)

Pack = Callable[[Mapping[str, str | bytes]], bytes]
TARS: dict[str, Pack] = {f"tar{method}": partial(tarred, compression=method) for method in ("", "gz")}
LONG = "".join(chr(0x4E00 + i * 7919 % 10007) for i in range(600))
MANY = "".join(f"问{LONG[i % 499 :][:80]}{i}\t答{i}\n" for i in range(1500))  # longer than a sample
PACKED = {
    **{method: compress(MANY.encode()) for method, compress in COMPRESSORS.items()},
    **{method: pack({"a.tsv": MANY[:70_000], "b.tsv": MANY}) for method, pack in TARS.items()},
    "one pair.zip": zipped({"a.tsv": "甲\t乙\n"}),
}


@pytest.fixture
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file may expand to is little."""
    monkeypatch.setattr(containers, "FREE_OUTPUT", 2**20)
    monkeypatch.setattr(containers, "OUTPUT_RATIO", 2)


@pytest.mark.parametrize("kind", PACKED)
def test_truncated_and_damaged_files_give_pairs_or_one_line(tmp_path: Path, kind: str) -> None:
    results = cut_and_damaged(tmp_path, PACKED[kind])
    assert all(isinstance(result, str) for result in results)
    if kind in COMPRESSORS:
        assert ("damaged zip file" if kind == "zip" else "the data ends early") in str(results[-1])


@pytest.mark.parametrize("compression", ["", "gz"])
@given(data=st.data())
def test_mutated_tars_give_pairs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, compression: str, data: st.DataObject
) -> None:
    content = bytearray(tarred({"train.tsv": "甲\t乙\n", "x/dev.json": VALID["json"]}, compression))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = written(tmp_path_factory.getbasetemp(), "mutated", bytes(content))
    pairs_or_one_line(path)
    find_parts([str(path)])


def test_a_container_is_added_by_its_first_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with two others, of which one holds rows."""

    def opened(container: Container) -> Iterator[Content]:
        _, text, rows = container.stream.read().split(b"\0")
        for member in ("train.tsv", "dev.tsv"):
            if not container.members or member in container.members:
                yield OpenFile(member, f"{container.name}: {member}", io.BufferedReader(io.BytesIO(text)))
        if not container.members:
            yield Rows("json", iter(json.loads(rows)))

    content = "NEW\0甲\t乙\n\0" + json.dumps([{"question": "丙", "answer": "丁"}])
    path = written(tmp_path, "a.new", content)
    with pytest.raises(UserError, match="unknown format, it begins with"):
        pairs_of(path)
    monkeypatch.setitem(containers.CONTAINERS, b"NEW\0", opened)
    pairs, report = pairs_of(path)
    assert (pairs, report.formats) == ([("甲", "乙"), ("甲", "乙"), ("丙", "丁")], ["tsv", "json"])
    path.touch()
    parts = find_parts([str(path)])
    assert [source.members for source in (*parts.training, *parts.validation)] == [("train.tsv",), ("dev.tsv",)]
    with pytest.raises(UserError, match=r"a.new: not text, it begins with 'NEW.*, which is not supported"):
        pairs_of(written(tmp_path, "a.zip", zipped({"a.new": content})))


def bomb(method: str) -> bytes:
    """50 MB of the same long pair, compressed."""
    block = (b"a" * 997 + b"\tb\n") * 1000
    buffer = io.BytesIO()
    if method == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a", "w") as member:
            for _ in range(50):
                member.write(block)
    elif method == "gz":
        deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        repeatable = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
        buffer.write(gzip.compress(b"")[:10] + 50 * repeatable)  # of one member
    else:
        buffer.write(COMPRESSORS[method](block) * 50)  # concatenated streams are one
    return buffer.getvalue()


@pytest.mark.parametrize("method", COMPRESSORS)
@pytest.mark.usefixtures("_small_limit")
def test_decompression_bomb_is_refused_in_bounded_memory(tmp_path: Path, method: str) -> None:
    path = written(tmp_path, "bomb", bomb(method))
    pairs = read(Source("bomb", (path,), "file"), Report())
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"refused, it expands to more than 1 MiB and 2 times its size"):
            collections.deque(pairs, maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 30 * 2**20  # xz alone keeps the last 8 MiB
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("_small_limit")
def test_other_bombs_are_refused(tmp_path: Path) -> None:
    """A tar file, many files, and a zip file that gives a wrong size."""
    part = ("a" * 997 + "\tb\n") * 800
    for content in (tarred({"a.tsv": part * 5}, "gz"), zipped({f"{n}.tsv": part for n in range(5)})):
        with pytest.raises(UserError, match=r"refused, it expands to more than 1 MiB"):
            pairs_of(written(tmp_path, "t", content))
    wrong = bytearray(bomb("zip"))
    entry = wrong.rindex(b"PK\1\2")
    wrong[entry + 24 : entry + 28] = (1000).to_bytes(4, "little")
    assert isinstance(pairs_or_one_line(written(tmp_path, "bomb", bytes(wrong))), str)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_archive_in_an_archive_is_named(tmp_path: Path, pack: Pack) -> None:
    for method, compress in COMPRESSORS.items():
        inner = compress("甲\t乙\n".encode())
        with pytest.raises(UserError, match=r"t: inner: not text, it begins with .*, which is not supported; unpack"):
            pairs_of(written(tmp_path, "t", pack({"inner": inner})))
        pairs, report = pairs_of(written(tmp_path, "t", pack({"a.tsv": "甲\t乙\n", "inner": inner})))
        assert pairs == [("甲", "乙")], method
        assert next(iter(report.dropped.values())).first == f"{tmp_path / 't'}: inner"


def test_bytes_that_are_read_are_counted_before_the_end(tmp_path: Path) -> None:
    for number, content in enumerate((MANY.encode(), *PACKED.values())):
        path = written(tmp_path, str(number), content)
        report = Report(read_bytes=5)
        pairs = read(Source("a", (path,), "file"), report)
        first, answer, _ = next(pairs)
        assert (f"{first}\t{answer}\n" in MANY) == (content != PACKED["one pair.zip"])
        assert 5 < report.read_bytes <= 5 + len(content)
        collections.deque(pairs, maxlen=0)
        assert report.read_bytes == 5 + len(content)


def test_members_of_a_large_zip_file_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """In a file that is larger than its beginning, which is kept."""
    expected = [(f"问{i}", "".join(random.Random(i).choices(LONG, k=400))) for i in range(3000)]
    lines = ["\t".join(pair) + "\n" for pair in expected]
    texts = {"b": "".join(lines[1500:]), "a": "".join(lines[:1500])}
    pairs, _ = pairs_of(written(tmp_path, "large.zip", zipped(texts)))
    assert pairs == expected
    assert (tmp_path / "large.zip").stat().st_size > containers.BEGINNING


def test_members_of_one_name_are_all_read(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for content in ("甲\t乙\n", "丙\t丁\n"):
            archive.writestr("a.tsv", content)
    assert pairs_of(written(tmp_path, "a.zip", buffer.getvalue()))[0] == [("甲", "乙"), ("丙", "丁")]

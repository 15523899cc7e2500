"""Tar and zip files: what they contain, damaged ones, and bombs."""

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading import compression
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
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

TARS = ["", "gz", "bz2", "xz"]


@pytest.mark.parametrize("compression", TARS)
def test_tar_members_are_read_like_files(tmp_path: Path, compression: str) -> None:
    members = {
        "./b.tsv": "丙\t丁\n没有\n",
        "x/a.csv": '问题,答案\n甲,"乙,乙"\n',
        "x/.hidden": "x\ty\n",
        "x/README.md": "text",
    }
    path = written(tmp_path, "t", tarred(members, compression))
    pairs, report = pairs_of(path)
    assert pairs == [("丙", "丁"), ("甲", "乙,乙")]
    assert report.lines() == [
        f"lines without a tab: 1 (first: {path}: ./b.tsv, line 2)",
        f"files that are not pairs by their names: 1 (first: {path}: x/README.md)",
    ]


def test_links_and_devices_in_a_tar_are_skipped(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo(f"entry{kind.decode()}")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        info = tarfile.TarInfo("a.tsv")
        info.size = 8
        archive.addfile(info, io.BytesIO("甲\t乙\n".encode()))
    assert pairs_of(written(tmp_path, "t", buffer.getvalue()))[0] == [("甲", "乙")]


@pytest.mark.parametrize("compression", TARS)
def test_truncated_and_damaged_tars_give_pairs_or_one_line(tmp_path: Path, compression: str) -> None:
    rows = "".join(f"问{i * 7919 % 10007}\t答{i * 104729 % 10007}\n" for i in range(5000))
    results = cut_and_damaged(tmp_path, tarred({"a.tsv": rows, "b.tsv": rows}, compression))
    assert all(isinstance(result, str) for result in results)


@pytest.mark.parametrize("compression", ["", "gz"])
@given(data=st.data())
@settings(deadline=None, max_examples=60)
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


def test_damaged_header_in_a_tar_is_an_error(tmp_path: Path) -> None:
    content = bytearray(tarred({"a.tsv": "甲\t乙\n", "b.tsv": "丙\t丁\n"}))
    content[1024 + 5] ^= 0x55  # in the second header; tarfile alone would end the archive here
    with pytest.raises(UserError, match=r"damaged tar file; download it again"):
        pairs_of(written(tmp_path, "t", bytes(content)))


def test_tar_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "FREE_OUTPUT", 2**20)
    monkeypatch.setattr(compression, "OUTPUT_RATIO", 2)
    with pytest.raises(UserError, match=r"refused, it expands to more than 1 MiB"):
        pairs_of(written(tmp_path, "t", tarred({"a.tsv": "a\tb\n" * 10**6}, "gz")))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_archive_in_an_archive_is_named(tmp_path: Path, pack: Callable[[Mapping[str, str | bytes]], bytes]) -> None:
    for method, compress in COMPRESSORS.items():
        inner = compress("甲\t乙\n".encode())
        with pytest.raises(UserError, match=r"t: inner: no text, it begins with .*, which is not read here; unpack it"):
            pairs_of(written(tmp_path, "t", pack({"inner": inner})))
        pairs, report = pairs_of(written(tmp_path, "t", pack({"a.tsv": "甲\t乙\n", "inner": inner})))
        assert pairs == [("甲", "乙")], method
        assert next(iter(report.dropped.values())).first == f"{tmp_path / 't'}: inner"


def with_unicode_names(names: Mapping[bytes, str]) -> bytes:
    """A zip file with a file of a pair for each name, and these other names in extra fields, as WinRAR writes them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for letter, (raw, name) in zip("xyz", names.items(), strict=False):
            info = zipfile.ZipInfo(letter * len(raw))
            field = struct.pack("<BI", 1, zlib.crc32(raw)) + name.encode()
            info.extra = struct.pack("<HH", 0x7075, len(field)) + field
            archive.writestr(info, f"{name}\t乙\n")
    content = buffer.getvalue()
    for placeholder, raw in zip((b"x", b"y", b"z"), names, strict=False):
        content = content.replace(placeholder * len(raw), raw)
    return content


@pytest.mark.parametrize("names", [["语料/训练集.tsv", "语料/测试集.tsv"], ["é/train.tsv", "é/test.tsv"]])
def test_names_in_extra_fields_of_a_zip_divide_it(work_dir: Path, names: list[str]) -> None:
    written(work_dir, "a.zip", with_unicode_names({name.encode("gb18030"): name for name in names}))
    parts = find_parts(["a.zip"])
    assert [source.name for source in parts.test] == ["a.zip (test part)"]
    assert [question for source in parts.training for question, *_ in read(source, Report())] == names[:1]

"""Sources of pairs from names, globs and folders, and their training, validation and test parts."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from chatbot.config.corpus import CorpusSettings, EncodingSettings
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.dataset import training_set
from chatbot.corpus.files import CorpusFiles, left_out, tokenise, training_files, validation_files
from chatbot.corpus.reading import sources, unpacking
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import (
    TEST,
    TRAINING,
    VALIDATION,
    Parts,
    Source,
    find_parts,
    find_sources,
    is_no_data,
    part_of,
)
from chatbot.corpus.workers import worker_pool
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import Pairs, pairs_of, tarred, written, zipped


def test_names_and_globs_give_each_source_once(work_dir: Path) -> None:
    for name in ("b.tsv", "a.tsv", "[x].tsv", "deep/er/c.tsv"):
        (work_dir / name).parent.mkdir(parents=True, exist_ok=True)
        written(work_dir, name, "甲\t乙\n")
    (work_dir / "folder.tsv").mkdir()
    assert [source.name for source in find_sources(["b.tsv", "?.tsv", "./a.tsv", "b.tsv"])] == ["b.tsv", "a.tsv"]
    assert find_sources(["[x].tsv"]) == [Source("[x].tsv", (Path("[x].tsv"),), "file")]
    assert [source.name for source in find_sources(["**/c.tsv"])] == ["deep/er/c.tsv"]


def test_no_name_gives_the_built_in_corpus() -> None:
    (source,) = find_parts([]).training
    assert source.kind == "chatterbot"
    names = [path.name for path in source.paths]
    assert len(names) > 10
    assert names == sorted(names)
    assert pickle.loads(pickle.dumps(source)) == source


def test_parallel_files_need_both_flags(work_dir: Path) -> None:
    written(work_dir, "q", "甲\n")
    written(work_dir, "a", "乙\n")
    assert find_parts([], "q", "a").training == [Source("q + a", (Path("q"), Path("a")), "parallel")]
    for given in (("q", None), (None, "a")):
        with pytest.raises(UserError, match=r"both --source-file and --target-file"):
            find_parts([], *given)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.tsv", "none.tsv: no such file"),
        ("*.none", "no file matches"),
        (".", ".: a directory without files of pairs; give a file"),
        ("a\nb", "a↵b: no such file"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        ("/dev/zero", "not a regular file"),
    ],
)
def test_invalid_source_is_reported(work_dir: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        find_sources([name])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_file_without_permission_is_reported(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(work_dir, "a.tsv", "甲\t乙\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"a.tsv: no permission"):
        find_sources(["a.tsv"])


def all_pairs(chosen: list[Source]) -> Pairs:
    return [(question, answer) for source in chosen for question, answer, *_ in read(source, Report())]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("LCCC-base_train.json", TRAINING),
        ("data/train-00000-of-00001.parquet", TRAINING),
        ("data/dev/a.csv", VALIDATION),
        ("val.csv.gz", VALIDATION),
        ("trainPairs.json", TRAINING),
        ("dev-test.tsv", TEST),
        ("微博训练集.txt", TRAINING),
        ("测试集.txt", TEST),
        ("train/test.tsv", TEST),
        ("latest.tsv", None),
        ("contest/trainer.tsv", None),
        ("train_test.tsv", None),
        ("training_camp.tsv", TRAINING),
    ],
)
def test_part_is_a_word_of_the_name(name: str, part: str | None) -> None:
    assert part_of(name) == part


@pytest.mark.parametrize(("name", "expected"), [("README", True), ("a/LICENSE.txt", True), ("readmes.tsv", False)])
def test_documentation_is_known_by_its_name(name: str, expected: bool) -> None:
    assert is_no_data(name) == expected


FILES = {
    "LCCC_train.tsv": "甲\t乙\n",
    "LCCC_valid.tsv": "丙\t丁\n",
    "LCCC_test.tsv": "戊\t己\n",
    "more.tsv": "庚\t辛\n",
    "README.md": "| a | b |\n",
}


def container(folder: Path, kind: str) -> str:
    """The same training, validation and test parts, in a folder, an archive or an object."""
    if kind == "folder":
        (folder / "corpus").mkdir()
        for name, content in FILES.items():
            written(folder / "corpus", name, content)
        return str(folder / "corpus")
    if kind == "object":
        lists = {
            "train": [["甲", "乙"]],
            "valid": [["丙", "丁"]],
            "test": [["戊", "己"]],
            "conversations": [["庚", "辛"]],
        }
        return str(written(folder, "LCCC.json", json.dumps(lists)))
    packed = zipped(FILES) if kind == "zip" else tarred(FILES, kind.removeprefix("tar"))
    return str(written(folder, "corpus.bin", packed))


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "targz", "object"])
def test_container_is_divided_into_its_parts(work_dir: Path, kind: str) -> None:
    name = container(Path("."), kind)
    parts = find_parts([name])
    assert all_pairs(parts.training) == [("甲", "乙"), ("庚", "辛")]
    assert all_pairs(parts.validation) == [("丙", "丁")]
    assert parts.measured == parts.test
    assert all_pairs(parts.test) == [("戊", "己")]
    expected = "corpus/LCCC_test.tsv" if kind == "folder" else f"{name} (test part)"
    assert parts.left_out == [expected]
    assert sorted(all_pairs(find_sources([name]))) == sorted([("甲", "乙"), ("丙", "丁"), ("戊", "己"), ("庚", "辛")])


def zip_with_names(raw: list[bytes], names: list[str], has_field: bool) -> bytes:
    """A zip file with a pair for each of these names, in bytes and, if wanted, in extra fields, as WinRAR writes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for letter, written_name, name in zip("xyz", raw, names, strict=False):
            info = zipfile.ZipInfo(letter * len(written_name))
            field = struct.pack("<BI", 1, zlib.crc32(written_name)) + name.encode()
            info.extra = struct.pack("<HH", 0x7075, len(field)) + field if has_field else b""
            archive.writestr(info, f"{name}\t乙\n")
    content = buffer.getvalue()
    for placeholder, written_name in zip((b"x", b"y", b"z"), raw, strict=False):
        content = content.replace(placeholder * len(written_name), written_name)
    return content


@pytest.mark.parametrize(
    ("codec", "names", "has_field"),
    [
        ("gb18030", ["语料/训练集.txt", "语料/测试集.txt"], False),
        ("big5", ["語料/訓練集.txt", "語料/測試集.txt"], False),
        ("utf-8", ["训练集.txt", "测试集.txt"], False),
        ("gb18030", ["语料/训练集.tsv", "语料/测试集.tsv"], True),
        ("gb18030", ["é/train.tsv", "é/test.tsv"], True),
    ],
)
def test_names_in_a_zip_divide_it(work_dir: Path, codec: str, names: list[str], has_field: bool) -> None:
    written(work_dir, "c.zip", zip_with_names([name.encode(codec) for name in names], names, has_field))
    parts = find_parts(["c.zip"])
    assert parts.left_out == ["c.zip (test part)"]
    assert has_field or parts.training[0].members == (names[0],)
    assert (all_pairs(parts.training), all_pairs(parts.test)) == ([(names[0], "乙")], [(names[1], "乙")])


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("codec", ["gb18030", "utf-8"])
def test_names_in_a_tar_are_decoded_as_what_they_are(work_dir: Path, form: int, codec: str) -> None:
    with tarfile.open("c.tar", "w", format=form, encoding=codec) as archive:
        for name, content in (("语料/训练集.tsv", "甲\t乙\n"), ("语料/测试集.tsv", "丙\t丁\n")):
            info = tarfile.TarInfo(name)
            info.size = len(content.encode())
            archive.addfile(info, io.BytesIO(content.encode()))
    parts = find_parts(["c.tar"])
    assert parts.left_out == ["c.tar (test part)"]
    assert (all_pairs(parts.training), all_pairs(parts.test)) == ([("甲", "乙")], [("丙", "丁")])


@pytest.mark.parametrize("kind", ["folder", "zip", "object"])
def test_parts_have_caches_of_their_own(work_dir: Path, kind: str) -> None:
    chosen = CorpusSettings(data=(container(Path("."), kind),), cache="cache")

    def answers(files: CorpusFiles | None) -> list[str]:
        assert files is not None
        with worker_pool() as pool:
            chunks = tokenise(files, pool).chunks
        return [answer for path, _, pairs in chunks for _, answer in load_chunk(path).texts(np.arange(pairs))]

    assert answers(training_files(chosen)) == ["乙", "辛"]
    assert answers(validation_files(chosen)) == ["丁"]
    assert len(left_out(chosen)) == 1


@pytest.mark.parametrize(
    ("content", "training", "validation"),
    [
        (
            '\ufeff{"version": "1\\"", "n": 2, "train": [["甲", "乙"]], "VALID" : [["丙", "\\"dev\\": ["]]}',
            [("甲", "乙")],
            [("丙", '"dev": [')],
        ),
        (
            '{"训练集": [["甲", "乙"]], "conversations": [["丙", "丁"]], "验证集": [["戊", "己"]]}',
            [("甲", "乙"), ("丙", "丁")],
            [("戊", "己")],
        ),
        (
            '{"conversations": [["甲", "乙"]], "train": [["丙", "丁"]], "dev": [["戊", "己"]]}',
            [("甲", "乙"), ("丙", "丁"), ("戊", "己")],
            [],
        ),
    ],
)
def test_object_is_divided_if_its_first_list_is_a_part(
    tmp_path: Path, content: str, training: Pairs, validation: Pairs
) -> None:
    parts = find_parts([str(written(tmp_path, "a", content))])
    assert (all_pairs(parts.training), all_pairs(parts.validation)) == (training, validation)


def test_keys_of_a_long_object_are_found(tmp_path: Path) -> None:
    """Beyond the blocks that are read at once, and where two of them meet."""
    for length in (*range(sources.BLOCK - 60, sources.BLOCK - 30, 5), 3 * sources.BLOCK):
        content = '{"train": [["甲", "乙"],' + " " * length + '["甲", "乙"]], "dev": [["丙", "丁"]]}'
        parts = find_parts([str(written(tmp_path, f"{length}", content))])
        assert (len(all_pairs(parts.training)), all_pairs(parts.validation)) == (2, [("丙", "丁")])


def test_only_a_training_part_divides(work_dir: Path) -> None:
    for name in ("test.tsv", "dev.tsv", "train.tsv"):
        written(work_dir, name, "甲\t乙\n")
    written(work_dir, "no_train.zip", zipped({"valid.tsv": "丙\t丁\n", "latest.tsv": "戊\t己\n"}))
    for names in (["test.tsv", "train.tsv"], ["t*.tsv", "dev.tsv"], ["no_train.zip"]):
        assert find_parts(names) == Parts(find_sources(names), [], [])
        assert find_parts(names).measured == find_sources(names)


def test_archives_in_a_folder_are_divided_too(work_dir: Path) -> None:
    (work_dir / "corpus").mkdir()
    written(work_dir / "corpus", "a.zip", zipped({"train.tsv": "甲\t乙\n", "dev.tsv": "丙\t丁\n"}))
    written(work_dir / "corpus", "b.tsv.gz", gzip.compress("戊\t己\n".encode()))
    parts = find_parts(["corpus"])
    assert all_pairs(parts.training) == [("甲", "乙"), ("戊", "己")]
    assert all_pairs(parts.validation) == [("丙", "丁")]


def test_folder_is_one_source_of_all_its_files(work_dir: Path) -> None:
    for name, content in {
        "b/c.csv": "问题,答案\n甲,乙\n",
        "a.tsv": "丙\t丁\n没有\n",
        "LICENSE": "terms",
        "picture.dat": "\0\0\n\0\0\n",
        ".git/x.tsv": "x\ty\n",
    }.items():
        (work_dir / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        written(work_dir / "f", name, content)
    pairs, report = pairs_of(Path("f"))
    assert pairs == [("丙", "丁"), ("甲", "乙")]
    assert report.lines() == [
        "files that are not pairs by their names: 1 (first: f/LICENSE)",
        "lines without a tab: 1 (first: f/a.tsv, line 2)",
        "files of unknown format: 1 (first: f/picture.dat)",
    ]


def test_cache_in_the_folder_is_not_read(work_dir: Path) -> None:
    written(work_dir, "a.tsv", "甲\t乙\n")
    for cache in ("data/cache", "."):  # beside the files, and among them
        for _ in range(2):
            corpus = training_set(CorpusSettings(data=(".",), cache=cache), EncodingSettings())
            assert corpus.pairs == 1
            assert not corpus.reports[0].dropped


def test_folder_of_too_many_files_is_refused(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 3)
    for i in range(5):
        written(work_dir, f"{i}.tsv", "甲\t乙\n")
    with pytest.raises(UserError, match=r"a directory of more than 3 files; give a glob, such as \./\*\.tsv"):
        find_sources(["."])


@pytest.mark.parametrize("content", [zipped({"a.tsv": "甲\t乙\n"}), gzip.compress(b"damaged")[:-9]], ids=["zip", "gz"])
def test_each_archive_of_a_folder_is_unpacked_once_for_its_names(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (work_dir / "corpus").mkdir()
    for i in range(20):
        written(work_dir / "corpus", f"{i}.bin", content)
    opened = Mock(side_effect=unpacking.open_files)
    monkeypatch.setattr(sources, "open_files", opened)
    for _ in range(4):
        find_parts(["corpus"])
    assert opened.call_count == 20

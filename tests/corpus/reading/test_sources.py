"""Sources of pairs from names, globs and folders, and their parts; other divided files are in `wild`."""

import gzip
import os
import sys
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from chatbot.config.corpus import ENCODE, PAIRS, CorpusSettings, EncodingSettings
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.conversion import convert
from chatbot.corpus.dataset import encode_now, training_set
from chatbot.corpus.files import CorpusFiles, excluded_test_parts, tokenise, training_files, validation_files
from chatbot.corpus.reading import containers, sources
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
    part_of,
)
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import texts, written, zipped
from tests.corpus.reading.wild_files import write


def test_names_and_globs_give_each_source_once(work_dir: Path) -> None:
    for name in ("b.tsv", "a.tsv", "[x].tsv", "deep/er/c.tsv"):
        (work_dir / name).parent.mkdir(parents=True, exist_ok=True)
        written(work_dir, name, "甲\t乙\n")
    (work_dir / "folder.tsv").mkdir()
    assert [source.name for source in find_sources(["b.tsv", "?.tsv", "./a.tsv", "b.tsv"])] == ["b.tsv", "a.tsv"]
    assert find_sources(["[x].tsv"]) == [Source("[x].tsv", (Path("[x].tsv"),), "file")]
    assert [source.name for source in find_sources(["**/c.tsv"])] == ["deep/er/c.tsv"]


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
        ("*.none", "no file matches"),
        ("folder", "folder: a directory that contains no files with pairs; give a file"),
        (".", ".: a directory of more than 1 files; give a glob, such as ./*.tsv"),
        ("a\nb", "a↵b: no such file"),
        ("a\0b", "cannot be read"),
        ("/dev/zero", "not a regular file"),
        ("b.tsv", "b.tsv: no permission"),
    ],
)
def test_invalid_source_is_reported(work_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    Path("folder").mkdir()
    for file in ("a.tsv", "b.tsv"):
        written(work_dir, file, "甲\t乙\n")
    monkeypatch.setattr(sources, "MAX_FILES", 1)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "b.tsv")
    with pytest.raises(UserError) as error:
        find_sources([name])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


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


@pytest.mark.parametrize("name", ["parts", "parts.zip", "parts.json"])
def test_parts_have_caches_of_their_own(tmp_path: Path, name: str) -> None:
    chosen = CorpusSettings(data=(str(write(name, tmp_path)),), cache=str(tmp_path / "cache"))

    def answers(files: CorpusFiles | None) -> list[str]:
        assert files is not None
        chunks = tokenise(files).chunks
        return [answer for path, _, pairs in chunks for _, answer in load_chunk(path).texts(np.arange(pairs))]

    assert answers(training_files(chosen)) == ["乙", "辛"]
    assert answers(validation_files(chosen)) == ["丁"]
    left = "parts/LCCC_test.tsv" if name == "parts" else f"{name} (test part)"
    assert excluded_test_parts(chosen) == [str(tmp_path / left)]


def test_the_test_part_is_measured_or_else_the_validation_part(tmp_path: Path) -> None:
    with_test, without = (find_parts([str(write(name, tmp_path))]) for name in ("parts", "parts_in_archives"))
    assert with_test.measured == with_test.test != []
    assert without.measured == without.validation != []


def test_keys_of_a_long_object_are_found(tmp_path: Path) -> None:
    """Beyond the blocks that are read at once, and where two of them meet."""
    for length in (*range(sources.BLOCK - 60, sources.BLOCK - 30, 5), 3 * sources.BLOCK):
        content = '{"train": [["甲", "乙"],' + " " * length + '["甲", "乙"]], "dev": [["丙", "丁"]]}'
        parts = find_parts([str(written(tmp_path, f"{length}", content))])
        sides = ([*chain(*(read(source, Report()) for source in side))] for side in (parts.training, parts.validation))
        assert [*map(texts, sides)] == [[("甲", "乙")] * 2, [("丙", "丁")]]


def test_only_a_training_part_divides(work_dir: Path) -> None:
    for name in ("test.tsv", "dev.tsv", "train.tsv"):
        written(work_dir, name, "甲\t乙\n")
    written(work_dir, "no_train.zip", zipped({"valid.tsv": "丙\t丁\n", "latest.tsv": "戊\t己\n"}))
    for names in (["test.tsv", "train.tsv"], ["t*.tsv", "dev.tsv"], ["no_train.zip"]):
        assert find_parts(names) == Parts(find_sources(names), [], [])
        assert find_parts(names).measured == find_sources(names)


def test_cache_in_the_folder_is_not_read(work_dir: Path) -> None:
    """Nor that of another program, with folders in it."""
    written(work_dir, "a.tsv", "甲\t乙\n")
    Path("other/inner").mkdir(parents=True)
    written(work_dir, f"other/{sources.CACHE_TAG}", "")
    written(work_dir, "other/inner/b.tsv", "丙\t丁\n")
    for cache in ("data/cache", "."):  # beside the files, and among them
        for _ in range(2):
            corpus = training_set(CorpusSettings(data=(".",), cache=cache), EncodingSettings())
            assert corpus.pairs == 1
            assert not corpus.reports[0].dropped


@pytest.mark.parametrize("content", [zipped({"a.tsv": "甲\t乙\n"}), gzip.compress(b"damaged")[:-9]], ids=["zip", "gz"])
def test_each_archive_of_a_folder_is_unpacked_once_for_its_names(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (work_dir / "corpus").mkdir()
    for i in range(20):
        written(work_dir / "corpus", f"{i}.bin", content)
    opened = Mock(side_effect=containers.open_contents)
    monkeypatch.setattr(sources, "open_contents", opened)
    for _ in range(4):
        find_parts(["corpus"])
    assert opened.call_count == 20


@pytest.mark.parametrize(
    ("command", "settings", "most"), [(encode_now, ENCODE, 3), (convert, PAIRS, 2)], ids=["encode", "pairs"]
)
def test_a_file_is_opened_once_for_each_pass(tmp_path: Path, command: Any, settings: Any, most: int) -> None:
    """For what it is and whether spaces are between its words, for its hash, and for its pairs."""
    longer_than_its_beginning = "".join(f"问{i}{'好' * 500}\t答{i}\n" for i in range(1000))
    path, opened = written(tmp_path, "a.tsv", longer_than_its_beginning), []
    sys.addaudithook(
        lambda event, args: opened.append(event) if event == "open" and str(args[0]) == str(path) else None
    )
    command(settings.parse([str(path), "--cache", str(tmp_path / "cache")]))
    assert len(opened) == most

"""Sources of pairs from file names, globs and directories."""

import os
import pickle
from pathlib import Path

import pytest

from chatbot.corpus.reading.open.sources import Source, find_parts, find_sources
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import written


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


def test_cornell_is_one_source_under_any_of_its_names(work_dir: Path) -> None:
    folder = work_dir / "corpus"
    folder.mkdir()
    for name in ("movie_lines.txt", "movie_conversations.txt"):
        written(folder, name, "")
    paths = (Path("corpus/movie_lines.txt"), Path("corpus/movie_conversations.txt"))
    for names in (["corpus"], ["corpus/movie_lines.txt"], ["corpus/movie_conversations.txt"], ["corpus/*.txt"]):
        (source,) = find_sources(names)
        assert (source.kind, source.paths) == ("cornell", paths)
    paths[1].unlink()
    with pytest.raises(UserError, match=r"movie_conversations.txt: no such file; .*needs both of its files"):
        find_sources(["corpus/movie_lines.txt"])


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

"""The folders of the cache: whatever changes tokens or ids changes the key."""

import ast
import dataclasses
import functools
import importlib.metadata
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus import dataset
from chatbot.corpus import files as files_module
from chatbot.corpus.cache import make_once
from chatbot.corpus.dataset import corpus_folder
from chatbot.corpus.files import CorpusFiles, training_files
from chatbot.corpus.reading.containers import PARSERS
from chatbot.corpus.reading.report import ReadOptions
from chatbot.corpus.reading.sources import TRAINING, VALIDATION
from chatbot.corpus.selection import Selection
from chatbot.corpus.vocabulary import BYTES, Vocabulary

# A change of every setting by which text is cleaned and tokenised.
PREPARED = {
    "clean": ("nfkc",),
    "block_list": "words.txt",
    "tokenizer": "char",
    "dictionary": "words.txt",
}
DISTRIBUTIONS = importlib.metadata.distributions
# The same for `ReadOptions`, where --encoding is `charset`. A reader sets its `part`.
READ = {
    "columns": ("1", "3"),
    "encoding": "gb18030",
    "format": "csv",
    "me": "甲",
    "map": "@",
    "head": "{name}: ",
    "dates": "mdy",
}


@pytest.fixture
def folder(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with pairs.csv of three columns, other.csv and words.txt. No dictionary is loaded."""
    monkeypatch.setattr(files_module, "tokenizer", lambda *_: list)
    Path("pairs.csv").write_text("a,b,c\n你好,你好呀,再见\n")
    Path("other.csv").write_text("a,b,c\n你好,你好呀,回见\n")
    Path("words.txt").write_text("好呀\n")
    return work_dir


def files(**changes: Any) -> CorpusFiles:
    """The files of a corpus with these settings."""
    return training_files(CorpusSettings(**{"data": ("pairs.csv",), "cache": "cache", **changes}))


def with_version(changed: str, found: list[Any], name: str) -> list[Any]:
    """As importlib.metadata.distributions, where that of one package is found to be another one."""
    return found if name == changed else [*DISTRIBUTIONS(name=name)]


@pytest.mark.parametrize(
    "changes", [{name: value} for name, value in {**PREPARED, **READ, "data": ("other.csv",)}.items()]
)
def test_every_input_of_the_tokens_changes_their_key(folder: Path, changes: dict[str, Any]) -> None:
    assert files(**changes).key != files().key


def test_every_setting_is_tried() -> None:
    """The others choose files, select pairs, or say where the cache is. `part` is set by a reader."""
    others = {"data", "source_file", "target_file", "max_reply_frequency", "cache"}
    assert PREPARED.keys() | READ.keys() | others == {field.name for field in dataclasses.fields(CorpusSettings)}
    assert READ.keys() - {"encoding"} | {"charset", "part"} == {field.name for field in dataclasses.fields(ReadOptions)}


def test_rules_about_all_pairs_do_not_change_the_key_of_the_tokens(folder: Path) -> None:
    before = files(clean=("control",)).key
    assert files(clean=("duplicates", "control", "equal"), max_reply_frequency=2).key == before


def test_content_of_the_dictionary_counts_and_its_name_does_not(folder: Path) -> None:
    before = files(dictionary="words.txt").key
    Path("words.txt").rename("renamed.txt")
    assert files(dictionary="renamed.txt").key == before
    Path("renamed.txt").write_text("你好呀\n")
    assert files(dictionary="renamed.txt").key != before


@pytest.mark.parametrize("name", ["b.tsv.md", "x/b.tsv", "c.tsv"])
def test_names_in_a_folder_change_the_key_and_its_own_name_does_not(folder: Path, name: str) -> None:
    """Names say what is no data: a file that is documentation now would still be learned from the cache."""
    for file in ("f/a.tsv", "f/b.tsv"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(f"{file}\t你好呀\n")
    before = files(data=("f",)).key
    Path("f").rename("g")
    assert files(data=("g",)).key == before
    Path("g", name).parent.mkdir(exist_ok=True)
    Path("g/b.tsv").rename(Path("g", name))
    assert files(data=("g",)).key != before


def test_of_a_single_file_the_endings_alone_count(folder: Path) -> None:
    before = files().key
    for name, same in (("new.csv", True), ("new.CSV", True), ("new.txt", False), ("new.csv.gz", False)):
        Path(name).write_bytes(Path("pairs.csv").read_bytes())
        assert (files(data=(name,)).key == before) == same, name


def test_questions_and_answers_are_not_interchangeable(folder: Path) -> None:
    given = {"data": (), "source_file": "pairs.csv", "target_file": "other.csv"}
    assert files(**given).key != files(**{**given, "source_file": "other.csv", "target_file": "pairs.csv"}).key
    assert files(**given).key != files(data=("pairs.csv", "other.csv")).key


def test_every_table_that_decides_what_is_read_changes_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is new. The code has VERSION."""
    before = files().key
    shutil.copytree(files_module.READING, "reading")
    monkeypatch.setattr(files_module, "READING", Path("reading"))
    assert files().key == before
    for name in ("heads.yaml", "layouts.yaml", "names.yaml", "wordings.yaml", "new.json"):
        with Path("reading", name).open("a") as file:
            file.write("# changed\n")
        before, earlier = files().key, before
        assert before != earlier, name
    with Path("reading", "names.py").open("a") as file:
        file.write("# changed\n")
    assert files().key == before


def test_every_package_that_parses_changes_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what the modules that read files import; one that is not installed has no version."""
    names = importlib.metadata.packages_distributions()
    imported: set[str] = set()
    for path in files_module.READING.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"chatbot"}
    # Python 3.10 knows the modules of some packages only.
    packages = {name.lower() for module in imported for name in names.get(module, [module.replace("_", "-")])}
    assert packages == {*PARSERS}
    keys = {files().key}
    for package in PARSERS:
        with monkeypatch.context() as patch:
            patch.setattr(importlib.metadata, "distributions", functools.partial(with_version, package, []))
            keys.add(files().key)
    assert len(keys) == 1 + len(PARSERS)


def test_a_cache_among_the_files_of_pairs_changes_nothing(folder: Path) -> None:
    """Neither its complete folders, nor those that another process makes, nor their locks."""
    Path("f").mkdir()
    Path("pairs.csv").rename("f/pairs.csv")
    given = {"data": ("f",), "cache": "f/cache"}
    before = files(**given).key
    with make_once(Path("f/cache") / f"tokens-{before}") as part:
        assert part is not None
        (part / "chunk.tsv").write_text("a\tb\n")
        assert files(**given).key == before
    assert files(**given).key == before


def test_versions_change_the_key_of_the_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of jieba counts with a dictionary only."""
    needs_all = {"clean": ("simplified",), "dictionary": "words.txt"}
    plain, keys = files().key, [files(**needs_all).key]
    newer = [SimpleNamespace(version="99")]
    for package in ("jieba", "rjieba", "opencc"):
        with monkeypatch.context() as patch:
            patch.setattr(importlib.metadata, "distributions", functools.partial(with_version, package, newer))
            keys.append(files(**needs_all).key)
            assert (files().key == plain) == (package != "rjieba")
    monkeypatch.setattr(files_module, "unicodedata", SimpleNamespace(unidata_version="99.0.0"))
    keys.append(files(**needs_all).key)
    monkeypatch.setattr(files_module, "VERSION", files_module.VERSION + 1)
    keys.append(files(**needs_all).key)
    assert len(set(keys)) == len(keys) == 6


def test_every_input_of_the_ids_changes_their_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the pairs that are held out does not."""
    inputs: list[tuple[Any, ...]] = [
        (Selection(), 100),
        (Selection(equal=True), 100),
        (Selection(duplicates=True), 100),
        (Selection(max_reply_frequency=3), 100),
        (Selection(held_out=frozenset({1, 2})), 100),
        (Selection(held_out=frozenset({1, 3})), 100),
        (Selection(part=TRAINING), 100),
        (Selection(part=VALIDATION), 100),
        (Selection(), 101),
        (Selection(), Vocabulary(["好", *BYTES])),
        (Selection(), 100, 2),
        (Selection(), 100, 3),
    ]
    folders = [corpus_folder(read, *each) for each in inputs for read in (files(), files(columns=("1", "3")))]
    monkeypatch.setattr(dataset, "VERSION", dataset.VERSION + 1)
    folders.append(corpus_folder(files(), Selection(), 100))
    assert len(set(folders)) == len(folders)
    two, reordered = (Selection(held_out=frozenset(hashes)) for hashes in ((1, 2), (2, 1)))
    assert corpus_folder(files(), two, 100) == corpus_folder(files(), reordered, 100)

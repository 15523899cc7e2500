"""From files to shards: equality with a slow loop, one or several processes, and the cache."""

import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus import dataset, files, selection, shards, workers
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.dataset import training_set, validation_set
from chatbot.corpus.files import tokenise, training_files
from chatbot.corpus.tokenizer import SPACE, tokenizer
from chatbot.corpus.vocabulary import BYTES, MIN_SIZE, Vocabulary
from chatbot.corpus.workers import worker_pool
from chatbot.errors import UserError
from chatbot.flags import replace
from tests.corpus.encoded import PAIRS, data, encoded_corpus, settings, texts, written


@given(
    st.lists(st.tuples(*[st.text("你我他好吗啊a b！-.㐀é😀", max_size=8)] * 2), min_size=1, max_size=40),
    st.integers(MIN_SIZE, MIN_SIZE + 20) | st.none(),
    st.sampled_from(["jieba", "char"]),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_shards_equal_a_slow_loop(
    tmp_path_factory: pytest.TempPathFactory, pairs: list, size: int | None, name: str, chunk: int, shard: int
) -> None:
    """size: None: the vocabulary is that of another corpus."""
    tmp_path = tmp_path_factory.mktemp("slow")
    chosen = settings(
        tmp_path,
        pairs,
        vocabulary_size=size or MIN_SIZE,
        tokenizer=name,
        clean=("control", "duplicates"),
        format="tsv",
    )
    earlier = Vocabulary(["你", "好", "你好", "吗", "a", SPACE, *BYTES]) if size is None else None
    clean, tokens_of = cleaner(["control"]), tokenizer(name)
    selected = list(dict.fromkeys((clean(q), clean(a)) for q, a in pairs if clean(q) and clean(a)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PAIRS_PER_CHUNK", chunk)
        patch.setattr(shards, "PAIRS_PER_SHARD", shard)
        patch.setattr(shards, "BUFFER", 50)
        if not selected:
            with pytest.raises(UserError, match=r"no question-answer pairs|none of them left"):
                training_set(chosen.corpus, chosen.encoding, earlier)
            return
        corpus = training_set(chosen.corpus, chosen.encoding, earlier)
    assert size is None or len(corpus.vocabulary) <= size
    assert len(corpus.shards) == -(-len(selected) // shard)
    actual = []
    for part in corpus.shards:
        for i in range(len(part)):
            row = part.sources.row(i).tolist(), part.targets.row(i).tolist(), int(part.characters[i])
            actual.append(row)
    ids = corpus.vocabulary.ids
    expected = [(ids(tokens_of(q)), ids(tokens_of(a)), len(a.replace(" ", ""))) for q, a in selected]
    assert sorted(actual) == sorted(expected)
    if len(corpus.shards) == 1:
        assert actual == expected  # in the order of the file


def test_several_processes_write_the_bytes_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of conversations, some of which are in two chunks, with the turns before each question."""
    turns = [[f"话{8 * i + turn}号" for turn in range(8)] for i in range(428)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in turns), encoding="utf-8")
    of_chat = {"data": (str(tmp_path / "chat.jsonl"),), "columns": (), "history": 2}
    submitted: list[str] = []
    submit = ProcessPoolExecutor.submit

    def recorded(pool: ProcessPoolExecutor, function: Any, *arguments: Any) -> Any:
        submitted.append(function.__name__)
        return submit(pool, function, *arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", recorded)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(files, "PAIRS_PER_CHUNK", 500)
    one = encoded_corpus(replace(settings(tmp_path, []), **of_chat))
    assert not submitted
    monkeypatch.setattr(files, "SERIAL_BYTES", 0)
    monkeypatch.setattr(dataset, "SERIAL_CHUNKS", 0)
    two = encoded_corpus(replace(settings(tmp_path, []), cache=str(tmp_path / "other"), **of_chat))
    assert Counter(submitted) == {"_write_chunk": 7, "_count": 6, "_encode": 6}  # with the report of the file
    assert one.fingerprint == two.fingerprint
    for name in ("manifest.json", "corpus.json", "00000.tokens", "00000.lengths", "vocabulary.txt"):
        assert (one.shards.folder / name).read_bytes() == (two.shards.folder / name).read_bytes()


def test_block_list_is_cleaned_like_pairs(tmp_path: Path) -> None:
    (tmp_path / "blocked.txt").write_text("ＡＢＣ\n愛\nno  way\n[(\n", encoding="utf-8")
    pairs = [("ＡＢＣ好", "行"), ("我愛你", "我也是"), ("no  way", "真的"), ("[(", "括号"), ("你好", "你好呀")]
    rules = ("nfkc", "simplified")
    corpus = encoded_corpus(settings(tmp_path, pairs, block_list=str(tmp_path / "blocked.txt"), clean=rules))
    assert texts(corpus) == [("你好", "你好呀")]


def test_file_that_changes_while_read_is_not_cached(tmp_path: Path) -> None:
    chosen = settings(tmp_path, PAIRS[:1])
    files = training_files(chosen.corpus)
    assert files.key
    written(tmp_path / "pairs.tsv", PAIRS[:2])  # like a running download
    with pytest.raises(UserError, match=r"pairs\.tsv: changed while it was read"), worker_pool() as pool:
        tokenise(files, pool)
    assert not files.folder.exists()
    written(tmp_path / "pairs.tsv", PAIRS[:1])
    assert texts(encoded_corpus(chosen)) == PAIRS[:1]


def test_renamed_file_is_reported_under_its_new_name(tmp_path: Path) -> None:
    first = settings(tmp_path, [*PAIRS, ("独", "")])
    encoded_corpus(first)
    (tmp_path / "pairs.tsv").rename(tmp_path / "other.tsv")
    (report,) = encoded_corpus(replace(first, data=(str(tmp_path / "other.tsv"),))).reports
    assert report.file == str(tmp_path / "other.tsv")
    assert not [line for line in report.lines() if "pairs.tsv" in line]
    assert f"first: {tmp_path / 'other.tsv'}, pair 6" in report.lines()[0]


def test_replies_that_are_too_frequent_for_training_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MIN_PAIRS_TO_SPLIT", 100)
    chosen = settings(tmp_path, [(f"问题{i}", "好的") for i in range(600)], max_reply_frequency=1)
    training = encoded_corpus(chosen)
    held_out = validation_set(chosen.corpus, chosen.encoding, training.vocabulary)
    assert held_out is not None
    assert training.pairs == 1
    assert held_out.pairs == training.reports[0].dropped[selection.HELD_OUT].count > 10


def test_command_prints_the_report_of_each_file(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, pairs in {"a.tsv": PAIRS, "b.tsv": [("早", "早上好")]}.items():
        written(work_dir / name, pairs)
    assert data("encode", "a.tsv", "b.tsv", "--columns", "1", "2", "--cache", "cache") == 0
    (folder,) = (path for path in Path("cache").iterdir() if path.name.startswith("encoded-"))
    assert capsys.readouterr().out.splitlines() == [
        "a.tsv: 7 pairs",
        "  question from column 1 and answer from column 2, first row as pair",
        "  left out: pairs with an empty side: 1 (first: a.tsv, pair 6)",
        "  left out: pairs whose answer equals the question: 1",
        "  left out: duplicate pairs: 1",
        "b.tsv: 1 pair",
        "  question from column 1 and answer from column 2, first row as pair",
        f"Encoded: 5 pairs, shards: 1, in {folder}",
    ]


@pytest.mark.parametrize("missing", [{"block_list": "none.txt"}, {"clean": ("simplified",)}])
def test_what_cleaning_needs_is_checked_before_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(UserError, match=r"none\.txt: |opencc"):
        files.training_files(settings(tmp_path, PAIRS, **missing).corpus)


def test_progress_is_in_bytes_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    class Bar:
        n = 0

        def update(self, count: int) -> None:
            self.n += count
            steps.append(self.n)

    monkeypatch.setattr(files, "progress_bar", lambda title, total, unit: nullcontext(Bar()))
    monkeypatch.setattr(files, "PAIRS_PER_CHUNK", 100)
    chosen = settings(tmp_path, [(f"问题{i}", f"{i}{'好' * 500}") for i in range(1000)])
    encoded_corpus(chosen)
    size = (tmp_path / "pairs.tsv").stat().st_size
    assert steps == sorted(steps)
    assert (0 < steps[0] < size, steps[-1]) == (True, size)

"""The sources of a sheet: which attempt replies to which questions, by which search. Replies name these."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatbot import commands
from chatbot.corpus.retrieval import Retrieval, write_retrieval
from chatbot.errors import UserError
from chatbot.evaluation import sources
from chatbot.evaluation.measures import Sample
from chatbot.inference.replier import Replier
from tests.corpus.encoded import encoded_corpus, settings
from tests.evaluation.test_sheet import rows_of, sources_of
from tests.training.small_run import train_small

TURNS = ["早上好", "你也早", "吃了吗", "还没有", "去吃面", "走起来"]


def replies_naming(replier: Replier, samples: Sequence[Sample]) -> list[str]:
    """Stands for `reply`. The replies name the search and the questions."""
    return [f"{replier.decoding.beam_size} {replier.decoding.retrieve} {sample.question}" for sample in samples]


def run(monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, dict[str, str]]:
    """Write a sheet with the attempt "one". Returns for each source the replies by their messages."""
    monkeypatch.setattr(sources, "reply", replies_naming)
    monkeypatch.setattr("sys.argv", ["evaluation", "--attempt", "one", "--sheet", "s", *flags])
    assert commands.run("evaluate") == 0
    key, by_source = sources_of(Path("s")), dict[str, dict[str, str]]()
    for row in rows_of(Path("s"))[1:]:
        for source in key[row["id"]]:
            by_source.setdefault(source, {})[row["message"]] = row["reply"]
    return by_source


def test_each_source_replies_to_the_same_questions(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the turns before them, of which the other attempt reads none."""
    Path("talk.jsonl").write_text(json.dumps(TURNS) + "\n", encoding="utf-8")
    for attempt, history in (("one", 1), ("two", 0)):
        train_small(1, data=("talk.jsonl",), steps=1, attempt=attempt, history=history)
    flags = ["--data", "talk.jsonl", "--beam-size", "3", "--number", "4", "--compare", "people", "model", "beam", "two"]
    replies = run(monkeypatch, *flags)
    messages = {TURNS[0]: TURNS[0], **{f"{TURNS[i - 1]} / {TURNS[i]}": TURNS[i] for i in range(1, 5)}}
    assert len(replies["people"]) == 4
    assert replies["people"].keys() <= messages.keys()
    for message, answer in replies["people"].items():
        question = messages[message]
        assert answer == TURNS[TURNS.index(question) + 1]
        assert replies["beam"][message] == f"5 none {question}"
        assert replies["model"][message] == replies["two"][message] == f"3 auto {question}"


@pytest.mark.parametrize(
    ("known", "message"), [(1, None), (2, "2 of 40 pairs of --data (5%) are training pairs of this")]
)
def test_training_pairs_among_those_to_evaluate_are_noticed(work_dir: Path, known: int, message: str | None) -> None:
    pairs = [(f"问题{number}", f"回答{number}") for number in range(80)]
    corpus = encoded_corpus(settings(work_dir, pairs, validation="none"))
    first = [corpus.shards[0].select(range(40))]
    write_retrieval(Path("index"), first, corpus.vocabulary, "pairs", most=100, cache=Path("cache"))
    held_out: Any = SimpleNamespace(shards=[corpus.shards[0].select(range(40 - known, 80 - known))])
    trained: Any = SimpleNamespace(retrieval=Retrieval(Path("index"), corpus.vocabulary), vocabulary=corpus.vocabulary)
    warning = sources.warning_of(trained, held_out, [])
    assert (warning is None) == (message is None)
    if warning is not None:
        assert f"Warning: {message}" in warning.english
        assert "警告：--data 的 40 个问答对中有 2 个（5%）参与过该模型的训练" in warning.chinese


def test_attempt_that_reads_other_pairs_is_an_error(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n在哪\thttp://a.cn/b\n", encoding="utf-8")
    for attempt, rule in (("one", "nfkc"), ("two", "urls")):
        train_small(1, data=("pairs.tsv",), steps=1, attempt=attempt, clean=(rule,))
    with pytest.raises(
        UserError, match=r"^--compare two: its cleaning leaves 2 pairs of --data, that of this attempt 3"
    ):
        run(monkeypatch, "--data", "pairs.tsv", "--compare", "two")

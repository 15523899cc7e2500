"""The benchmark of quality: its corpora, models of counts, and small runs."""

import json
import math
import random
from pathlib import Path

import pytest

from benchmarks.quality import COPY_WEIGHT, conversations, measure_count_models, random_replies, split
from chatbot.config.corpus import MIN_VOCABULARY
from chatbot.errors import UserError
from tests.benchmarks.running import benchmark
from tests.decoding.kneser_ney import SlowKneserNey, grams_of

TALKS = [[f"第{talk}句", "好的", f"再说{talk}", "再见"] for talk in range(12)]


def slow_nats(texts: list[str], order: int, held_out: list[tuple[str, str]], copy: float = 0.0) -> float:
    """Nats per character of the replies, one character after another."""
    begin, end = 0, 1
    vocabulary = MIN_VOCABULARY + len({*"".join(texts)})
    slow = SlowKneserNey(grams_of([[*map(ord, text)] for text in texts], order, begin, end), order, vocabulary)
    nats = 0.0
    for question, reply in held_out:
        for *history, token in grams_of([[*map(ord, reply)]], order, begin, end):
            share = [*map(ord, question)].count(token) / len(question)
            nats -= math.log((1 - copy) * slow.probability(tuple(history), token) + copy * share)
    return nats / sum(len(reply) for _, reply in held_out)


def test_count_models_equal_the_slow_ones(tmp_path: Path) -> None:
    training = [("甲乙丙", "丙乙"), ("丙丙甲", "甲乙丁丁"), ("丁甲", "乙丙甲"), ("甲", "丁乙丙丙")]
    held_out = [("乙乙甲", "甲乙丙"), ("丁", "丙丁")]
    files = tmp_path / "train.tsv", tmp_path / "held_out.tsv"
    for file, pairs in zip(files, (training, held_out), strict=True):
        file.write_text("".join(f"{q}\t{a}\n" for q, a in pairs), encoding="utf-8")
    nats = measure_count_models(*files, tmp_path / "cache")
    replies, both_sides = [a for _, a in training], [text for pair in training for text in pair]
    assert nats["2-gram of replies"] == pytest.approx(slow_nats(replies, 2, held_out))
    assert nats["4-gram of both sides"] == pytest.approx(slow_nats(both_sides, 4, held_out))
    copied = slow_nats(both_sides, 4, held_out, COPY_WEIGHT)
    assert nats["4-gram of both sides, and copy"] == pytest.approx(copied)
    assert len(nats) == 7


def test_held_out_lines_match_the_documented_split(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    lines = [f"问{i}\t答{i}" for i in range(9)]
    file.write_text("\n".join(lines), encoding="utf-8")
    random.Random(7).shuffle(lines)
    training, held_out = split(str(file), 2, tmp_path)
    assert held_out.read_text(encoding="utf-8").splitlines() == lines[:2]
    assert training.read_text(encoding="utf-8").splitlines() == lines[2:]
    with pytest.raises(UserError, match=r"--held-out 9: .* has only 9 lines"):
        split(str(file), 9, tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        split(str(tmp_path / "absent.tsv"), 9, tmp_path)


def test_whole_conversations_are_held_out(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    corpus = conversations(str(file), tmp_path)
    parts = [
        [json.loads(line) for line in path.read_text().splitlines()] for path in (corpus.training, corpus.held_out)
    ]
    assert parts == [[talk for talk in TALKS if talk != TALKS[9]], [TALKS[9]]]
    assert corpus.groups == {"first": [0], "later": [1, 2]}
    file.write_text("[]\n" * 9)
    with pytest.raises(UserError, match="9 conversations; at least 10"):
        conversations(str(file), tmp_path)


def test_random_replies_are_those_to_other_questions() -> None:
    answers = [f"a{i}" for i in range(20)]
    others = random_replies(answers)
    assert sorted(others) == sorted(answers)
    assert not [i for i, reply in enumerate(others) if reply == f"a{i}"]


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["pairs", "conversations"])
def test_quality_benchmark_runs(corpus: str, tmp_path: Path) -> None:
    """The nats of groups add up to those of all pairs."""
    (tmp_path / "pairs").write_text("".join(f"你好 {i}\t我 很 好 {i % 5}\n" for i in range(60)), encoding="utf-8")
    (tmp_path / "conversations").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    tiny = ["--rnn-size", "8", "--embedding-size", "8", "--steps", "2", "--validate-every", "1", "--tokenizer", "char"]
    flags = f"--corpus {corpus} --data {tmp_path / corpus} --held-out 20 --beam-size 1 --history 0 1".split()
    report = benchmark("quality", *flags, "--", *tiny)
    assert [(run["preset"], run["history"]) for run in report["runs"]] == [("small", 0), ("small", 1)]
    likelihood = {(row["history"], row["pairs of"]): row for row in report["likelihood"]}
    replies = {(row["history"], row["pairs of"], row["replies"]): row for row in report["replies"]}
    assert {by for *_, by in replies} == {"chat", "beam 1", "people", "random"}
    if corpus == "pairs":
        assert len(report["count_models"]) == 7
        assert replies[0, "all", "chat"].keys() >= {"distinct_characters_2", "top10_reply_share", "relevance_at_1"}
        for run in report["runs"]:
            found = likelihood[run["history"], "all"]
            assert run["nats_per_character"] == pytest.approx(found["nats_per_character"], rel=1e-3)
    if corpus == "conversations":
        first, *later = (len(turn) for turn in TALKS[9][1:])
        nats = {key: row["nats_per_character"] for key, row in likelihood.items()}
        for history in (0, 1):
            of_all = nats[history, "first"] * first + nats[history, "later"] * sum(later)
            assert nats[history, "all"] * (first + sum(later)) == pytest.approx(of_all, rel=1e-4)

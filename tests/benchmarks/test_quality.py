"""The benchmark of quality: models of counts, the split of the pairs, and a small run."""

import math
import random
from pathlib import Path

import pytest

from benchmarks.count_models import COPY_WEIGHT, measure_count_models
from benchmarks.quality import split
from chatbot.config.corpus import LEAST_VOCABULARY
from chatbot.errors import UserError
from tests.benchmarks.running import benchmark
from tests.corpus.kneser_ney import SlowKneserNey, grams_of


def slow_nats(texts: list[str], order: int, held_out: list[tuple[str, str]], copy: float = 0.0) -> float:
    """Nats per character of the replies, one character after another."""
    begin, end = 0, 1
    vocabulary = LEAST_VOCABULARY + len({*"".join(texts)})
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


def test_held_out_lines_are_those_of_the_documented_split(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    lines = [f"问{i}\t答{i}" for i in range(9)]
    file.write_text("\n".join(lines), encoding="utf-8")
    random.Random(7).shuffle(lines)
    training, held_out = split(str(file), 2, tmp_path)
    assert held_out.read_text(encoding="utf-8").splitlines() == lines[:2]
    assert training.read_text(encoding="utf-8").splitlines() == lines[2:]
    with pytest.raises(UserError, match=r"--held-out 9: .* has 9 lines"):
        split(str(file), 9, tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        split(str(tmp_path / "absent.tsv"), 9, tmp_path)


@pytest.mark.slow
def test_quality_benchmark_runs(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"你好 {i}\t我 很 好 {i % 5}\n" for i in range(60)), encoding="utf-8")
    training = ["--rnn-size", "8", "--embedding-size", "8", "--steps", "2", "--validate-every", "1"]
    report = benchmark("quality", "--data", str(file), "--held-out", "20", "--", *training)
    (result,) = report["results"]
    assert result["preset"] == "small"
    assert result["nats_per_character"] > 0
    assert result["step"] in (1, 2)
    for row in ("chat", "beam_5", "references", "random"):
        assert result[row].keys() >= {"distinct_characters_2", "top10_reply_share", "relevance_at_1"}

"""The formulas of the benchmarks, and a small run of each measuring benchmark."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cost import growth_ratios
from benchmarks.count_models import COPY_WEIGHT, measure_count_models
from benchmarks.peers import REPORT, TRANSLATED, Peers
from benchmarks.planning import generated_shards, measure_planning
from benchmarks.quality import split
from benchmarks.ring import LINKS, Link, overlapped_speed_up, plan, ring_bytes, ring_seconds, speed_up
from benchmarks.scaling import tower_devices
from benchmarks.scaling_flags import ScalingBenchmark
from benchmarks.soak import Sample, growth
from benchmarks.train import ratios, verdict
from chatbot.config.corpus import LEAST_VOCABULARY
from chatbot.corpus.encoding.shards import PAIRS_PER_SHARD
from chatbot.corpus.encoding.vocabulary import SPECIALS
from chatbot.errors import UserError
from tests.commands import ENVIRONMENT, ROOT, run
from tests.corpus.encoding.kneser_ney import SlowKneserNey, grams_of

SLOW = Link("a byte a second", 1.0, 0.0)


def numbers_sent(size: int, members: int) -> int:
    """Simulate a ring all-reduce of `size` numbers per member. Returns the numbers that each member sends.

    In every message a member sends one piece to the next member, which adds it to its own piece in the first half
    of the messages, and replaces its own piece by it in the second half.
    """
    pieces = np.ones((members, members, size // members))  # [member, piece, numbers]
    sent = 0
    for message in range(2 * (members - 1)):
        before = pieces.copy()
        for member in range(members):
            piece, receiver = (member - message) % members, (member + 1) % members
            own = before[receiver, piece] if message < members - 1 else 0
            pieces[receiver, piece] = own + before[member, piece]
        sent += size // members
    assert (pieces == members).all()
    return sent


@pytest.mark.parametrize("members", [2, 3, 8, 32])
def test_ring_bytes_equal_a_simulated_all_reduce(members: int) -> None:
    size = 12 * members
    assert ring_bytes(size, members) == pytest.approx(numbers_sent(size, members))
    assert ring_seconds(size, members, SLOW) == pytest.approx(numbers_sent(size, members))


def test_ring_latency_counts_per_message() -> None:
    assert ring_seconds(0, 5, Link("", 1.0, 0.5)) == 2 * 4 * 0.5


def test_speed_up_of_exchange_after_and_during_compute() -> None:
    assert speed_up(10.0, 0, 4, SLOW) == 4
    assert speed_up(10.0, 10, 2, SLOW) == 2 * 10 / (10 + 10)
    assert speed_up(10.0, 10, 2, SLOW, staged=True) == 2
    rows = plan(0.1, 60e6, 20e6, [LINKS["25gbe"]])
    assert [row["gpus"] for row in rows] == [2**i for i in range(1, 11)]
    for exchange in ("speed_up", "overlapped"):
        efficiencies = [row[exchange] / row["gpus"] for row in rows]
        assert efficiencies == sorted(efficiencies, reverse=True)
    assert all(row["speed_up"] < row["overlapped"] < row["staged"] for row in rows[:8])


def test_exchange_overlaps_with_two_thirds_of_the_step() -> None:
    """Two members send as many bytes as they have gradients, a byte a second."""
    hidden, last = overlapped_speed_up(9.0, 6 + 1, 1, 2, SLOW), 1  # all but the last byte fits into 6 of 9 seconds
    assert hidden == pytest.approx(2 * 9 / (9 + last))
    assert overlapped_speed_up(9.0, 8 + 1, 1, 2, SLOW) == pytest.approx(2 * 9 / (9 + (8 - 6) + last))
    assert overlapped_speed_up(9.0, 5, 5, 2, SLOW) == speed_up(9.0, 5, 2, SLOW)


def test_plan_uses_a_given_step_time() -> None:
    completed = run(
        "benchmarks", "scaling", "--plan", "--step-ms", "100", "--link", "nvlink", "--towers", "0", "--no-processes"
    )
    assert completed.returncode == 0
    report = json.loads(completed.stdout.decode().splitlines()[-1])
    assert report["plan"][0]["link"] == "nvlink"
    assert 1.9 < report["plan"][0]["speed_up"] < report["plan"][0]["overlapped"] <= 2


def test_plan_without_step_time_is_refused() -> None:
    completed = run("benchmarks", "scaling", "--plan", "--towers", "0", "--no-processes")
    assert completed.returncode == 2
    assert b"no step was measured" in completed.stderr


@pytest.mark.slow
def test_scaling_benchmark_runs() -> None:
    sizes = ["--rnn-size", "8", "--embedding-size", "8", "--vocabulary-size", "300", "--batch-size", "8"]
    report = benchmark("scaling", *sizes, "--max-length", "4", "--rounds", "1")
    assert [row["number"] for row in report["towers"]] == [1, 2, 4]
    assert [row["number"] for row in report["startup"]] == [1, 2, 4]
    assert all(row["startup_s"] > row["first_step_s"] > row["second_step_s"] > 0 for row in report["startup"])
    assert {row["traces"] for row in report["startup"]} == {1}
    assert all(row["peak_gb"] > 0.1 for row in report["startup"])
    assert [row["number"] for row in report["processes"]] == [1, 2]
    assert report["least_bytes"] <= report["sent_bytes"] * 1.01
    assert 0 < report["last_stage_bytes"] < report["gradient_bytes"]
    assert 0 < report["predicted_speed_up"] <= report["predicted_overlapped_speed_up"]
    assert [row["efficiency"] for row in report["towers"]] == [row["speed_up"] for row in report["towers"]]
    assert report["processes"][1]["efficiency"] == pytest.approx(report["processes"][1]["speed_up"] / 2, rel=1e-4)
    assert "a step of 4 towers takes" in report["verdict"]


@pytest.mark.parametrize(("towers", "numbers"), [(0, []), (1, [1]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_numbers_of_towers_are_powers_of_two(towers: int, numbers: list[int]) -> None:
    assert ScalingBenchmark(towers=towers).tower_numbers == numbers


def test_more_towers_than_pairs_are_refused() -> None:
    completed = run("benchmarks", "scaling", "--towers", "8", "--batch-size", "4")
    assert completed.returncode == 2
    assert b"--towers 8: more than the 4 pairs of a step" in completed.stderr


@pytest.mark.parametrize(("towers", "gpus", "devices"), [(4, 0, 1), (4, 1, 1), (2, 4, 2), (4, 4, 4)])
def test_efficiency_counts_devices_in_use(towers: int, gpus: int, devices: int) -> None:
    assert tower_devices(towers, gpus) == devices


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A few pairs of short words."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"你好 {i % 7}\t我 很 好 {i % 5}\n" for i in range(40)), encoding="utf-8")
    return str(file)


TINY = ["--rnn-size", "8", "--num-layers", "1", "--embedding-size", "8", "--batch-size", "8", "--rounds", "1"]


def benchmark(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    completed = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True
    )
    report: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return report


def test_generated_shards_are_planned(tmp_path: Path) -> None:
    pairs = 5 * PAIRS_PER_SHARD
    shards = generated_shards(tmp_path, pairs, max_length=20)
    assert len(shards) == 5
    assert shards.lengths.pairs == sum(map(len, shards)) > 0.8 * pairs
    report = measure_planning(pairs)
    assert 0.8 * pairs < report["plan_pairs"] <= pairs
    assert 0 < report["plan_first_batch_s"] < report["plan_resume_s"]


@pytest.mark.slow
def test_corpus_benchmark_runs() -> None:
    report = benchmark("corpus", "--pairs", "3000", "--plan-pairs", "1000", "--no-training")
    assert {(row["towers"], row["batch_size"]) for row in report["input"]} == {
        (towers, size) for towers in (1, 8) for size in (64, 256, 1024)
    }
    assert all(row["planned_and_padded_per_s"] > 0 and row["gpus_fed"] > 0 for row in report["input"])
    assert report["plan_shards"] == 1


@pytest.mark.slow
def test_train_benchmark_splits_the_step_time(pairs: str) -> None:
    report = benchmark("train", "--data", pairs, *TINY, "--steps", "2")
    assert report["target_tokens_per_s"].keys() == {"float32", "bfloat16"}
    assert 0 < report["of_limit"] < 1
    parts, products = report["parts_s"], report["products_s"]
    assert parts.keys() == {"projection", "loss", "recurrent", "attention", "optimizer", "input", "overhead"}
    assert products.keys() == {"projection", "recurrent", "attention"}
    assert all(parts[name] > seconds > 0 for name, seconds in products.items())
    assert 0 < parts["optimizer"] < report["step_s"]


@pytest.mark.slow
def test_decode_benchmark_runs(pairs: str) -> None:
    report = benchmark("decode", "--data", pairs, *TINY, "--steps", "2", "--questions", "3", "--no-cold")
    assert len(report["replies_per_s"]) == 4
    assert all(rate > 0 for rate in report["replies_per_s"].values())


def slow_nats(texts: list[str], others: int, order: int, held_out: list[tuple[str, str]], copy: float = 0.0) -> float:
    """Nats per character of the replies, one character after another.

    others: how many tokens the vocabulary has beside the characters of the texts.
    """
    begin, end = 0, 1
    vocabulary = others + len({*"".join(texts)})
    slow = SlowKneserNey(grams_of([[*map(ord, text)] for text in texts], order, begin, end), order, vocabulary)
    nats = 0.0
    for question, reply in held_out:
        for *history, token in grams_of([[*map(ord, reply)]], order, begin, end):
            share = [*map(ord, question)].count(token) / len(question)
            nats -= math.log((1 - copy) * slow.probability(tuple(history), token) + copy * share)
    return nats / sum(len(reply) for _, reply in held_out)


@pytest.mark.parametrize(("vocabulary", "others"), [("bytes", LEAST_VOCABULARY), ("unk", len(SPECIALS))])
def test_count_models_equal_the_slow_ones(tmp_path: Path, vocabulary: str, others: int) -> None:
    training = [("甲乙丙", "丙乙"), ("丙丙甲", "甲乙丁丁"), ("丁甲", "乙丙甲"), ("甲", "丁乙丙丙")]
    held_out = [("乙乙甲", "甲乙丙"), ("丁", "丙丁")]
    files = tmp_path / "train.tsv", tmp_path / "held_out.tsv"
    for file, pairs in zip(files, (training, held_out), strict=True):
        file.write_text("".join(f"{q}\t{a}\n" for q, a in pairs), encoding="utf-8")
    nats = {name: by[vocabulary] for name, by in measure_count_models(*files, tmp_path / "cache").items()}
    replies, both_sides = [a for _, a in training], [text for pair in training for text in pair]
    assert nats["2-gram of replies"] == pytest.approx(slow_nats(replies, others, 2, held_out))
    assert nats["4-gram of both sides"] == pytest.approx(slow_nats(both_sides, others, 4, held_out))
    copied = slow_nats(both_sides, others, 4, held_out, COPY_WEIGHT)
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
    assert result["preset"] == "tiny"
    assert result["nats_per_character"] > 0
    assert result["step"] in (1, 2)
    for row in ("chat", "beam_5", "references", "random"):
        assert result[row].keys() >= {"distinct_characters_2", "top10_reply_share", "relevance_at_1"}


def test_missing_peer_file_is_reported(pairs: str, tmp_path: Path) -> None:
    completed = run("benchmarks", "train", "--data", pairs, "--peers", str(tmp_path))
    assert completed.returncode == 2
    assert b"torch_seq2seq.py: not found" in completed.stderr


@pytest.mark.parametrize("tied", [True, False])
def test_torch_gets_the_flag_of_the_tied_model(tmp_path: Path, tied: bool) -> None:
    """A shell script in place of PyTorch's Python prints a rate of 1 if it gets --tied, else 0."""
    programs = [tmp_path / "bin/python", tmp_path / "bin/onmt_train"]
    (tmp_path / "bin").mkdir()
    for file in (*programs, tmp_path / "torch_seq2seq.py", tmp_path / "opennmt.yaml"):
        file.write_text('#!/bin/sh\necho "{\\"target_tokens_per_s\\": $(echo "$@" | grep -c -e --tied)}"\n')
        file.chmod(0o755)
    peers = Peers(scripts=tmp_path, torch=tmp_path, opennmt=tmp_path, work=tmp_path, cores=1)
    assert peers.train_torch(3, 100, bf16=False, tied=tied) == tied


def test_opennmt_output_is_parsed() -> None:
    line = "Step 20/60; acc: 19.1; sents:     640; bsz:  508/ 327/64; 1346/866 tok/s;      8 sec;"
    assert REPORT.findall(line) == [("327", "866")]
    assert TRANSLATED.findall("Total translation time (s): 12.5") == ["12.5"]


def test_verdict_names_the_same_model_in_torch_first() -> None:
    medians = {"float32": 20.0, "bfloat16": 30.0, "opennmt": 10.0}
    medians |= {"torch_tied_float32": 16.0, "torch_tied_bfloat16": 20.0, "torch_float32": 12.5, "torch_bfloat16": 12.0}
    of_others = ratios(medians, "bfloat16")
    assert of_others == {
        "opennmt": 3.0,
        "torch_tied_best": 1.5,
        "torch_tied_float32": 1.25,
        "torch_best": 2.4,
        "torch_float32": 1.6,
    }
    results = {"target_tokens_per_s": medians, "precision": "bfloat16", "of_limit": 0.5, "ratios": of_others}
    assert "1.50 times the same model in tuned PyTorch at its best, 1.25 times in float32" in verdict(results)
    assert ratios({"float32": 20.0, "bfloat16": 30.0}, "bfloat16") == {}


def test_growth_ratios_are_relative_to_linear_growth() -> None:
    rows = [{"what": "batch_size", "value": 2**i, "step_s": 2.0**i} for i in range(3)]
    rows += [{"what": "rnn_size", "value": 2**i, "step_s": 5.0**i} for i in range(2)]
    assert [growth["ratio"] for growth in growth_ratios(rows)] == [1.0, 1.0, 1.25]


def test_growth_compares_the_ends_after_the_warm_up() -> None:
    """A hundred samples: the first twenty do not count, and a single peak does not either."""
    samples = [Sample(i / 60, 1.0 if i < 20 else 100.0 + (i >= 80), 12, 9 + (i > 50), 98) for i in range(100)]
    samples[90] = Sample(1.5, 500.0, 99, 99, 99)
    assert growth(samples) == {
        "memory_growth": pytest.approx(0.01),
        "megabytes": [100.0, 101.0],
        "files": [12, 12],
        "threads": [9, 10],
        "functions": [98, 98],
    }
    with pytest.raises(UserError, match="--minutes: too short"):
        growth(samples[:3])

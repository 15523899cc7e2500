"""The benchmarks of training, decoding and reading, with the systems that they are compared with."""

import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.cost import growth_ratios
from benchmarks.peers import REPORT, TRANSLATED, Peers
from benchmarks.planning import generated_shards, measure_planning
from benchmarks.soak import Sample, growth
from benchmarks.train import ratios, verdict
from chatbot.corpus.shards import PAIRS_PER_SHARD
from chatbot.errors import UserError, exit_code_of
from tests.benchmarks.running import benchmark

TINY = ["--rnn-size", "8", "--num-layers", "1", "--embedding-size", "8", "--batch-size", "8", "--rounds", "1"]


def test_generated_shards_are_planned(tmp_path: Path) -> None:
    pairs = 5 * PAIRS_PER_SHARD
    shards = generated_shards(tmp_path, pairs, max_length=20)
    assert len(shards) == 5
    assert shards.lengths.pairs == sum(map(len, shards)) > 0.8 * pairs
    report = measure_planning(pairs)
    assert 0.8 * pairs < report["plan_pairs"] <= pairs
    assert min(report["plan_first_batch_s"], report["plan_resume_s"]) > 0


@pytest.mark.slow
def test_train_benchmark_splits_the_step_time(pairs: str) -> None:
    report = benchmark("train", "--data", pairs, *TINY, "--steps", "2")
    assert report["target_tokens_per_s"].keys() == {"float32", "bfloat16"}
    assert 0 < report["of_limit"] < 1
    parts, products = report["parts_s"], report["products_s"]
    assert parts.keys() == {"projection", "loss", "recurrent", "attention", "optimizer", "input", "overhead"}
    assert products.keys() == {"projection", "recurrent", "attention"}
    assert min(products.values()) > 0
    assert min(parts["optimizer"], parts["input"], report["step_s"]) > 0


@pytest.mark.slow
def test_decode_benchmark_runs(pairs: str) -> None:
    report = benchmark("decode", "--data", pairs, *TINY, "--steps", "2", "--questions", "3", "--no-cold")
    assert len(report["replies_per_s"]) == 4
    assert all(rate > 0 for rate in report["replies_per_s"].values())


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


def test_missing_peer_file_is_reported(
    pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", "train", "--data", pairs, "--peers", str(tmp_path)])
    assert exit_code_of(main) == 2
    assert "torch_seq2seq.py: not found" in capsys.readouterr().err


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

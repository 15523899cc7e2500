"""The benchmarks of training, decoding and reading."""

from pathlib import Path

import pytest

from benchmarks.cost import growth_ratios
from benchmarks.planning import generated_shards, measure_planning
from benchmarks.soak import Sample, growth
from chatbot.corpus.shards import PAIRS_PER_SHARD
from chatbot.errors import UserError
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

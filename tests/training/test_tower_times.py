"""Towers that differ from the others, by their loss or their time; tests/gpu/test_train_command.py measures a time."""

import numpy as np
import pytest

from chatbot.corpus.batches import Batches
from chatbot.training.alarms import LEAST_CHANGES, SlowTowers, TowerOutliers, medians_of_others
from chatbot.training.devices.towers import Tower
from chatbot.training.profiling import TowerTimes
from chatbot.training.selftest import CASES, random_pairs, train_model


def test_tower_that_becomes_slow_is_named_once() -> None:
    towers = SlowTowers([f"gpu_{i}" for i in range(4)])
    assert towers.record([]) == []
    assert towers.record([0.010, 0.012, 0.019, 0.011]) == []
    (line,) = towers.record([0.010, 0.012, 0.036, 0.011])
    assert line == (
        "gpu_2 takes 36 ms for its share of a step, the median of the others 11 ms: all wait for it; "
        "`nvidia-smi -q -d PERFORMANCE` may show why"
    )
    assert len(f"Warning: {line}") < 200
    assert towers.record([]) == []
    assert towers.record([0.010, 0.012, 0.036, 0.011]) == []
    assert towers.record([0.010, 0.012, 0.012, 0.011]) == []
    assert len(towers.record([0.030, 0.012, 0.036, 0.011])) == 2
    assert SlowTowers(["gpu_0"]).record([1.0]) == []


def test_nothing_is_measured_on_the_cpu(cpus: list[Tower]) -> None:
    pairs = random_pairs(8, 1)
    _, _, update = train_model(CASES["SGD"], cpus[:2], pairs, steps=0)
    batch = update.prepare(next(Batches([pairs], 8, 1).from_step(0, 2)), 0)
    assert TowerTimes(update, cpus[:2]).measure(batch) == []


def losses(records: int, towers: int, pairs: int, steps: int, seed: int) -> np.ndarray:
    """Honest losses of each tower, [records, towers]: means over the tokens of `steps` batches of `pairs` pairs.

    A pair has 3 to 16 tokens and a difficulty of its own; the loss of a token varies by about 2 nats, and is never
    negative. The mean declines as in training.
    """
    rng = np.random.default_rng(seed)
    shape = records, towers, max(1, pairs // towers) * steps
    tokens = rng.integers(3, 17, shape)
    difficulty = rng.gamma(9, 1 / 9, shape)  # with the mean 1
    sums = rng.gamma(2 * tokens, difficulty / 2)  # of the losses of the tokens of a pair
    level = 2 + 3 * np.exp(-np.arange(records) / 100)
    return level[:, None] * sums.sum(-1) / tokens.sum(-1)


def first_warning(values: np.ndarray) -> tuple[int, list[str]]:
    """The index of the first record with a warning, and the warnings of all records."""
    outliers = TowerOutliers([f"gpu_{i}" for i in range(values.shape[1])])
    warnings = [outliers.record(step, row.tolist()) for step, row in enumerate(values, 1)]
    return next((i for i, new in enumerate(warnings) if new), -1), [text for new in warnings for text in new]


@pytest.mark.parametrize("pairs", [4, 16, 64])
@pytest.mark.parametrize("towers", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 10])
def test_chance_is_no_outlier(pairs: int, towers: int, steps: int) -> None:
    assert first_warning(losses(1000, towers, pairs, steps, seed=pairs + towers)) == (-1, [])


@pytest.mark.parametrize(
    ("pairs", "towers", "steps", "most"),
    [(64, 2, 10, 5), (64, 4, 10, 5), (64, 4, 1, 8), (16, 3, 10, 6), (4, 2, 10, 15)],
)
@pytest.mark.parametrize("begin", [0, 300])
def test_loss_one_nat_higher_is_found_within_few_records(
    pairs: int, towers: int, steps: int, most: int, begin: int
) -> None:
    """From the first record on, the noise must be known first."""
    values = losses(begin + LEAST_CHANGES + 50, towers, pairs, steps, seed=1)
    values[begin:, 1] += 1
    found, (warning,) = first_warning(values)
    assert begin <= found <= begin + most + (0 if begin else LEAST_CHANGES // 2)
    assert warning.startswith(f"the loss of gpu_1 leaves that of the other towers: {values[found, 1]:.2f} nats")


def test_outlier_is_named_again_only_after_it_was_back() -> None:
    values = losses(300, 3, 64, 10, seed=2)
    values[50:100, 2] += 1
    values[200:, 2] += 1
    assert len(first_warning(values)[1]) == 2


def test_towers_without_tokens_are_left_out() -> None:
    assert TowerOutliers(["cpu_0"]).record(1, [2.0]) == []
    outliers = TowerOutliers(["cpu_0", "cpu_1", "cpu_2"])
    for step in range(1, 200):
        assert outliers.record(step, [2.0, None, 2.01 + 0.01 * (step % 2)]) == []
        assert outliers.record(step, [2.0, None, None]) == []


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_medians_of_others(count: int) -> None:
    values = np.random.default_rng(0).permutation(np.array([*range(count - 1), 1, np.nan], float))
    others = [np.delete(values, i) for i in range(len(values))]
    expected = [np.nan if np.isnan(value) else np.nanmedian(other) for value, other in zip(values, others, strict=True)]
    np.testing.assert_array_equal(medians_of_others(values), expected)

"""Towers that are slower than the others; tests/gpu/test_train_command.py measures their times."""

from unittest.mock import MagicMock

from chatbot.corpus.batches import Batches
from chatbot.training.devices.towers import Tower
from chatbot.training.profiling import TowerTimes
from chatbot.training.selftest import CASES, random_pairs, train_model


def test_tower_that_becomes_slow_is_named_once() -> None:
    times = TowerTimes(MagicMock(), [Tower(f"gpu_{i}", f"/GPU:{i}", "", None) for i in range(4)])
    assert times.slow([]) == []
    assert times.slow([0.010, 0.012, 0.019, 0.011]) == []
    (line,) = times.slow([0.010, 0.012, 0.036, 0.011])
    assert line == (
        "gpu_2 takes 36 ms for its share of a step, the median of the others 11 ms: all wait for it; "
        "`nvidia-smi -q -d PERFORMANCE` may show why"
    )
    assert len(f"Warning: {line}") < 200
    assert times.slow([]) == []
    assert times.slow([0.010, 0.012, 0.036, 0.011]) == []
    assert times.slow([0.010, 0.012, 0.012, 0.011]) == []
    assert len(times.slow([0.030, 0.012, 0.036, 0.011])) == 2


def test_nothing_is_measured_on_the_cpu(cpus: list[Tower]) -> None:
    pairs = random_pairs(8, 1)
    _, _, update = train_model(CASES["SGD"], cpus[:2], pairs, steps=0)
    batch = update.prepare(next(Batches([pairs], 8, 1).from_step(0, 2)), 0)
    assert TowerTimes(update, cpus[:2]).measure(batch) == []

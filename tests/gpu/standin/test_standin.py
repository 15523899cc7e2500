"""The stand-in GPU itself: results are late, and sums wait for each other. What runs on it shows what it computes."""

from pathlib import Path

import numpy as np
import pytest

from tests.gpu.process import on_standins
from tests.gpu.standin import behaviour

pytestmark = pytest.mark.gpu


def test_results_are_late_and_memory_is_freed_after_what_was_queued(tmp_path: Path) -> None:
    found = on_standins(behaviour.memory_over_time, tmp_path, delay=5000)
    assert np.isnan(found["early"]).any()
    assert set(found["late"]) == {2.0}
    assert 2.0 in found["unfreed"]
    assert np.isnan(found["freed"]).all()


def test_sums_that_wait_for_each_other_hang(tmp_path: Path) -> None:
    assert on_standins(behaviour.hangs, tmp_path, 2) == (True, True)

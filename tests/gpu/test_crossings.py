"""The static count of copies between host and GPUs is that of a step on stand-in GPUs."""

from pathlib import Path

import pytest

from benchmarks.crossings import step_crossings
from chatbot.flags import replace
from tests.gpu.crossings import SETTINGS, STEPS, VOCABULARY, real_copies
from tests.gpu.process import on_standins

pytestmark = pytest.mark.gpu


def test_static_count_is_that_of_a_step(tmp_path: Path) -> None:
    real = on_standins(real_copies, tmp_path, 4)
    for name, (towers, precision, changes) in STEPS.items():
        counts = step_crossings(replace(SETTINGS, **changes), VOCABULARY, towers, precision).counts()
        copies = real[name]
        # TensorFlow's graph optimiser removes and adds a few.
        assert counts["device_to_device"] == pytest.approx(copies["device_to_device"], rel=0.25), name
        if "cpu" in name:
            for direction in ("host_to_device", "device_to_host"):
                assert counts[direction] == pytest.approx(copies[direction], rel=0.05, abs=2), direction
        else:
            assert counts["host_to_device"] == copies["host_to_device"] == 1, name
            assert counts["device_to_host"] == copies["device_to_host"] == 0, name

"""A step copies little to a GPU, and nothing back: one buffer for each share, the ids that a step uses, the rate."""

from typing import Any

import numpy as np
import pytest

from tests.gpu import copies
from tests.gpu.copies import CASES, COUNTED_STEPS, Copies
from tests.gpu.process import on_standins

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Copies]:
    """The copies of each case."""
    return dict(on_standins(copies.all_copies, tmp_path_factory.mktemp("ordinary"), copies.GPUS))


@pytest.fixture(scope="module")
def deterministic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Copies]:
    """The copies of each case with deterministic operations."""
    return dict(on_standins(copies.all_deterministic_copies, tmp_path_factory.mktemp("deterministic"), copies.GPUS))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operations", ["ordinary", "deterministic"])
def test_a_step_copies_at_most_four_times_to_a_gpu_and_never_back(case: str, operations: str, request: Any) -> None:
    found = request.getfixturevalue(operations)[case]
    for counts in found.counts:
        assert counts.host_to_device <= 4 * COUNTED_STEPS
        assert counts.host_to_device_bytes < COUNTED_STEPS * found.embedding_bytes / 10
        assert counts.device_to_host == 0


@pytest.mark.parametrize("case", CASES)
def test_deterministic_operations_change_weights_by_their_rounding_only(
    case: str, ordinary: dict[str, Copies], deterministic: dict[str, Copies]
) -> None:
    for one, other in zip(ordinary[case].weights, deterministic[case].weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)

"""A GPU computes what the CPU computes: gradients, weights after training, dropout masks, replies."""

from typing import Any

import numpy as np
import pytest

from chatbot.training.devices.towers import Tower
from tests.gpu import comparisons
from tests.gpu.comparisons import GRADIENTS, LOWER_PRECISION, MASKS, REPLIES, TRAINING
from tests.gpu.process import on_gpu

pytestmark = pytest.mark.gpu

CPU = Tower("cpu_0", "/CPU:0", "CPU", None)
TOLERANCE = 1e-4
# The rounding of factors alone makes differences of up to 0.002 and 0.04, on the CPU.
LOWER_TOLERANCE = {"float16": 0.01, "bfloat16": 0.1}


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The loss and gradients of each case on the GPU."""
    return on_gpu(comparisons.all_gradients, tmp_path_factory.mktemp("gradients"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of each other case on the GPU."""
    return on_gpu(comparisons.all_others, tmp_path_factory.mktemp("others"))


def differences(actual: Any, expected: dict[str, Any]) -> dict[str, float]:
    """The largest difference in each array, as a fraction of its largest number. actual: a traceback if it failed.

    An array whose numbers are a ten-thousandth of the largest of all is a sum that cancels: its rounding is that of the
    terms.
    """
    assert isinstance(actual, dict), actual
    assert actual.keys() == expected.keys()
    sizes = {name: float(np.abs(x).max()) for name, x in expected.items()}
    least = 1e-4 * max(sizes.values())
    return {name: float(np.abs(actual[name] - x).max()) / max(sizes[name], least) for name, x in expected.items()}


def assert_close(found: dict[str, float], tolerance: float) -> None:
    """Fail with all arrays that differ too much, NaN included."""
    assert {name: difference for name, difference in found.items() if not difference < tolerance} == {}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients(case: str, gradients: dict[str, Any]) -> None:
    assert_close(differences(gradients[case], GRADIENTS[case](CPU)), TOLERANCE)


@pytest.mark.parametrize("case", LOWER_PRECISION)
def test_gradients_at_lower_precision(case: str, gradients: dict[str, Any]) -> None:
    """Compared with float32 on the CPU."""
    name, _, precision = case.rpartition(" ")
    assert_close(differences(gradients[case], GRADIENTS[name](CPU)), LOWER_TOLERANCE[precision])


@pytest.mark.parametrize("case", TRAINING)
def test_weights_after_ten_steps(case: str, others: dict[str, Any]) -> None:
    assert_close(differences(others[case], TRAINING[case](CPU)), TOLERANCE)


@pytest.mark.parametrize("case", MASKS)
def test_dropout_masks(case: str, others: dict[str, Any]) -> None:
    """To the bit."""
    expected = MASKS[case](CPU)
    assert isinstance(others[case], dict), others[case]
    np.testing.assert_array_equal(others[case]["uniform"], expected["uniform"])


@pytest.mark.parametrize("case", REPLIES)
def test_replies(case: str, others: dict[str, Any]) -> None:
    expected = REPLIES[case](CPU)
    assert isinstance(others[case], dict), others[case]
    assert others[case]["texts"] == expected["texts"]
    assert len(set(expected["texts"])) > 1
    np.testing.assert_allclose(others[case]["scores"], expected["scores"], rtol=TOLERANCE)

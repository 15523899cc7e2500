"""What steps and replies on stand-in GPUs copy between host and GPU, and how often the host waits for them."""

from pathlib import Path

import numpy as np
import pytest

from chatbot.inference.tensorflow_model import CHECK_INTERVAL_ON_GPU
from tests.gpu import copies, decoding
from tests.gpu.copies import CASES, COUNTED_STEPS, Copies
from tests.gpu.decoding import LENGTHS
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
def test_a_step_copies_twice_to_the_first_gpu_and_once_to_others(
    case: str, operations: str, request: pytest.FixtureRequest
) -> None:
    """The first one has the learning rate, too. An embedding has many times the bytes of all copies."""
    found: Copies = request.getfixturevalue(operations)[case]
    first, *others = [counts.host_to_device / COUNTED_STEPS for counts in found.counts]
    assert (first, set(others) - {1}) == (2, set())
    for counts in found.counts:
        assert counts.host_to_device_bytes < COUNTED_STEPS * found.embedding_bytes / 10
        assert counts.device_to_host == 0


@pytest.mark.parametrize("case", CASES)
def test_deterministic_operations_change_weights_by_their_rounding_only(
    case: str, ordinary: dict[str, Copies], deterministic: dict[str, Copies]
) -> None:
    for one, other in zip(ordinary[case].weights, deterministic[case].weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_copies_of_several_threads_are_their_own(tmp_path: Path) -> None:
    assert on_standins(copies.copies_in_threads, tmp_path) == []


def test_a_search_waits_once_for_several_tokens_and_a_token_for_the_host_is_one_copy(tmp_path: Path) -> None:
    """A search also waits once at its beginning at most, and for the ids and the scores."""
    searches, by_token = (
        {name: [of_length.device_to_host for of_length in counts] for name, counts in found.items()}
        for found in on_standins(decoding.all_counts, tmp_path)
    )
    fewer, more = (-(-length // CHECK_INTERVAL_ON_GPU) for length in LENGTHS)
    assert {name: copies[1] - copies[0] for name, copies in searches.items()} == dict.fromkeys(searches, more - fewer)
    assert all(copies[0] <= fewer + 3 for copies in searches.values()), searches
    assert by_token == {"stream": list(LENGTHS), "engine": list(LENGTHS), "attention": [1, 1]}

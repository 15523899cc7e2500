"""The asynchronous step in one process, with a coordinator that runs each step at once: it equals a single device."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training import asynchronous
from chatbot.training.asynchronous import Asynchronous, Server
from chatbot.training.devices.towers import Tower
from chatbot.training.optimizer import DOUBLED_AFTER, LARGEST_SCALE, SMALLEST_SCALE
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.step import StepResult, Synchronous, VariableUpdate
from chatbot.training.update import open_update
from tests.training.scaled_gradients import Course, scaled_gradients

# With dropout, gradients that are clipped, weight decay, and a part that is not trained.
DROPOUT = replace(SETTINGS, keep_prob=0.5, max_gradient_norm=0.1, weight_decay=0.5, freeze="encoder")
WORKERS, STEPS = 3, 6
PAIRS = random_pairs(20, 1)
INDEX = "experimental_get_current_worker_index"


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place each server on a device of this process. Every step runs on worker 1."""

    def local_server(device: str) -> Server:
        return Server(f"/CPU:{1 + int(device.partition('task:')[2][0])}")

    monkeypatch.setattr(asynchronous, "CHIEF_DEVICE", "/CPU:0")
    monkeypatch.setattr(asynchronous, "Server", local_server)
    monkeypatch.setattr(tf.distribute.coordinator, INDEX, lambda: tf.constant(1))


def opened(servers: int, model: Seq2Seq | None = None, precision: str = "float32") -> Asynchronous:
    """The training step of a model, by default a new one."""

    def schedule(function: Any, args: tuple) -> Any:
        results = function(*tf.nest.flatten(args))
        return SimpleNamespace(fetch=lambda: [result.numpy() for result in results])

    model = model or built_model(DROPOUT.model, VOCABULARY, DROPOUT.learning.seed, precision)
    update = Asynchronous(model, DROPOUT.learning, SimpleNamespace(schedule=schedule), WORKERS, servers)
    update.scatter_state(update.gather_state())
    return update


def run(update: VariableUpdate, first: int, last: int) -> None:
    """Train from one step to another."""
    batches = Batches([PAIRS], DROPOUT.learning.batch_size, DROPOUT.learning.seed).from_step(first, 1)
    for number in range(first, last):
        update(update.prepare(next(batches), number), DROPOUT.learning.learning_rate)


def weights_of(update: Asynchronous | Synchronous) -> list[np.ndarray]:
    """The weights, after all scheduled steps."""
    update.gather_state()
    return [variable.numpy() for variable in update._model.trainable_variables]


@pytest.fixture(scope="module")
def expected() -> tuple[list[np.ndarray], list[StepResult]]:
    """The weights and the results of a single device."""
    model = built_model(DROPOUT.model, VOCABULARY, DROPOUT.learning.seed)
    update = open_update(model, DROPOUT, [Tower("cpu_0", "/CPU:0", "CPU", None)])
    run(update, 0, STEPS)
    return weights_of(update), update.finished_steps()


def test_one_step_at_a_time_equals_a_single_device(expected: tuple[list[np.ndarray], list[StepResult]]) -> None:
    update = opened(servers=2)
    run(update, 0, STEPS)
    for weight, expected_weight in zip(weights_of(update), expected[0], strict=True):
        np.testing.assert_allclose(weight, expected_weight, atol=1e-5)
    results = update.finished_steps()
    assert len(results) == STEPS
    for result, one_device in zip(results, expected[1], strict=True):
        np.testing.assert_allclose(result.loss_sums, [0, float(one_device.loss_sums[0]), 0], rtol=1e-4)
        assert result.weight_sums.tolist() == [0, float(one_device.weight_sums[0]), 0]
        assert float(result.examples) == float(one_device.examples)
        assert result.gradient_norm == pytest.approx(float(one_device.gradient_norm), rel=1e-4)


def test_checkpoint_continues_on_another_number_of_servers(expected: tuple[list[np.ndarray], list[StepResult]]) -> None:
    first = opened(servers=1)
    second = opened(servers=3, model=first._model)
    run(first, 0, 3)
    state = first.gather_state()
    assert int(state.optimizer[0]) == 3
    second.scatter_state(state)
    run(second, 3, STEPS)
    for weight, expected_weight in zip(weights_of(second), expected[0], strict=True):
        np.testing.assert_allclose(weight, expected_weight, atol=1e-5)


def test_repeated_step_is_not_applied_again() -> None:
    """As after the death of a worker whose result was not fetched."""
    update = opened(servers=2)
    run(update, 0, 2)
    before = weights_of(update)
    run(update, 1, 2)
    for weight, weight_before in zip(weights_of(update), before, strict=True):
        np.testing.assert_array_equal(weight, weight_before)
    assert [int(server.updates.numpy()) for server in update.servers] == [2, 2]


def test_workers_share_the_loss_scale_of_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes once for each step, and continues on another number of servers."""
    monkeypatch.setattr(asynchronous, "gradient_function", scaled_gradients)
    first = opened(servers=2, precision="float16")
    update, course = first, Course(DOUBLED_AFTER, SMALLEST_SCALE, LARGEST_SCALE)
    (batch,) = islice(Batches([PAIRS], DROPOUT.learning.batch_size, 1).from_step(0, 1), 1)
    for number, factor in enumerate((1, 1e30, 1e4, 1e4, float("nan"), 1e30, 1, 1)):
        if number == 4:
            update = opened(servers=3, model=first._model)
            update.scatter_state(first.gather_state())
        share = batch.shares[0]._replace(weights=batch.shares[0].weights * np.float32(factor))
        expected = course.after([share], course.scale)
        for _ in range(2):  # the second time as after the death of a worker
            update(update.prepare(batch._replace(shares=(share,)), number), 0.1)
            ((exponent, finite_steps),) = update.gather_state().loss_scale
            assert (2**exponent, finite_steps) == (expected.scale, course.steps)
        result, _ = update.finished_steps()
        assert (result.finite, result.overflow) == expected[:2]
        assert result.weight_sums[1] == pytest.approx(share.weights.sum(), nan_ok=True)

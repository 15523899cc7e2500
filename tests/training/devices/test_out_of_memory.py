"""After running out of memory, a step computes shares in pieces with the same result, or ends with an error."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batches import Batches, GlobalBatch
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.failures import is_out_of_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import gradient_function
from chatbot.training.machines.team import Team
from chatbot.training.selftest import CASES, TOLERANCE, VOCABULARY, random_pairs, train_model
from chatbot.training.share import Prepared, Share
from chatbot.training.step import Synchronous
from chatbot.training.update import open_update


@pytest.mark.parametrize(
    ("name", "variable_update", "staged", "sampled"),
    [
        ("Adam", "parameter_server", False, None),
        ("Adam", "parameter_server", True, None),
        ("Adam", "replicated", False, 7),
        ("Adam with a Transformer", "replicated", False, None),
    ],
)
def test_out_of_memory_splits_shares_with_the_same_result(
    cpus: list[Tower],
    name: str,
    variable_update: str,
    staged: bool,
    sampled: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The gradient function has memory for three pairs."""
    settings = replace(CASES[name], variable_update=variable_update, staged_variables=staged, sampled_softmax=sampled)
    pairs = random_pairs(67, 3)
    expected_weights, expected, _ = train_model(settings, cpus[:2], pairs)
    monkeypatch.setattr("chatbot.training.gradients.gradient_function", with_memory_for(3))
    weights, results, update = train_model(settings, cpus[:2], pairs)
    for actual, expected_weight in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(actual, expected_weight, atol=TOLERANCE)
    assert [int(result.examples) for result in results] == [int(result.examples) for result in expected]
    assert update._pieces == 4
    assert capsys.readouterr().out.count("Out of memory") == 1


def test_out_of_memory_with_one_pair_at_a_time_is_an_error(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.training.gradients.gradient_function", with_memory_for(0))
    with pytest.raises(UserError, match="out of memory at step 0, with one pair at a time"):
        train_model(CASES["SGD"], cpus[:1], random_pairs(67, 3))


def test_out_of_memory_is_reported_with_accumulation_too(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(CASES["SGD"], batch_size=8, accumulate=2)
    monkeypatch.setattr("chatbot.training.gradients.gradient_function", with_memory_for(2))
    train_model(settings, cpus[:1], random_pairs(67, 3), steps=3)
    assert capsys.readouterr().out.count("Out of memory") == 1


def test_a_batch_is_not_prepared_beside_another_one(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is prepared again in the training thread waits for the one that is prepared ahead."""
    settings = CASES["SGD"]
    update = open_update(built_model(settings.model, VOCABULARY, settings.learning.seed), settings, cpus[:1])
    batch = next(Batches([random_pairs(20, 1)], 20, 1).from_step(0, 1))
    entered, release, prepare = list[int](), Event(), update.preparation

    def paused(batch: GlobalBatch, number: int, pieces: int) -> Prepared:
        entered.append(number)
        release.wait(10)
        return prepare(batch, number, pieces)

    monkeypatch.setattr(update, "preparation", paused)
    with ThreadPoolExecutor(2) as threads:
        for number in range(2):
            threads.submit(update.prepare, batch, number)
        time.sleep(0.2)
        assert len(entered) == 1
        release.set()
    assert len(entered) == 2


def with_memory_for(pairs: int, function: Callable[..., Any] = gradient_function) -> Callable[..., Any]:
    """A gradient_function that runs out of memory with more pairs than this in a share."""

    def limited_gradient_function(model: Seq2Seq, *tower: Any) -> Any:
        gradients = function(model, *tower)

        def check_rows(rows: int) -> int:
            if rows > pairs:
                raise MemoryError("injected")  # becomes a ResourceExhaustedError
            return rows

        def checked(weights: Any, share: Share, used: tf.Tensor, *loss_scale: tf.Tensor) -> Any:
            with tf.control_dependencies([tf.py_function(check_rows, [tf.shape(share.source.mask)[0]], tf.int32)]):
                return gradients(weights, tf.nest.map_structure(tf.identity, share), used, *loss_scale)

        return checked

    return limited_gradient_function


CUDNN = "Failed to call DoRnnForward with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: 2, 0, 0"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (tf.errors.InternalError(None, None, CUDNN), True),
        (tf.errors.InternalError(None, None, CUDNN.replace("Forward", "Backward")), True),
        (tf.errors.UnknownError(None, None, "CUDNN_STATUS_EXECUTION_FAILED\nin cuda_dnn.cc(2069)"), True),
        (tf.errors.InternalError(None, None, "CUDNN failed to allocate the scratch space for the runner"), True),
        (tf.errors.UnknownError(None, None, "CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc"), True),
        (tf.errors.InternalError(None, None, "Failed to allocate request for 2GiB on device ordinal 0"), True),
        (tf.errors.InternalError(None, None, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"), True),
        (tf.errors.InternalError(None, None, "Dst tensor is not initialized."), True),
        (tf.errors.InternalError(None, None, "Blas GEMM launch failed"), False),
        (tf.errors.UnavailableError(None, None, "worker 1: out of memory"), False),
    ],
)
def test_errors_of_cudnn_and_xla_are_out_of_memory(error: tf.errors.OpError, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def step_of(update: Synchronous) -> None:
    """Train on a batch of nine pairs."""
    batch = next(Batches([random_pairs(9, 1)], 9, 1).from_step(0, update.num_shares))
    update(update.prepare(batch, 0), 0.1)


def failing(monkeypatch: pytest.MonkeyPatch, update: Synchronous) -> list[tf.errors.OpError]:
    """A list of errors, the last of which the next step raises."""
    run_step, errors = update._run_step, list[tf.errors.OpError]()

    def fail(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return run_step(*arguments)

    monkeypatch.setattr(update, "_run_step", fail)
    return errors


def test_failure_of_cudnn_splits_shares(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other errors are raised, and with one pair at a time the text of TensorFlow is above the message."""
    update = new_update("parameter_server", cpus[:1])
    errors = failing(monkeypatch, update)
    memory = tf.errors.InternalError(None, None, "CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc")
    errors += [memory]
    step_of(update)
    assert update._pieces == 2
    assert "Perhaps out of memory (CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc): each share" in capsys.readouterr().out
    errors += [tf.errors.InternalError(None, None, "Blas GEMM launch failed")]
    with pytest.raises(tf.errors.InternalError):
        step_of(update)
    errors += 4 * [memory]
    with pytest.raises(UserError, match=r"with one pair at a time") as raised:
        step_of(update)
    assert raised.value.details == ("CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc",)
    assert len(str(raised.value)) < 200


def new_update(variable_update: str, towers: list[Tower]) -> Synchronous:
    """A training step with new weights."""
    settings = replace(CASES["Adam"], variable_update=variable_update)
    update = open_update(built_model(settings.model, VOCABULARY, settings.learning.seed), settings, towers)
    update.scatter_state(update.gather_state())
    return update


@pytest.mark.parametrize("updated", [0, 1])
def test_out_of_memory_during_the_update_is_an_error(
    updated: int, cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two replicas has counted the update, so its weights may have changed."""
    update = new_update("replicated", cpus[:2])

    def exhausted(*_: object) -> None:
        update.replicas[updated].calls.assign_add(1)
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    monkeypatch.setattr(update, "_run_step", exhausted)
    with pytest.raises(UserError, match="out of memory while the weights were updated, at step 0"):
        step_of(update)


def test_out_of_memory_in_the_exchange_between_machines_is_an_error(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine may have applied the sums, so this one cannot repeat the step by itself."""
    update = new_update("replicated", cpus[:2])

    def exhausted(*_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    monkeypatch.setattr(update, "_apply_gradients_graph", exhausted)
    monkeypatch.setattr(update, "_team", Team(0, 2))
    with pytest.raises(UserError, match="out of memory while the weights were updated, at step 0"):
        step_of(update)

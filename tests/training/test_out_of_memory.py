"""After running out of memory, a step computes shares in pieces with the same result, or ends with an error."""

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, MagicMock

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.loss import LOGITS, LossSize
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.checkpoints.progress import read_progress
from chatbot.training.data import prepare
from chatbot.training.devices.failures import is_out_of_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.loop import train
from chatbot.training.memory import read_too_large, write_too_large
from chatbot.training.new_model import build_model
from chatbot.training.run import Run
from chatbot.training.selftest import CASES, TOLERANCE, VOCABULARY, largest_difference, random_pairs, train_model
from chatbot.training.share import Share, copy_to_device
from chatbot.training.step import Synchronous
from chatbot.training.update import open_update
from chatbot.training.variable_update import Graph
from tests.training.light_gradients import light_gradient_function
from tests.training.small_run import TOWERS, open_with, small_settings, without_replies
from tests.training.untraced_update import UntracedUpdate


@pytest.fixture(autouse=True)
def _light_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is traced: `test_gradients.py` and `test_variable_update.py` divide its shares."""
    monkeypatch.setattr("chatbot.training.step.gradient_function", light_gradient_function)


@pytest.mark.parametrize(
    "changes",
    [
        {"variable_update": "parameter_server", "staged_variables": True},
        {"variable_update": "replicated", "accumulate": 2},
    ],
)
def test_out_of_memory_splits_shares_with_the_same_result(
    cpus: list[Tower], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gradient function has memory for five pairs."""
    settings = replace(CASES["Adam"], **changes)
    pairs = random_pairs(67, 3)
    expected_weights, expected, _ = train_model(settings, cpus[:2], pairs, steps=4)
    monkeypatch.setattr("chatbot.training.step.gradient_function", with_memory_for(5))
    weights, results, update = train_model(settings, cpus[:2], pairs, steps=4)
    for actual, expected_weight in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(actual, expected_weight, atol=TOLERANCE)
    assert [int(result.examples) for result in results] == [int(result.examples) for result in expected]
    assert update.memory.most_positions
    assert capsys.readouterr().out.count("Out of memory") == 1


def test_only_batches_that_are_too_large_are_divided(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of twelve pairs does not fit, a smaller one after it is computed as a whole."""
    monkeypatch.setattr("chatbot.training.step.gradient_function", with_memory_for(6))
    update = new_update("replicated", cpus[:2])
    large, small = (next(Batches([random_pairs(n, 1)], n, 1).from_step(0, 2)) for n in (24, 9))
    for number in range(3):
        update(update.prepare(large, number), 0.1)
        update(update.prepare(small, number), 0.1)
    assert (update.prepare(large, 9).pieces, update.prepare(small, 9).pieces) == (2, 1)
    assert len(update.memory.fitted) == len(update.memory.fitted_in_one_graph) == 1  # the small one
    assert update.step_graph.traced
    larger = next(Batches([random_pairs(26, 1)], 26, 1).from_step(0, 2))
    update.memory.most_positions = None  # it runs out of memory again, and with it what had enough before may do so
    update(update.prepare(larger, 9), 0.1)
    assert not update.memory.fitted
    assert not update.memory.fitted_in_one_graph


@pytest.mark.parametrize("fails", ["not", "with an error", "for ever"])
def test_single_graph_of_replicas_is_tried_once_for_each_size(
    fails: str, cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After it has fitted as several. What is tried is recorded: the next process knows, on the same devices."""
    update, twin = (new_update("replicated", cpus[:2], CASES["SGD"]) for _ in range(2))
    file, devices, recorded = tmp_path / "too_large.json", "2 x 7", list[float]()
    small, large = (next(Batches([random_pairs(n, 1)], n, 1).from_step(0, 2)) for n in (9, 24))
    sizes = [update.prepare(batch, 0).size for batch in (small, large)]
    of_small, of_large = (pairs * (source + target) for pairs, source, target in sizes)
    run = Graph.__call__

    def fail(self: Graph, *inputs: Any) -> Any:
        if self is update.step_graph:
            recorded.append(read_too_large(file, devices))
            if fails != "not" and recorded[-1] == of_large:
                raise (
                    tf.errors.ResourceExhaustedError(None, None, "") if fails == "with an error" else KeyboardInterrupt
                )
        return run(self, *inputs)

    monkeypatch.setattr(Graph, "__call__", fail)
    update.memory.record = functools.partial(write_too_large, file, devices)
    twin.memory.too_large = 0
    order = [small, small, small, large, small, large, large]
    for number, batch in enumerate(order):
        twin(twin.prepare(batch, number), 0.1)
        with contextlib.suppress(KeyboardInterrupt):
            update(update.prepare(batch, number), 0.1)
        if fails == "for ever" and number == 5:
            break
    assert recorded == [of_small, math.inf, math.inf, of_large, *([math.inf] if fails == "not" else [])]
    assert file.exists() == (fails != "not")
    assert twin.step_graph.traced is None
    assert len(twin.memory.fitted) == 2
    assert read_too_large(file, devices) == (math.inf if fails == "not" else of_large)
    assert read_too_large(file, "4 x 7") == math.inf
    assert update.memory.most_positions is None
    if fails != "for ever":
        for one, other in zip(update.replicas[0].weights, twin.replicas[0].weights, strict=True):
            np.testing.assert_array_equal(one, other)
    file.write_text("[]")
    with pytest.raises(UserError, match="damaged; delete this file"):
        read_too_large(file, devices)


def test_out_of_memory_in_a_copy_splits_shares(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times."""
    pairs, settings = random_pairs(67, 3), CASES["SGD"]
    expected, _, _ = train_model(settings, cpus[:1], pairs, steps=3)
    failed = list[int]()

    def copy(share: Any, device: str) -> Any:
        if len(failed) < 3:
            failed.append(1)
            raise tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory for a copy")
        return copy_to_device(share, device)

    monkeypatch.setattr("chatbot.training.share.copy_to_device", copy)
    weights, _, update = train_model(settings, cpus[:1], pairs, steps=3)
    assert largest_difference(weights, expected) < TOLERANCE
    batch = next(Batches([pairs], settings.learning.batch_size, settings.learning.seed).from_step(0, 1))
    assert update.prepare(batch, 0).pieces == min(2 * 4 * 8, settings.learning.batch_size)


@functools.cache
def staged_training(towers: int) -> tuple[Settings, list[np.ndarray]]:
    """Settings of staged variables on so many towers, and the weights that they train."""
    changes = {"variable_update": "replicated", "all_reduce": "one_device"} if towers > 1 else {}
    settings = replace(CASES["SGD"], staged_variables=True, **changes)
    return settings, train_model(settings, TOWERS[:towers], random_pairs(67, 3), steps=4)[0]


@pytest.mark.parametrize(
    ("function", "towers", "failing_call"), [("_late_update", 2, 1), ("_late_step", 1, 2), ("_gradients", 2, 2)]
)
def test_staged_gradients_survive_a_step_that_runs_out_of_memory(
    function: str, towers: int, failing_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step fails once: in the update, in the one graph, or in the gradients, after the exchange of the last ones."""
    settings, expected = staged_training(towers)
    run, calls = Graph.__call__, list[int]()

    def fail_once(self: Graph, *inputs: Any) -> Any:
        if self._function.python_function.__name__ == function:
            calls.append(1)
            if len(calls) == failing_call:
                raise tf.errors.ResourceExhaustedError(None, None, "injected")
        return run(self, *inputs)

    monkeypatch.setattr(Graph, "__call__", fail_once)
    weights, _, _ = train_model(settings, TOWERS[:towers], random_pairs(67, 3), steps=4)
    assert len(calls) >= failing_call
    assert largest_difference(weights, expected) < TOLERANCE


def with_memory_for(pairs: int) -> Callable[..., Any]:
    """A gradient function that runs out of memory with more pairs than this in a share."""

    def limited_gradient_function(model: Seq2Seq, *tower: Any) -> Any:
        gradients = light_gradient_function(model, *tower)

        def check_rows(rows: int) -> int:
            if rows > pairs:
                raise MemoryError("injected")  # becomes a ResourceExhaustedError
            return rows

        def checked(weights: Any, share: Share, *loss_scale: tf.Tensor) -> Any:
            with tf.control_dependencies([tf.py_function(check_rows, [tf.shape(share.source.mask)[0]], tf.int32)]):
                return gradients(weights, tf.nest.map_structure(tf.identity, share), *loss_scale)

        return checked

    return limited_gradient_function


CUDNN = "Failed to call DoRnnForward with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: 2, 0, 0"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (tf.errors.InternalError(None, None, CUDNN), True),
        (tf.errors.InternalError(None, None, CUDNN.replace("Forward", "Backward")), True),
        (tf.errors.InternalError(None, None, "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (tf.errors.UnknownError(None, None, "CUDNN_STATUS_EXECUTION_FAILED\nin cuda_dnn.cc(2069)"), True),
        (tf.errors.InternalError(None, None, "Failed to allocate request for 2GiB on device ordinal 0"), True),
        (tf.errors.InternalError(None, None, "RESOURCE_EXHAUSTED: trying to allocate 2GiB"), True),
        (tf.errors.InternalError(None, None, "Out of memory while trying to allocate 2GiB"), True),
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


def test_failure_of_cudnn_splits_shares(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other errors are raised, and with one pair at a time the text of TensorFlow is above the message."""
    update = new_update("parameter_server", cpus[:1])
    memory = tf.errors.InternalError(None, None, "CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc")
    other = tf.errors.InternalError(None, None, "Blas GEMM launch failed")
    steps = MagicMock(wraps=update._train, side_effect=[memory, DEFAULT, other, *4 * [memory]])
    monkeypatch.setattr(update, "_train", steps)
    step_of(update)
    assert update.memory.most_positions
    assert "Possibly out of memory (CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc): shares" in capsys.readouterr().out
    with pytest.raises(tf.errors.InternalError):
        step_of(update)
    with pytest.raises(UserError, match=r"with one pair at a time") as raised:
        step_of(update)
    assert raised.value.details == ("CUDNN_STATUS_ALLOC_FAILED in cuda_dnn.cc",)
    assert len(str(raised.value)) < 200


def new_update(variable_update: str, towers: list[Tower], settings: Settings = CASES["Adam"]) -> Synchronous:
    """A training step with new weights."""
    settings = replace(settings, variable_update=variable_update)
    update = open_update(build_model(settings.model, VOCABULARY, settings.learning.seed), settings, towers)
    update.scatter_state(update.gather_state())
    return update


@pytest.mark.parametrize("updated", [0, 1])
def test_one_graph_that_fails_in_its_update_is_not_repeated(
    updated: int, cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two replicas has counted the update, so its weights may have changed."""
    update, run = new_update("replicated", cpus[:2]), Graph.__call__

    def fail(self: Graph, *inputs: Any) -> Any:
        if self is not update.step_graph:
            return run(self, *inputs)
        update.replicas[updated].calls.assign_add(1)
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    monkeypatch.setattr(Graph, "__call__", fail)
    step_of(update)  # by several graphs
    with pytest.raises(UserError, match="out of memory while the weights were updated, at step 0"):
        step_of(update)


def test_resumed_run_divides_the_same_shares(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are drawn for each piece. Another device starts anew."""

    def opened(steps: int) -> Run:
        settings = small_settings(data=("pairs.tsv",), steps=steps)
        return open_with(UntracedUpdate, settings, prepare(settings))

    first = opened(1)
    first.train_step.memory.most_positions = 7
    with without_replies():
        train(first)
    progress = read_progress(Path("checkpoints/default/last"))
    assert (progress.most_positions, progress.device_memory) == (7, None)
    assert opened(2).train_step.memory.most_positions == 7
    assert opened(2).model.loss_size.logits == progress.logits == LOGITS
    less, more, of_another = (
        (None, LOGITS - 1, LOGITS - 1),
        (None, LOGITS + 1, LOGITS),
        (1 << 30, LOGITS + 1, LOGITS + 1),
    )
    for memory, left, logits in (less, more, of_another):
        monkeypatch.setattr("chatbot.training.run.min_memory", lambda towers, memory=memory: memory)
        monkeypatch.setattr("chatbot.training.new_model.loss_size", lambda *_, left=left: LossSize(left))
        run = opened(2)
        assert run.train_step.memory.most_positions == (None if memory else 7)
        assert run.model.loss_size.logits == run.progress.logits == logits
        assert run.progress.device_memory == memory

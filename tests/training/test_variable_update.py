"""Several towers train the same weights as one device, each on its own device and in parallel."""

import functools
import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batches import Batches, pad_batch
from chatbot.flags import replace
from chatbot.model.loss import projection_loss
from chatbot.model.new_model import built_model
from chatbot.model.sequences import packed_array
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.selftest import (
    ALWAYS_CLIPPED,
    CASES,
    SETTINGS,
    STEPS,
    TOLERANCE,
    VOCABULARY,
    largest_difference,
    random_pairs,
    selftest,
    train_model,
    weight_difference,
)
from chatbot.training.step import StepResult
from chatbot.training.update import open_update
from tests.model.plain_loss import sequence_loss
from tests.training.dense_gradients import dense_gradients

UPDATES: dict[str, dict[str, Any]] = {
    "parameter_server": {},
    "replicated": {"variable_update": "replicated"},
    "hierarchical": {"all_reduce": "hierarchical"},
    "variables on the CPU": {"local_parameter_device": "cpu"},
}


@functools.cache
def one_device_weights(name: str) -> list[np.ndarray]:
    """The weights after one device has trained a case."""
    return train_model(CASES[name], [Tower("cpu_0", "/CPU:0", "CPU", None)], random_pairs(67, SETTINGS.learning.seed))[
        0
    ]


# Where the variables are, and how gradients are summed, does not depend on the optimizer. The self-test has all cases
# with a single copy of the variables.
UPDATES_AND_CASES = [
    *(("replicated", case) for case in CASES),
    *((update, "Adam with clipping") for update in UPDATES if update != "replicated"),
]


@pytest.mark.parametrize(("update", "name"), UPDATES_AND_CASES)
def test_four_towers_equal_one_device(cpus: list[Tower], update: str, name: str) -> None:
    many, _, _ = train_model(replace(CASES[name], **UPDATES[update]), cpus, random_pairs(67, SETTINGS.learning.seed))
    assert largest_difference(many, one_device_weights(name)) < TOLERANCE


# Options of the model whose result does not depend on the key of a tower.
OPTIONS = {
    "tied_embeddings": False,
    "num_layers": 2,
    "residual": True,
}


SAMPLED = {"sampled_softmax": 7}


@pytest.mark.parametrize(("variable_update", "options"), [("parameter_server", SAMPLED), ("replicated", OPTIONS)])
def test_two_towers_equal_one_device(cpus: list[Tower], variable_update: str, options: dict[str, Any]) -> None:
    settings = replace(CASES["Adam"], variable_update=variable_update, **options)
    assert weight_difference(settings, cpus[:2]) < TOLERANCE


@pytest.mark.parametrize(
    ("devices", "name"), [(2, "Adam"), (3, "SGD"), (4, "Adam with clipping"), (4, "Adam with a Transformer")]
)
def test_model_parallel_equals_one_device(cpus: list[Tower], devices: int, name: str) -> None:
    """Four devices are two towers of two devices each."""
    settings = replace(CASES[name], model_parallel=True)
    towers = spread(cpus[:devices])
    many, _, update = train_model(settings, towers, random_pairs(67, SETTINGS.learning.seed))
    assert largest_difference(many, one_device_weights(name)) < TOLERANCE
    # Each weight is on the device where its part of the model runs.
    devices_of_weights = {weight.device.rsplit("device:", 1)[-1] for weight in update.replicas[0].weights}
    assert towers[0].parts
    assert devices_of_weights == {part.strip("/") for part in towers[0].parts}


@pytest.mark.parametrize(
    ("name", "variable_update", "pieces"),
    [("Adam", "parameter_server", 5), ("Adam", "replicated", 2), ("Adam with a Transformer", "replicated", 2)],
)
def test_accumulated_batches_equal_one_large_batch(
    cpus: list[Tower], name: str, variable_update: str, pieces: int
) -> None:
    small = replace(CASES[name], batch_size=4, accumulate=pieces, variable_update=variable_update, **SAMPLED)
    large = replace(CASES[name], batch_size=4 * pieces, **SAMPLED)
    pairs = random_pairs(67, 3)
    many, _, _ = train_model(small, cpus[:2], pairs)
    one, _, _ = train_model(large, cpus[:1], pairs)
    assert largest_difference(many, one) < TOLERANCE


def test_each_independent_tower_equals_its_own_run(cpus: list[Tower]) -> None:
    """Tower i equals a single tower that trains on the i-th share of each batch; the towers differ."""
    settings = replace(CASES["Adam with clipping"], variable_update="independent")
    pairs = random_pairs(67, 3)
    _, _, update = train_model(settings, cpus[:2], pairs)
    final_weights = [
        [weight.numpy() for weight in replica.of_variables(replica.weights)] for replica in update.replicas
    ]
    for i in range(2):
        model = built_model(settings.model, VOCABULARY, settings.learning.seed)
        single = open_update(model, replace(settings, variable_update="parameter_server"), cpus[:1])
        batches = Batches([pairs], settings.learning.batch_size, settings.learning.seed).from_step(0, 2)
        for number in range(STEPS):
            batch = next(batches)
            single(
                single.prepare(batch._replace(shares=batch.shares[i : i + 1]), number), settings.learning.learning_rate
            )
        for actual, expected in zip(final_weights[i], model.trainable_variables, strict=True):
            np.testing.assert_allclose(actual, expected.numpy(), atol=1e-6)
    assert largest_difference(*final_weights) > 1000 * TOLERANCE


@functools.cache
def staged_weights() -> list[np.ndarray]:
    """The weights in NumPy: w[t+1] = w[t] - rate * gradient of batch t-1 at w[t-1]; w[1] = w[0]."""
    settings, pairs = CASES["SGD"], random_pairs(67, SETTINGS.learning.seed)
    model = built_model(settings.model, VOCABULARY, settings.learning.seed)
    weights = [v.numpy().astype(np.float64) for v in model.trainable_variables]
    batches = Batches([pairs], settings.learning.batch_size, settings.learning.seed).from_step(0, 1)
    pending = None
    for _ in range(STEPS):
        values = [tf.constant(w, tf.float32) for w in weights]
        sums, gradients = dense_gradients(model, next(batches).shares[0], values)
        if pending is not None:
            weights = [w - settings.learning.learning_rate * g for w, g in zip(weights, pending, strict=True)]
        pending = [g.numpy().astype(np.float64) / float(sums.weight) for g in gradients]
    return weights


@pytest.mark.parametrize("variable_update", ["parameter_server", "replicated"])
def test_staged_variables_are_one_step_late(cpus: list[Tower], variable_update: str) -> None:
    settings = replace(CASES["SGD"], staged_variables=True, variable_update=variable_update)
    staged, results, _ = train_model(settings, cpus[:3], random_pairs(67, SETTINGS.learning.seed))
    for actual, expected in zip(staged, staged_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, atol=TOLERANCE)
    assert results[0].gradient_norm == 0 < results[1].gradient_norm
    assert largest_difference(staged, one_device_weights("SGD")) > 1000 * TOLERANCE


@pytest.mark.parametrize("variable_update", ["parameter_server", "replicated"])
def test_pending_gradients_survive_a_checkpoint(cpus: list[Tower], variable_update: str) -> None:
    settings = replace(CASES["Adam"], staged_variables=True, variable_update=variable_update)
    pairs = random_pairs(67, 3)
    uninterrupted, _, _ = train_model(settings, cpus[:2], pairs)
    _, _, first = train_model(settings, cpus[:2], pairs, steps=4)
    state = first.gather_state()
    second = open_update(first._model, settings, cpus[:2])
    second.scatter_state(state)
    batches = Batches([pairs], settings.learning.batch_size, settings.learning.seed).from_step(4, 2)
    for number in range(4, STEPS):
        second(second.prepare(next(batches), number), settings.learning.learning_rate)
    second.gather_state()
    for actual, expected in zip(uninterrupted, first._model.trainable_variables, strict=True):
        np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize("name", CASES)
def test_one_tower_equals_a_plain_training_loop(cpus: list[Tower], name: str) -> None:
    """Compared with the mean loss of the whole batch, Keras's clipping and a Keras optimizer."""
    settings = replace(CASES[name], bidirectional=True)
    pairs = random_pairs(67, settings.learning.seed)
    model = built_model(settings.model, VOCABULARY, settings.learning.seed)
    start = [v.numpy() for v in model.trainable_variables]
    optimizers = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    optimizer = optimizers[settings.learning.optimizer](
        settings.learning.learning_rate, global_clipnorm=settings.learning.max_gradient_norm
    )
    batches = Batches([pairs], settings.learning.batch_size, settings.learning.seed)
    rows_of_steps = [places[:, 1] for epoch in range(3) for _, places in batches.plan(epoch)]
    norms = []
    for rows in rows_of_steps[:STEPS]:
        batch = pad_batch(pairs, rows, 12, 12)
        with tf.GradientTape() as tape:
            source, target_in = model.sequences(batch.source), model.sequences(batch.target_in)
            targets, token_weights = (packed_array(x, target_in.packing, 0) for x in (batch.target_out, batch.weights))
            loss = sequence_loss(model(source, target_in), targets, token_weights)
            mean = loss / batch.weights.sum()
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(mean, model.trainable_variables)]
        norms.append(float(tf.linalg.global_norm(gradients)))
        optimizer.apply(gradients, model.trainable_variables)
    weights, results, _ = train_model(settings, cpus[:1], pairs)
    for actual, expected in zip(weights, model.trainable_variables, strict=True):
        np.testing.assert_allclose(actual, expected.numpy(), atol=TOLERANCE, rtol=1e-4)  # summed in another order
    np.testing.assert_allclose([r.gradient_norm for r in results], norms, rtol=1e-4)
    change = max(np.abs(actual - before).max() for actual, before in zip(weights, start, strict=True))
    assert change > 1000 * TOLERANCE
    assert (max(norms) > ALWAYS_CLIPPED) or settings.learning.max_gradient_norm != ALWAYS_CLIPPED


def test_tower_losses_and_counts_add_up_to_those_of_the_batch(cpus: list[Tower]) -> None:
    pairs = random_pairs(67, 1)
    _, one, _ = train_model(SETTINGS, cpus[:1], pairs, steps=3)
    _, four, _ = train_model(SETTINGS, cpus, pairs, steps=3)
    for batch, towers in zip(one, four, strict=True):
        np.testing.assert_allclose(sum(towers.loss_sums), batch.loss_sums[0], rtol=1e-5)
        assert sum(towers.weight_sums) == batch.weight_sums[0]
        assert int(towers.examples) == int(batch.examples)


def test_batch_may_have_fewer_pairs_than_towers(cpus: list[Tower]) -> None:
    """Towers without a pair contribute nothing to the gradients and the counts."""
    settings = replace(SETTINGS, batch_size=4)
    pairs = random_pairs(1, 1)
    many, (result,), _ = train_model(settings, cpus, pairs, steps=1)
    one, _, _ = train_model(settings, cpus[:1], pairs, steps=1)
    assert result.weight_sums[1:].tolist() == [0, 0, 0]
    assert int(result.examples) == 1
    assert largest_difference(many, one) < TOLERANCE


@pytest.mark.parametrize(
    ("loss", "finite", "trained", "difference"),
    [
        (2.0, True, [1.0, 2.0], "differ by 0.0e+00"),
        (math.nan, False, [0.0, 0.0], "cannot be compared"),  # all updates are skipped
        (math.nan, False, [1.0, 2.0], "cannot be compared"),
        (2.0, True, [0.0, 0.0], "cannot be compared"),
        (2.0, True, [1.0, math.nan], "cannot be compared"),
        (2.0, True, [math.nan, 1.0], "cannot be compared"),
    ],
)
def test_selftest_fails_where_devices_compute_nothing(
    cpus: list[Tower],
    loss: float,
    finite: bool,
    trained: list[float],
    difference: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The weights of all devices are equal, but they may not have been computed."""

    def train(_: Any, towers: list[Tower], __: Any, steps: int = STEPS) -> tuple[list[np.ndarray], list[Any], None]:
        losses = loss + np.arange(len(towers), dtype=np.float32)
        result = StepResult(losses, losses, 1, 1.0, finite)
        return [np.full(3, weight) for weight in (trained if steps else [0.0, 0.0])], [result] * steps, None

    monkeypatch.setattr("chatbot.training.selftest.train_model", train)
    passes = difference.startswith("differ")
    assert selftest(SETTINGS, cpus[:2]) == (0 if passes else 1)
    lines = capsys.readouterr().out.splitlines()
    compared = [line.startswith(f"{'ok  ' if passes else 'FAIL'}  2 towers and 1 {difference} after") for line in lines]
    assert compared == [True] * len(CASES) + [False] * 3
    assert lines[len(CASES)] == f"{'FAIL' if math.isnan(loss) else 'ok  '}  towers draw different dropout masks"


def test_selftest_passes_and_fails_when_towers_disagree(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selftest(SETTINGS, cpus[:2]) == 0
    assert "Verdict: these devices train together as one." in capsys.readouterr().out

    def mean_of_means(*arguments: Any) -> tf.Tensor:
        weights = arguments[4]
        return projection_loss(*arguments) / tf.reduce_sum(weights)

    monkeypatch.setattr("chatbot.model.seq2seq.projection_loss", mean_of_means)
    monkeypatch.setattr("chatbot.training.selftest.CASES", {"SGD": CASES["SGD"]})
    assert selftest(SETTINGS, cpus[:2]) == 1
    assert "do NOT train as one" in capsys.readouterr().out

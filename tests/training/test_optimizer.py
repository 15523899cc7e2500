"""The update rules against Keras's optimizers and in float64, and the mean and clipping of gradient sums."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.errors import UserError
from chatbot.training.optimizer import (
    BETA_1,
    BETA_2,
    EPSILON,
    MOMENTUM,
    apply_update,
    average_and_clip,
    is_decayed,
    make_slots,
    update_average,
    update_scalars,
)

RATE = 0.1
OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=MOMENTUM),
    "sgd": keras.optimizers.SGD,
}
START = np.array([1.0, -2.0])
GRADIENTS = np.array([[0.5, -1.0], [2.0, 0.1], [-0.3, 0.7], [1.0, 1.0]])


def updated(settings: LearningSettings, decayed: bool = False) -> list[np.ndarray]:
    """The weight after each update."""
    weight, weights = tf.Variable(START, dtype=tf.float32), []
    slots = make_slots(settings.optimizer, weight)
    for number, gradient in enumerate(tf.constant(GRADIENTS, tf.float32), 1):
        scalars = update_scalars(tf.constant(RATE), tf.constant(number), tf.constant(True))
        apply_update(settings, weight, slots, gradient, scalars, decayed)
        weights.append(weight.numpy())
    return weights


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_updates_equal_those_of_keras(rule: str) -> None:
    optimizer, expected = OPTIMIZERS[rule](RATE), keras.Variable(START, dtype="float32")
    for gradient, actual in zip(GRADIENTS, updated(LearningSettings(optimizer=rule)), strict=True):
        optimizer.apply([tf.constant(gradient, tf.float32)], [expected])
        np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-5)


def slow_updates(settings: LearningSettings, decay: float) -> Sequence[np.ndarray]:
    """The weight after each update, by the formulas of the papers, in float64."""
    weight, weights = START, []
    mean, square, velocity = np.zeros((3, len(START)))
    for number, gradient in enumerate(GRADIENTS, 1):
        weight = weight - RATE * decay * weight
        mean = BETA_1 * mean + (1 - BETA_1) * gradient
        square = BETA_2 * square + (1 - BETA_2) * gradient**2
        velocity = MOMENTUM * velocity - RATE * gradient
        rate = RATE * np.sqrt(1 - BETA_2**number) / (1 - BETA_1**number)
        adam = -rate * mean / (np.sqrt(square) + EPSILON)
        weight = weight + {"adam": adam, "momentum": velocity, "sgd": -RATE * gradient}[settings.optimizer]
        weights.append(weight)
    return weights


@pytest.mark.parametrize("decayed", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "momentum"}, {"optimizer": "sgd"}],
)
def test_updates_equal_the_formulas(changes: dict[str, Any], decayed: bool) -> None:
    settings = LearningSettings(weight_decay=0.3, **changes)
    expected = slow_updates(settings, 0.3 if decayed else 0.0)
    np.testing.assert_allclose(updated(settings, decayed), expected, rtol=2e-5)


@pytest.mark.parametrize(
    ("name", "shape", "decayed"),
    [
        ("kernel", (3, 4), True),
        ("recurrent_kernel", (3, 4), True),
        ("embeddings", (9, 4), True),
        ("bias", (4,), False),
        ("bias", (2, 4), False),  # a GRU's
        ("gamma", (4,), False),
    ],
)
def test_biases_are_not_decayed(name: str, shape: tuple[int, ...], decayed: bool) -> None:
    assert is_decayed(keras.Variable(np.zeros(shape), name=name)) == decayed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average": 1.0}, "--average 1.0: must be below 1"),
        ({"weight_decay": 500.0}, "--weight-decay 500.0: at --learning-rate 0.002 an update would remove"),
    ],
)
def test_settings_that_a_rule_cannot_use_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LearningSettings(**changes)


@pytest.mark.parametrize("max_norm", [1.0, 100.0])
def test_mean_gradients_are_clipped_by_their_global_norm(max_norm: float) -> None:
    """The sums of two weights have norm 13; with four tokens, the mean has 3.25."""
    gradients, norm, finite, _ = average_and_clip(
        [tf.constant([3.0, 4.0]), tf.constant([12.0])], tf.constant(4.0), max_norm
    )
    scale = min(1.0, max_norm / 3.25) / 4
    assert (float(norm), bool(finite)) == (pytest.approx(3.25), True)
    np.testing.assert_allclose(np.concatenate(gradients), scale * np.array([3.0, 4.0, 12.0]), rtol=1e-6)


def test_no_tokens_leave_gradients_of_zero() -> None:
    gradients, norm, finite, _ = average_and_clip([tf.zeros(2)], tf.constant(0.0), 5.0)
    assert (float(norm), gradients[0].numpy().tolist(), bool(finite)) == (0.0, [0.0, 0.0], True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("where", ["gradient", "tokens"])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_update_that_is_not_finite_changes_nothing(rule: str, where: str, bad: float) -> None:
    """The square of 3e38 overflows. The first update is skipped as well."""
    settings = LearningSettings(optimizer=rule, weight_decay=0.3)
    weight, average = tf.Variable(START, dtype=tf.float32), tf.Variable([5.0, 6.0])
    slots = make_slots(rule, weight)
    updates = 0
    for value in (bad, 0.5, bad, 0.25):
        skipped = value is bad
        sums = [tf.constant([1.0, value if where == "gradient" else 0.5])]
        tokens = tf.constant(4.0 if where == "gradient" or not skipped else float("nan"))
        gradients, _, finite, _ = average_and_clip(sums, tokens, 5.0)
        assert bool(finite) == (not skipped)
        updates += int(finite)
        before = [variable.numpy() for variable in (weight, average, *slots)]
        scalars = update_scalars(tf.constant(RATE), tf.constant(updates), finite)
        apply_update(settings, weight, slots, gradients[0], scalars, decayed=True)
        update_average(average, weight, 0.9, tf.constant(updates), scalars.applied)
        after = [variable.numpy() for variable in (weight, average, *slots)]
        assert [bool((a == b).all()) for a, b in zip(before, after, strict=True)] == [skipped] * len(after)
        assert all(np.isfinite(value).all() for value in after)

"""The update rules against Keras's optimizers; updates that are not finite; averages; settings that are refused."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.model.saved import weights_of
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.groups import groups_of
from chatbot.training.optimizer import (
    MOMENTUM,
    apply_update,
    average_and_clip,
    is_decayed,
    make_slots,
    update_average,
    update_scalars,
)
from chatbot.training.replica import Replica
from tests.training.checkpoints.step_checkpoints import model_of, values_of

RATE = 0.1
OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=MOMENTUM),
    "sgd": keras.optimizers.SGD,
}
START = np.array([1.0, -2.0])
GRADIENTS = np.array([[0.5, -1.0], [2.0, 0.1], [-0.3, 0.7], [1.0, 1.0]])


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_updates_equal_those_of_keras(rule: str) -> None:
    settings, optimizer = LearningSettings(optimizer=rule), OPTIMIZERS[rule](RATE)
    weight, expected = tf.Variable(START, dtype=tf.float32), keras.Variable(START, dtype="float32")
    slots = make_slots(rule, weight)
    for number, gradient in enumerate(tf.constant(GRADIENTS, tf.float32), 1):
        scalars = update_scalars(tf.constant(RATE), tf.constant(number), tf.constant(True))
        apply_update(settings, weight, slots, gradient, scalars)
        optimizer.apply([gradient], [expected])
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-5)


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
        ({"freeze": "encoder,tail"}, "--freeze tail: no such part; the parts of the model are embedding, encoder, "),
        ({"freeze": "attention", "attention": "none"}, "--freeze attention: no such part; .* encoder, decoder, proj"),
        ({"freeze": "embedding,encoder,decoder,attention,projection"}, "nothing is left to train; leave out a part"),
        ({"freeze": ""}, "--freeze '': expected printable text"),
        ({"asynchronous": True, "average": 0.9}, "--asynchronous and --average"),
        ({"asynchronous": True, "deterministic": True}, "--asynchronous and --deterministic exclude each other"),
        ({"best_by": "distinct_2"}, "--best-by distinct_2: choose one of nats_per_character"),
        ({"best_by": "bleu", "validation": "none"}, "leave out --validation none"),
        ({"best_by": "question_nats_per_character", "both_directions": "off"}, "leave out --both-directions off"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(Settings, **changes)


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


PLAIN, MOVING = LearningSettings(), LearningSettings(average=0.9)


def saved(learning: LearningSettings, step: int) -> None:
    """Save a checkpoint whose weights have the value of its step; if they are averages, the trained are 10 more."""
    model = model_of(step)
    replica = Replica(model, learning, groups_of(model, learning, 0))
    for weight in replica.weights if learning.average else []:
        weight.assign(weight + 10)
    checkpoints = Checkpoints(Path(), model)
    checkpoints.save(Progress(step=step), replica.gather_state(), best=False)
    checkpoints.finish()


@pytest.mark.parametrize(
    ("before", "now", "averaged", "trained"),
    [(MOVING, MOVING, 3, 13), (PLAIN, MOVING, 3, 3), (MOVING, PLAIN, 13, 13)],
)
def test_run_begins_or_ceases_to_average(
    work_dir: Path, before: LearningSettings, now: LearningSettings, averaged: float, trained: float
) -> None:
    saved(before, step=3)
    model = model_of(0)
    replica = Replica(model, now, groups_of(model, now, 1 << 20))
    _, state = Checkpoints(Path(), model).restore(replica.gather_state())
    replica.scatter_state(state)
    assert values_of(replica.weights) == {trained}
    replica.gather_state()
    assert values_of(weights_of(model)) == {averaged}

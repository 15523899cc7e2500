"""Averages of the weights in a run: what is validated, saved, resumed and loaded to chat."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.errors import UserError
from chatbot.model.saved import load_trained, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.averages import Averages
from chatbot.training.checkpoints import Checkpoints
from chatbot.training.progress import Progress
from chatbot.training.validator import Validation, Validator
from chatbot.training.variable_update.replica import Replica
from chatbot.training.window import Window
from tests.training.small_run import small_settings, train_small, validation_of


def group(name: str, attempt: str, step: int) -> list[np.ndarray]:
    """The values of a group in a checkpoint."""
    reader = tf.train.load_checkpoint(f"checkpoints/{attempt}/ckpt-{step}")
    count = sum(key.startswith(f"{name}/") for key in reader.get_variable_to_shape_map())
    return [reader.get_tensor(f"{name}/{i}/.ATTRIBUTES/VARIABLE_VALUE") for i in range(count)]


def values(model: Seq2Seq) -> list[np.ndarray]:
    """The weights of a model."""
    return [weight.numpy() for weight in weights_of(model)]


def assert_equal(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Compare values to the bit."""
    for value, expected_value in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(value, expected_value)


def test_mean_of_the_last_validations_is_validated_and_resumed(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is interrupted at step 3. With a validation every two steps, the last two are those of steps 2 and 4."""
    validated: list[list[np.ndarray]] = []

    def validate(validator: Validator, corpus: Any) -> Validation:
        validated.append(values(validator._score._model))
        return validation_of(1.0, validator.replies())

    monkeypatch.setattr(Validator, "validate", validate)
    monkeypatch.setattr(Validator, "replies", lambda validator: [""] * len(validator._samples))
    monkeypatch.setattr(Validator, "chat_replies", lambda validator, _: [""] * len(validator._samples))
    held_out = pairs_file.with_name("held_out.tsv")
    held_out.write_text("甲甲甲\t丑\n乙丙\t子\n")
    data = {"data": (str(pairs_file),), "validation": str(held_out), "validate_every": 2}
    train_small(1, attempt="plain", steps=4, **data)
    plain, validated[:] = validated[:], []

    next_batch, calls = Window.next_batch, []

    def interrupt_third_call(window: Window) -> tuple:
        calls.append(window)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return next_batch(window)

    monkeypatch.setattr(Window, "next_batch", interrupt_third_call)
    train_small(1, attempt="mean", steps=4, average_checkpoints=2, **data)
    assert_equal(group("weights", "mean", 3), plain[0])
    train_small(1, attempt="mean", steps=4, average_checkpoints=2, **data)
    assert_equal(validated[0], plain[0])
    mean = [((a.astype(np.float64) + b) / 2).astype(np.float32) for a, b in zip(*plain, strict=True)]
    assert_equal(validated[1], mean)
    assert_equal(values(load_trained(Path("checkpoints/mean")).model), mean)
    assert_equal(group("trained", "mean", 4), plain[1])


PLAIN, MOVING, MEAN = LearningSettings(), LearningSettings(average=0.9), LearningSettings(average_checkpoints=2)
VOCABULARY = 9


def model_of(value: float) -> Seq2Seq:
    """A model whose weights all have this value."""
    model = Seq2Seq(small_settings(rnn_size=4).model, VOCABULARY)
    for weight in model.trainable_variables:
        weight.assign(tf.fill(weight.shape, value))
    return model


def saved(learning: LearningSettings, step: int) -> None:
    """Save a checkpoint whose weights have the value of its step; if they are averages, the trained are 10 more."""
    model = model_of(step)
    averages, replica = Averages(weights_of(model), learning), Replica(model, learning)
    for weight in replica.weights if learning.averages else []:
        weight.assign(weight + 10)
    state = replica.gather_state()
    averages.update(state, validated=True)
    checkpoints = Checkpoints(Path(), model, averages)
    checkpoints.save(Progress(step=step), state, best=False)
    checkpoints.finish()


@pytest.mark.parametrize(
    ("before", "now", "averaged", "trained"),
    [
        (MOVING, MOVING, 3, 13),
        (MEAN, MEAN, 13, 13),
        (PLAIN, MOVING, 3, 3),
        (PLAIN, MEAN, 3, 3),
        (MOVING, PLAIN, 13, 13),
        (MOVING, MEAN, 3, 13),
    ],
)
def test_run_begins_or_ceases_to_average(
    work_dir: Path, before: LearningSettings, now: LearningSettings, averaged: float, trained: float
) -> None:
    saved(before, step=3)
    model = model_of(0)
    averages, replica = Averages(weights_of(model), now), Replica(model, now)
    _, state = Checkpoints(Path(), model, averages).restore(replica.gather_state())
    replica.scatter_state(state)
    assert {float(value) for weight in replica.weights for value in np.unique(weight)} == {trained}
    assert len(averages.recent) == (before is now is MEAN)
    if now is not MEAN:
        replica.gather_state()
    assert {float(value) for weight in values(model) for value in np.unique(weight)} == {averaged}


def test_averages_of_nothing_are_refused(pairs_file: Path) -> None:
    with pytest.raises(UserError, match="--average-checkpoints: nothing is validated; give --validation FILE"):
        train_small(1, data=(str(pairs_file),), average_checkpoints=2, steps=1)
    with pytest.raises(UserError, match="--average and --average-checkpoints exclude each other"):
        small_settings(average=0.9, average_checkpoints=2)
    for option in ({"average": 0.9}, {"average_checkpoints": 2}):
        with pytest.raises(UserError, match="--asynchronous and --average"):
            small_settings(asynchronous=True, **option)

"""Distillation in a run: gradients against one tape, towers against one device, what is learned, what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.stored import settings_over_config
from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import Batch, pad_batch
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Distillation, Seq2Seq
from chatbot.training import selftest
from chatbot.training.data import prepare
from chatbot.training.devices import Tower
from chatbot.training.selftest import SETTINGS, TOLERANCE, VOCABULARY, random_pairs, train_model
from chatbot.training.share import Preparation
from chatbot.training.teachers import Teachers
from chatbot.training.trainer import train
from chatbot.training.variable_update.choose import open_update
from chatbot.training.variable_update.step_result import StepResult
from chatbot.training.variable_update.synchronous import Synchronous
from tests.model.fast.cudnn_emulation import emulate_gpu
from tests.training.dense_gradients import dense_gradients, shares_of, whole_batch
from tests.training.small_run import SMALL, TOWERS

# Teachers of other sizes, and of other layouts of a batch than the packed one.
OTHERS: list[dict[str, Any]] = [
    {"cell": "gru", "rnn_size": 6, "num_layers": 2},
    {"copy": True, "embedding_size": 9, "keep_prob": 0.5},
    {"fast": ("none",), "attention": "none", "bidirectional": True},
]


def teacher_of(seed: int, **changes: Any) -> Seq2Seq:
    """A model whose distributions are far from uniform."""
    model = built_model(replace(SETTINGS, **changes).model, VOCABULARY, seed)
    model.embedding.embeddings.assign(model.embedding.embeddings * 40.0)
    return model


def student_of(settings: Settings, weight: float, teachers: list[Seq2Seq]) -> Seq2Seq:
    """A new model that learns from these teachers."""
    model = built_model(settings.model, VOCABULARY, settings.learning.seed)
    model.distillation = Distillation(teachers, weight)
    return model


def probabilities_of(model: Seq2Seq, batch: Batch, key: tf.Tensor | None = None) -> tf.Tensor:
    """The distributions of a model on a batch that is laid out for it: [tokens, vocabulary]."""
    source, target_in = map(model.sequences, (batch.source, batch.target_in))
    return model.probabilities(model.decoded(source, target_in, key))


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("packed", {"copy": True, "keep_prob": 0.8}),
        ("plain", {"tied_embeddings": False, "fast": ("none",)}),
        ("gpu", {"bidirectional": True}),
    ],
)
def test_gradients_of_a_tower_equal_those_of_one_tape(
    path: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf, "function", lambda **_: lambda function: function)
    teachers = [teacher_of(seed, **other) for seed, other in enumerate(OTHERS, 2)]
    student = student_of(replace(SETTINGS, **changes), 0.3, teachers)
    batch = pad_batch(random_pairs(7, 1), np.arange(7), 9, 10)
    (share,) = shares_of(Preparation(student, 1, ["/CPU:0"])(whole_batch(batch), 0))
    real = share.weights[:, None] > 0
    taught = tf.add_n([probabilities_of(teacher, batch) for teacher in teachers]) / 3
    with tf.GradientTape() as tape:
        log_probabilities = tf.math.log(probabilities_of(student, batch, share.key))
        labels = 0.7 * tf.one_hot(share.targets, VOCABULARY) + 0.3 * taught
        expected_loss = -tf.reduce_sum(tf.where(real, labels * log_probabilities, 0.0))
    expected = tape.gradient(expected_loss, [variable.value for variable in student.trainable_variables])
    if path == "gpu":
        emulate_gpu(monkeypatch)
    sums, gradients = dense_gradients(student, batch)
    assert float(sums.loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for actual, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(actual, tf.convert_to_tensor(wanted), atol=1e-4)


def test_towers_with_teachers_equal_one_device_and_approach_them(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a weight of 1. Each tower has weights of the teachers on its own device, and none of them is trained."""
    settings, pairs = replace(SETTINGS, batch_size=9), random_pairs(18, 3)
    teachers = [teacher_of(seed, rnn_size=8) for seed in (2, 3)]
    before = [variable.numpy() for variable in teachers[0].trainable_variables]
    student = student_of(settings, 1.0, teachers)
    batch = pad_batch(pairs, np.arange(18), 9, 10)
    taught = tf.add_n([probabilities_of(teacher, batch) for teacher in teachers]) / 2

    def divergence() -> float:
        """From the mean of the teachers, in nats, the mean over tokens."""
        ratio = tf.math.log(taught / probabilities_of(student, batch))
        return float(tf.reduce_mean(tf.reduce_sum(taught * ratio, -1)))

    start, weights = divergence(), [variable.numpy() for variable in student.trainable_variables]
    devices: set[str] = set()
    call = Teachers.__call__

    def recorded(self: Teachers, *arguments: Any) -> Any:
        devices.update(value.device.rsplit("device:")[-1] for of_one in self._weights for _, value in of_one)
        return call(self, *arguments)

    monkeypatch.setattr(Teachers, "__call__", recorded)
    monkeypatch.setattr(selftest, "built_model", lambda *_: student)
    one, _, _ = train_model(settings, cpus[:1], pairs, steps=60)
    assert divergence() < 0.3 * start
    for variable, value in zip(student.trainable_variables, weights, strict=True):
        variable.assign(value)
    two, _, _ = train_model(settings, cpus[:2], pairs, steps=60)
    assert devices == {"CPU:0", "CPU:1"}
    assert max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)) < TOLERANCE
    for variable, value in zip(teachers[0].trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def train_attempt(**settings: Any) -> Seq2Seq:
    """Train as the command does with these flags, on one tower, and return the model."""
    models: list[Seq2Seq] = []

    def opened(model: Seq2Seq, chosen: Settings) -> Synchronous:
        models.append(model)
        return open_update(model, chosen, TOWERS[:1])

    composed = settings_over_config({**SMALL, **settings})
    train(composed, prepare(composed), TOWERS[:1], opened)
    return models[0]


def no_step(update: Synchronous, *_: Any) -> None:
    """In place of a step."""
    update._finished.append(StepResult(tf.ones(1), tf.ones(1), tf.constant(1.0), tf.constant(1.0), tf.constant(True)))


def test_attempt_learns_from_others_and_needs_them_when_resumed(
    pairs_file: Path, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Synchronous, "__call__", no_step)
    monkeypatch.setattr("chatbot.training.trainer.conclude", lambda *_: None)
    data, other = {"data": (str(pairs_file),), "both_directions": "off"}, f"{work_dir}/checkpoints/b"
    expected = [train_attempt(**data, attempt=name, steps=1, cell="gru", seed=len(name)) for name in ("a", "b")]
    assert all(model.distillation is None for model in expected)
    student = {**data, "attempt": "student", "distil_from": f"a, {other}", "distil_weight": 0.9}
    for given in ({**student, "steps": 1}, {"attempt": "student", "steps": 2}):
        distillation = train_attempt(**given).distillation
        assert distillation is not None
        assert distillation.weight == 0.9
        for teacher, model in zip(distillation.models, expected, strict=True):
            for read, trained in zip(teacher.trainable_variables, model.trainable_variables, strict=True):
                np.testing.assert_array_equal(read.numpy(), trained.numpy())

    Path("other.tsv").write_text("丙丁\t戊\n")
    for changes, message in (
        ({"attempt": "a", "steps": 2}, "--distil-from a: an attempt cannot teach itself; choose another --attempt"),
        ({"attempt": "c", "both_directions": "on"}, "--distil-from a: it learned replies only; add --both-directions"),
        ({"attempt": "c", "data": ("other.tsv",)}, "--distil-from a: its vocabulary is not that of this run; train it"),
        ({"attempt": "c", "distil_from": "c"}, "--distil-from c: no such attempt in .*; --distil-weight 0 trains with"),
    ):
        with pytest.raises(UserError, match=message):
            train_attempt(**{**student, **changes})
    shutil.rmtree(other)
    with pytest.raises(
        UserError, match=f"--distil-from {other}: no such attempt, .*; --distil-weight 0 trains without"
    ):
        train_attempt(attempt="student", steps=3)
    assert train_attempt(attempt="student", steps=3, distil_weight=0.0).distillation is None

"""A run from its settings: the number, rate and batch of each step, and which weights and likelihood it reports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.flags import compose
from chatbot.model.saved import load_trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.data import prepare
from chatbot.training.loop import train
from chatbot.training.run import open_run
from chatbot.training.share import Prepared
from chatbot.training.step import Synchronous, packed_result
from tests.training.attempts import metrics
from tests.training.small_run import TOWERS, small_settings


def recorded_steps(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> tuple[list[tuple], Seq2Seq]:
    """(number, learning rate, source ids) of each step of a run on one tower, and the model as it begins."""
    steps: list[tuple] = []
    settings = small_settings(**flags)

    def record(self: Synchronous, prepared: Prepared, rate: float) -> None:
        steps.append((prepared.number, rate, prepared.batch.shares[0].source.tolist()))
        self._finished.append(packed_result(tf.ones([3, 1]), tf.constant(1.0), tf.constant(True), tf.constant(False)))

    monkeypatch.setattr(Synchronous, "__call__", record)
    monkeypatch.setattr("chatbot.training.loop.conclude", lambda *_: None)
    run = open_run(settings, prepare(settings), TOWERS[:1])
    train(run)
    return steps, run.model


def test_each_step_gets_its_number_rate_and_batch(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up of two steps to a rate that is scaled by the pairs of an update, accumulation included."""
    flags = {
        "data": (str(pairs_file),),
        "batch_size": 2,
        "accumulate": 2,
        "precision": "bfloat16",
        "label_smoothing": 0.1,
    }
    rates = {"learning_rate": 0.1, "scale_learning_rate": "linear", "warm_up": 2}
    steps, model = recorded_steps(monkeypatch, **flags, **rates, steps=5)
    assert [number for number, _, _ in steps] == [0, 1, 2, 3, 4]
    highest = 0.1 * 4 / 64
    assert [rate for _, rate, _ in steps] == pytest.approx([highest / 2, *[highest] * 4])
    assert sorted(len(ids) for _, _, ids in steps[:3]) == [2, 4, 4]  # ten pairs
    assert [line["learning_rate"] for line in metrics()] == [rate for _, rate, _ in steps]
    assert (model.precision, model.label_smoothing) == ("bfloat16", 0.1)
    assert model.bias.numpy().any()  # it starts from the frequencies


def test_seed_changes_weights_and_batches(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"data": (str(pairs_file),), "steps": 3}
    runs = [recorded_steps(monkeypatch, **flags, seed=seed, attempt=f"seed-{seed}") for seed in (1, 2)]
    (steps, model), (other_steps, other_model) = runs
    assert steps != other_steps
    assert np.any(model.embedding.embeddings.numpy() != other_model.embedding.embeddings.numpy())


def test_new_attempt_starts_from_word_vectors(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed one does not need the file."""
    path = pairs_file.with_name("vectors.txt")
    path.write_text("甲 1 2 3 4 5 6 7 8\n")
    flags = {"data": (str(pairs_file),), "tokenizer": "char", "word_vectors": str(path)}
    _, model = recorded_steps(monkeypatch, **flags, steps=1)
    embeddings = model.embedding.embeddings.numpy()
    assert [1, 2, 3, 4, 5, 6, 7, 8] in embeddings.tolist()
    assert (np.abs(embeddings).max(axis=1) > 0.5).sum() == 1
    path.unlink()
    steps, resumed = recorded_steps(monkeypatch, **flags, steps=2)
    assert [number for number, _, _ in steps] == [1]
    np.testing.assert_array_equal(resumed.embedding.embeddings.numpy(), embeddings)


def test_missing_vectors_are_refused_before_pairs_are_read(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.training.data.training_set", lambda *_: pytest.fail("pairs were read"))
    with pytest.raises(UserError, match=r"^--word-vectors absent.txt: cannot be read .*; check the path$"):
        prepare(compose(Settings, data=(str(pairs_file),), word_vectors="absent.txt"))


def test_token_batches_are_accumulated(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen pairs, whose questions and replies have two tokens, the end symbol included."""
    Path("pairs.tsv").write_text("".join(f"{a}{b}\t{a}\n" for a in "一二三四" for b in "一二三四"))
    flags = {"data": ("pairs.tsv",), "batch_tokens": 4, "accumulate": 2, "tokenizer": "char"}
    rates = {"learning_rate": 0.1, "scale_learning_rate": "linear", "warm_up": 0}
    steps, _ = recorded_steps(monkeypatch, **flags, **rates, steps=3)
    assert [len(ids) for _, _, ids in steps] == [4, 4, 4]
    assert [rate for _, rate, _ in steps] == pytest.approx([0.1 * 4 / 64] * 3)


def test_best_weights_reply_at_the_end_and_have_the_reported_likelihood(
    pairs_file: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends after the best validation."""
    monkeypatch.setattr("chatbot.training.run.LEAST_STEPS", 1)
    flags = {"learning_rate": 0.5, "validate_every": 1, "patience": 2, "both_directions": "off"}
    settings = small_settings(data=(str(pairs_file),), validation=str(held_out), **flags)
    data = prepare(settings)
    run = open_run(settings, data, TOWERS[:1])
    result = train(run)
    assert result.best_step < result.step
    best = load_trained(result.directory)
    assert best.step == result.best_step
    for weight, best_weight in zip(run.model.trainable_variables, best.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(weight.numpy(), best_weight.numpy())
    assert data.validation is not None
    likelihood = Scorer(best.model)(data.validation.shards)
    (line,) = [line for line in metrics() if line["step"] == result.best_step]
    assert line["validation.nats_per_character"] == pytest.approx(likelihood.nats_per_character, rel=1e-4)
    assert line["validation.nats_per_token"] == pytest.approx(likelihood.nats_per_token, rel=1e-4)
    assert result.best_nats_per_character == line["validation.nats_per_character"]

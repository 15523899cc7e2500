"""A run from its settings: the number, rate and batch of each step, and the weights it begins with."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.data import prepare
from chatbot.training.run import Run
from tests.training.attempts import metrics
from tests.training.small_run import open_with, small_settings
from tests.training.untraced_update import UntracedUpdate, train_untraced


def steps_of(run: Run) -> list[tuple[int, float, Any]]:
    """(number, learning rate, source ids) of each step of a run."""
    assert isinstance(run.train_step, UntracedUpdate)
    return run.train_step.steps


RATES = {"learning_rate": 0.1, "scale_learning_rate": "linear", "optimizer": "sgd"}


def test_each_step_gets_its_number_rate_and_batch(pairs_file: Path) -> None:
    """A warm-up of two steps to a rate that is scaled by the pairs of an update, accumulation included."""
    flags = {"batch_size": 2, "accumulate": 2, "precision": "bfloat16", "label_smoothing": 0.1, "warm_up": 2}
    run, _ = train_untraced(**RATES, **flags, steps=5)
    steps = steps_of(run)
    assert [number for number, _, _ in steps] == [0, 1, 2, 3, 4]
    highest = 0.1 * 4 / 64
    assert [rate for _, rate, _ in steps] == pytest.approx([highest / 2, *[highest] * 4])
    assert sorted(len(ids) for _, _, ids in steps[:3]) == [2, 4, 4]  # ten pairs
    assert [line["learning_rate"] for line in metrics()] == [rate for _, rate, _ in steps]
    assert (run.model.precision, run.model.label_smoothing) == ("bfloat16", 0.1)


def test_seed_changes_weights_and_batches(pairs_file: Path) -> None:
    one, again, other = (
        train_untraced(steps=3, seed=seed, attempt=name)[0] for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert steps_of(one) == steps_of(again) != steps_of(other)
    embeddings = [run.model.embedding.embeddings.numpy() for run in (one, again, other)]
    np.testing.assert_array_equal(*embeddings[:2])
    assert np.any(embeddings[0] != embeddings[2])


def test_new_attempt_starts_from_word_vectors_and_frequencies(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed one does not need the file, and no machine but the chief reads all pairs."""
    settings = {"tokenizer": "char", "word_vectors": "vectors.txt", "learning_rate": 1e-9, "optimizer": "sgd"}
    Path("vectors.txt").write_text("甲 1 2 3 4 5 6 7 8\n")
    run, _ = train_untraced(**settings, steps=1)
    embeddings = run.model.embedding.embeddings.numpy()
    np.testing.assert_allclose(embeddings[np.abs(embeddings).max(axis=1) > 0.5], [[1, 2, 3, 4, 5, 6, 7, 8]], atol=1e-5)
    assert run.model.bias.numpy().any()  # it starts from the frequencies
    Path("vectors.txt").unlink()
    counted: list[Any] = []
    monkeypatch.setattr("chatbot.training.run.start_from_frequencies", lambda *arguments: counted.append(arguments))
    resumed, _ = train_untraced(**settings, steps=2)
    assert [number for number, _, _ in steps_of(resumed)] == [1]
    np.testing.assert_allclose(resumed.model.embedding.embeddings.numpy(), embeddings, atol=1e-5)
    new = small_settings(data=("pairs.tsv",), attempt="worker")
    texts = iter(["float32", json.dumps(dataclasses.asdict(Progress(step=5)))])
    worker: Any = SimpleNamespace(
        chief=False, machine=1, machines=1, alone=False, coordinator=None, broadcast_text=lambda text: next(texts)
    )
    assert open_with(UntracedUpdate, new, prepare(new), worker).progress.step == 5
    assert not counted
    assert not Path("checkpoints/worker").exists()


def test_missing_vectors_are_refused_before_pairs_are_read(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.training.data.training_set", lambda *_: pytest.fail("pairs were read"))
    with pytest.raises(UserError, match=r"^--word-vectors absent.txt: cannot be read .*; check the path$"):
        prepare(compose(Settings, data=(str(pairs_file),), word_vectors="absent.txt"))


def test_token_batches_are_accumulated(work_dir: Path) -> None:
    """Sixteen pairs, whose questions and replies have two tokens, the end symbol included."""
    Path("pairs.tsv").write_text("".join(f"{a}{b}\t{a}\n" for a in "一二三四" for b in "一二三四"))
    run, _ = train_untraced(batch_tokens=4, accumulate=2, tokenizer="char", **RATES, warm_up=0, steps=3)
    assert [len(ids) for _, _, ids in steps_of(run)] == [4, 4, 4]
    assert [rate for _, rate, _ in steps_of(run)] == pytest.approx([0.1 * 4 / 64] * 3)
    with pytest.raises(UserError, match="--batch-tokens 4 -> 6"):
        train_untraced(batch_tokens=6, accumulate=2, tokenizer="char", **RATES, steps=5)

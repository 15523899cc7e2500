"""A run: the number, rate and batch of each step, the weights it begins with, and the metrics of a window of steps."""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chatbot.corpus.batches import Batch, GlobalBatch
from chatbot.errors import UserError
from chatbot.training import metrics as metrics_module
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.data import prepare
from chatbot.training.metrics import Window
from chatbot.training.reporting.tensorboard import TensorBoard
from chatbot.training.run import Run
from chatbot.training.share import COPIED_AHEAD
from chatbot.training.variable_update import StepResult
from tests.training.attempts import metrics
from tests.training.small_run import open_with, small_settings
from tests.training.untraced_update import UntracedUpdate, train_untraced


def steps_of(run: Run) -> list[tuple[int, float, Any]]:
    """(number, learning rate, source ids) of each step of a run."""
    assert isinstance(run.train_step, UntracedUpdate)
    return run.train_step.steps


RATES = {"learning_rate": 0.1, "scale_learning_rate": "linear", "optimizer": "sgd"}


def test_each_step_gets_its_number_rate_and_batch(pairs_file: Path) -> None:
    """A warm-up of two steps to a rate for a preset's 128 pairs, scaled by those of an update with accumulation."""
    flags = {"batch_size": 2, "accumulate": 2, "precision": "bfloat16", "label_smoothing": 0.1, "warm_up": 2}
    run, _ = train_untraced(**RATES, **flags, steps=5, preset="medium")
    steps = steps_of(run)
    assert [number for number, _, _ in steps] == [0, 1, 2, 3, 4]
    highest = 0.1 * 4 / 128
    assert [rate for _, rate, _ in steps] == pytest.approx([highest / 2, *[highest] * 4])
    assert sorted(len(ids) for _, _, ids in steps[:3]) == [2, 4, 4]  # ten pairs
    assert [line["learning_rate"] for line in metrics()] == [rate for _, rate, _ in steps]
    assert (run.model.precision, run.model.label_smoothing) == ("bfloat16", 0.1)
    assert run.model._smoothing is not None
    np.testing.assert_allclose(run.model._smoothing, 0.1 / len(run.data.vocabulary))  # all can be said


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
    monkeypatch.setattr(
        "chatbot.training.new_model.start_from_frequencies", lambda *arguments: counted.append(arguments)
    )
    resumed, _ = train_untraced(**settings, steps=2)
    assert [number for number, _, _ in steps_of(resumed)] == [1]
    np.testing.assert_allclose(resumed.model.embedding.embeddings.numpy(), embeddings, atol=1e-5)
    new = small_settings(data=("pairs.tsv",), attempt="worker")
    texts = iter(["float32", "inf", json.dumps(dataclasses.asdict(Progress(step=5)))])
    worker: Any = SimpleNamespace(
        chief=False, machine=1, machines=1, alone=False, coordinator=None, broadcast_text=lambda text: next(texts),
        all_gather_text=lambda text: [text, "99"],
    )  # fmt: skip
    progress = open_with(UntracedUpdate, new, prepare(new), worker).progress
    assert (progress.step, progress.logits) == (5, 99)  # those of the machine with the least memory
    assert not counted
    assert not Path("checkpoints/worker").exists()


def test_token_batches_are_accumulated(work_dir: Path) -> None:
    """Sixteen pairs, whose questions and replies have two tokens, the end symbol included."""
    Path("pairs.tsv").write_text("".join(f"{a}{b}\t{a}\n" for a in "一二三四" for b in "一二三四"))
    run, _ = train_untraced(batch_tokens=4, accumulate=2, tokenizer="char", **RATES, warm_up=0, steps=3)
    assert [len(ids) for _, _, ids in steps_of(run)] == [4, 4, 4]
    assert [rate for _, rate, _ in steps_of(run)] == pytest.approx([0.1 * 4 / 64] * 3)
    with pytest.raises(UserError, match="--batch-tokens 4 -> 6"):
        train_untraced(batch_tokens=6, accumulate=2, tokenizer="char", **RATES, steps=5)


class Clock:
    """Replaces the module `time`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = {**vars(time), "perf_counter": lambda: self.now}
        monkeypatch.setattr(metrics_module, "time", SimpleNamespace(**clock))


def batch(*shares: Batch) -> Any:
    """A prepared batch of these shares."""
    return SimpleNamespace(batch=GlobalBatch(shares, 1, np.zeros(0, np.int64)))


def share(source: list[list[int]], target_in: list[list[int]]) -> Batch:
    """The padded ids of some pairs."""
    return Batch(np.array(source), np.array(target_in), np.array(target_in), np.ones((1, 1), np.float32))


def result(losses: list[float], tokens: list[float], examples: int, norm: float) -> StepResult:
    """The result of a step of several towers."""
    return StepResult(np.array(losses), np.array(tokens), examples, norm, math.isfinite(norm))


def test_window_adds_up_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of three towers, after a step that does not count. The third tower has no tokens.

    Each batch waits for the one that is two steps later, whose copy begins then.
    """
    clock = Clock(monkeypatch)

    def batches() -> Generator[Any, None, None]:
        targets = [0, 0, 0, 0], [5, 6, 7, 8], [5, 6, 0, 0], [5, 6, 7, 8], [5, 6, 7, 8]
        for seconds, target in zip((50.0, 25.0, 25.0, 1.0, 2.0), targets, strict=True):
            clock.now += seconds
            yield batch(share([[9, 9], [9, 0]], [target]))  # 7 and 5 tokens in 8 positions

    copied: list[Any] = []
    window = Window(batches(), copied.append)
    window.next_batch()
    assert len(copied) == 1 + COPIED_AHEAD
    clock.now += 50  # for example validation
    window.restart()
    for _ in range(2):
        window.next_batch()
        clock.now += 3  # computation
    steps = [result([6.0, 4.0, 0.0], [2.0, 1.0, 0.0], 5, 7.0), result([2.0, 8.0, 0.0], [2.0, 3.0, 0.0], 4, 1.5)]
    assert window.end(9, 0.1)(steps) == {
        "step": 9,
        "loss": pytest.approx(20 / 8),  # per token, not the mean of the towers' means
        "tower_losses": [pytest.approx(8 / 4), pytest.approx(12 / 4), None],
        "gradient_norm": 1.5,
        "learning_rate": 0.1,
        "examples_per_s": pytest.approx(9 / 9),
        "target_tokens_per_s": pytest.approx(8 / 9),
        "tower_target_tokens_per_s": [pytest.approx(4 / 9), pytest.approx(4 / 9), 0.0],
        "tower_skew": pytest.approx(4 / (8 / 3) - 1),
        "padding": pytest.approx(4 / 16),
        "input_wait": pytest.approx(3 / 9),
    }
    assert window.seconds_per_step == pytest.approx(9 / 2)
    clock.now += 2  # what follows counts in the next window, also while the last steps are computed
    with window.pause():
        clock.now += 50
    clock.now += 1
    assert window.end(10, 0.1)(steps)["examples_per_s"] == pytest.approx(9 / 3)
    clock.now += 1
    assert window.end(11, 0.1)(steps)["examples_per_s"] == pytest.approx(9)


def test_logs_follow_the_time_of_steps(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0.1 s, except the first one. The time of a save does not count."""
    clock = Clock(monkeypatch)

    def step(number: int) -> None:
        clock.now += 0.1 if number > 1 else 60

    train_untraced(strike=step, log_every=None, steps=40, save_every=27)
    assert [line["step"] for line in metrics()] == [1, 8, 12, 16, 24, 27, 32, 40]


def test_other_batches_replace_those_that_were_copied() -> None:
    """As after a run went back."""
    old, new = ((batch(share([[number]], [[number]])) for number in range(start, start + 9)) for start in (5, 20))
    window = Window(old, lambda _: None)
    window.next_batch()
    window.restart(new)
    assert [window.next_batch().batch.shares[0].source.item() for _ in range(3)] == [20, 21, 22]
    assert next(old, None) is None, "they are prepared no more"


def test_losses_and_norms_that_are_not_finite_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of these steps count for the speed."""
    clock = Clock(monkeypatch)
    nan, inf = math.nan, math.inf
    steps = [result([6.0, 4.0], [2.0, 2.0], 2, 3.0), result([nan, 1.0], [1.0, 1.0], 2, nan)]
    steps.append(result([2.0, 4.0], [2.0, 2.0], 2, inf))
    window = Window((each for each in list[Any]()), lambda _: None)
    clock.now += 2
    record_of = window.end(3, 0.1)
    record = record_of(steps)
    assert (record["loss"], record["tower_losses"], record["gradient_norm"]) == (2.0, [2.0, 2.0], 3.0)
    assert record["target_tokens_per_s"] == 5
    none = record_of(steps[1:2])
    assert math.isnan(none["loss"])
    assert math.isnan(none["gradient_norm"])
    assert none["tower_losses"] == [None, None]


def test_a_log_waits_for_no_step_and_a_save_for_all(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a window are there after the next step has begun, and its record is written later still."""
    begun = [threading.Event() for _ in range(7)]
    unpack, write, save, windows = (
        metrics_module.unpack_results,
        TensorBoard.record,
        Checkpoints.save,
        iter(range(1, 7)),
    )
    saved: list[tuple[int, int]] = []

    def unpack_late(results: Any) -> Any:
        window = next(windows)
        assert window in (1, 3, 6) or begun[window + 1].wait(60), "the first one, and those that are saved"
        return unpack(results)

    def write_late(tensorboard: TensorBoard, record: dict[str, Any]) -> None:
        assert record["step"] > 1 or begun[2].wait(60)
        write(tensorboard, record)

    def noted_save(checkpoints: Checkpoints, progress: Progress, *arguments: Any) -> None:
        saved.append((progress.step, metrics()[-1]["step"]))
        save(checkpoints, progress, *arguments)

    monkeypatch.setattr(metrics_module, "unpack_results", unpack_late)
    monkeypatch.setattr(TensorBoard, "record", write_late)
    monkeypatch.setattr(Checkpoints, "save", noted_save)
    train_untraced(strike=lambda step: begun[step].set(), steps=6, save_every=3, report_to="tensorboard")
    assert saved == [(3, 3), (6, 6)]
    assert [line["step"] for line in metrics()] == [1, 2, 3, 4, 5, 6]


def test_error_loses_no_finished_window(pairs_file: Path) -> None:
    def fail(step: int) -> None:
        assert step < 6, "injected"

    with pytest.raises(AssertionError, match="injected"):
        train_untraced(strike=fail, log_every=2, steps=8)
    assert [line["step"] for line in metrics()] == [1, 2, 4]


def test_time_of_saving_does_not_count(pairs_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of five pairs takes a second, and each checkpoint a thousand."""
    clock, save = Clock(monkeypatch), Checkpoints.save

    def slowly(*arguments: Any) -> None:
        clock.now += 1000
        save(*arguments)

    def in_a_second(step: int) -> None:
        clock.now += 1

    monkeypatch.setattr(Checkpoints, "save", slowly)
    train_untraced(strike=in_a_second, batch_size=5, steps=2, save_every=1)
    assert [line["target_tokens_per_s"] for line in metrics()] == [1.0, 1.0]

"""Checkpoints are written while training goes on, and training goes on when they cannot be written."""

import re
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.attempts.checkpoint import read_pointer, verified_manifest
from chatbot.attempts.description import is_training
from chatbot.errors import UserError
from chatbot.training.checkpoints import store
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.metrics import Window
from tests.training.attempts import saved_step, weights
from tests.training.checkpoints.step_checkpoints import DIRECTORY, model_of, restored, state_of, steps_on_disk
from tests.training.untraced_update import train_untraced


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No checkpoint is written before this event."""
    write, event = store.write_checkpoint, threading.Event()

    def write_after_the_event(*arguments: Any) -> None:
        assert event.wait(240)
        write(*arguments)

    monkeypatch.setattr(store, "write_checkpoint", write_after_the_event)
    yield event
    event.set()


def test_training_changes_the_weights_while_they_are_written(directory: Path, gate: threading.Event) -> None:
    model, progress = model_of(1), Progress(step=1)
    checkpoints = Checkpoints(DIRECTORY, model, keep=2)
    checkpoints.save(progress, state_of(1))
    for weight in model.trainable_variables:
        weight.assign(weight + 1)
    progress.step = 2
    assert steps_on_disk() == set()
    threading.Timer(0.1, gate.set).start()
    checkpoints.save(progress, state_of(2))  # waits for the first one
    assert read_pointer(DIRECTORY / "last")["step"] >= 1
    checkpoints.finish()
    assert (restored().step, steps_on_disk()) == (2, {1, 2})
    (DIRECTORY / "ckpt-2.safetensors").unlink()
    assert restored().step == 1


@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_write_is_finished_however_training_ends(
    directory: Path, gate: threading.Event, end: type[BaseException] | None
) -> None:
    checkpoints = Checkpoints(DIRECTORY, model_of(1))
    with ExitStack() as stack:
        if end is not None:
            stack.enter_context(pytest.raises(end))
        with checkpoints.finished():
            checkpoints.save(Progress(step=1), state_of(1))
            threading.Timer(0.1, gate.set).start()
            if end is not None:
                raise end
    assert restored().step == 1


def limit_files(size: int = resource.RLIM_INFINITY) -> None:
    """Let no file have more bytes, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture(autouse=True)
def _unlimited() -> Iterator[None]:
    """A test that fails leaves no limit."""
    yield
    limit_files()


def at_steps(monkeypatch: pytest.MonkeyPatch, actions: dict[int, Callable[[], object]]) -> None:
    """Call these functions before the steps of these numbers, from 1, when no checkpoint is being written."""
    next_batch, count = Window.next_batch, [0]
    written: list[Checkpoints] = []
    save = Checkpoints.save

    def recorded_save(checkpoints: Checkpoints, *arguments: object) -> None:
        written.append(checkpoints)
        save(checkpoints, *arguments)  # type: ignore[arg-type]

    def batch_after_action(window: Window) -> object:
        count[0] += 1
        if count[0] in actions:
            for checkpoints in written:
                checkpoints.wait()
            actions[count[0]]()
        return next_batch(window)

    monkeypatch.setattr(Checkpoints, "save", recorded_save)
    monkeypatch.setattr(Window, "next_batch", batch_after_action)


@pytest.mark.parametrize(
    ("fault", "warning"),
    [
        ("full", r"default/ckpt-{}: cannot be written \(File too large\); the checkpoint of step 2 is kept"),
        (
            "gone",
            "default: the folder had been removed and was created again; earlier checkpoints and metrics are lost",
        ),
    ],
)
def test_training_goes_on_when_a_save_fails(
    pairs_file: Path, fault: str, warning: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps 4 and 6 cannot be saved, step 8 can. The run ends as one without the fault."""
    locked = []

    def end() -> None:
        if fault == "full":
            limit_files()
            assert saved_step() == 2
            verified_manifest(DIRECTORY / "ckpt-2")
            assert {path.name.split(".")[0] for path in DIRECTORY.glob("ckpt-*")} == {"ckpt-2"}

    def begin() -> None:
        limit_files(20_000) if fault == "full" else shutil.rmtree(DIRECTORY)

    with monkeypatch.context() as patch:
        at_steps(patch, {3: begin, 7: lambda: locked.append(is_training(DIRECTORY)), 8: end})
        train_untraced(save_every=2, steps=8)
    assert locked == [fault == "gone"], "a folder that is made again is locked, as the one before was by train.py"
    assert not is_training(DIRECTORY)
    err = capsys.readouterr().err
    for step in (4, 6) if fault != "gone" else (4,):
        assert len(re.findall(f"Warning: .*{warning.format(step)}", err)) == 1, err
    assert saved_step() == 8
    train_untraced(save_every=2, steps=8, attempt="without_fault")
    for a, b in zip(weights(), weights("without_fault"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_last_save_that_fails_is_tried_again_and_ends_the_run_with_an_error(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_steps(monkeypatch, {3: lambda: limit_files(20_000)})
    message = r"ckpt-4: .*; the checkpoint of step 2 is kept: .*, and run the same command again$"
    with pytest.raises(UserError, match=message):
        train_untraced(save_every=2, steps=4)
    assert saved_step() == 2
    verified_manifest(DIRECTORY / "ckpt-2")

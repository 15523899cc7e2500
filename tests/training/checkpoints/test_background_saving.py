"""Checkpoints are written while training goes on, and training goes on when they cannot be written."""

import functools
import re
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.attempts.attempt import is_training
from chatbot.errors import UserError
from chatbot.model.checkpoint import read_pointer, verified_manifest
from chatbot.training.checkpoints import store
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.loop import Window
from chatbot.training.replica import TrainState
from tests.training.attempts import saved_step, weights
from tests.training.checkpoints.step_checkpoints import DIRECTORY, model_of, restored, save, state_of, steps_on_disk
from tests.training.conftest import write_pairs
from tests.training.small_run import train_small


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No checkpoint is written before this event."""
    write, event = store.write_checkpoint, threading.Event()

    def write_after_the_event(*arguments: Any) -> None:
        assert event.wait(60)
        write(*arguments)

    monkeypatch.setattr(store, "write_checkpoint", write_after_the_event)
    yield event
    event.set()


def test_training_changes_the_weights_while_they_are_written(work_dir: Path, gate: threading.Event) -> None:
    DIRECTORY.mkdir(parents=True)
    model, progress = model_of(1), Progress(step=1)
    checkpoints = Checkpoints(DIRECTORY, model, keep=2)
    checkpoints.save(progress, state_of(1), best=False)
    for weight in model.trainable_variables:
        weight.assign(weight + 1)
    progress.step = 2
    assert steps_on_disk() == set()
    threading.Timer(0.1, gate.set).start()
    checkpoints.save(progress, state_of(2), best=False)  # waits for the first one
    assert read_pointer(DIRECTORY / "last")["step"] >= 1
    checkpoints.finish()
    assert (restored().step, steps_on_disk()) == (2, {1, 2})
    (DIRECTORY / "ckpt-2.safetensors").unlink()
    assert restored().step == 1


@pytest.mark.parametrize("end", [None, ZeroDivisionError, KeyboardInterrupt])
def test_write_is_finished_however_training_ends(
    work_dir: Path, gate: threading.Event, end: type[BaseException] | None
) -> None:
    DIRECTORY.mkdir(parents=True)
    checkpoints = Checkpoints(DIRECTORY, model_of(1))
    with ExitStack() as stack:
        if end is not None:
            stack.enter_context(pytest.raises(end))
        with checkpoints.finished():
            checkpoints.save(Progress(step=1), state_of(1), best=False)
            threading.Timer(0.1, gate.set).start()
            if end is not None:
                raise end
    assert restored().step == 1


def test_slot_that_is_not_finite_is_not_saved(work_dir: Path) -> None:
    DIRECTORY.mkdir(parents=True)
    save(1)
    slots = np.ones((3, 2), np.float32)
    slots[1, 1] = np.inf
    with pytest.raises(
        UserError, match="a state of the optimizer is not a number at step 2; the checkpoint of step 1 is kept"
    ):
        Checkpoints(DIRECTORY, model_of(2)).save(Progress(step=2), TrainState([slots]), best=False)
    assert steps_on_disk() == {1}


class Disk:
    """A small file system at checkpoints/, or a limit of the size of files where mounting is not allowed."""

    def __init__(self) -> None:
        Path("checkpoints").mkdir()
        mount = ("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", "checkpoints")
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self._filler = Path("checkpoints/filler")
        self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """Leave no space; without a mount, no file may have more than 20,000 bytes."""
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, self._limit[1]))
            return
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Make space again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)
        self._filler.unlink(missing_ok=True)

    def remount(self, option: str) -> None:
        """Make the file system read-only ("ro") or writable ("rw")."""
        if not self.mounted:
            pytest.skip("root ignores permissions, and others may not mount")
        subprocess.run(("mount", "-o", f"remount,{option}", "checkpoints"), check=True)

    def close(self) -> None:
        """Unmount the file system."""
        self.free()
        if self.mounted:
            subprocess.run(("umount", "--lazy", "checkpoints"), check=True)


@pytest.fixture
def disk(pairs_file: Path) -> Iterator[Disk]:
    """The file system of the checkpoints."""
    disk = Disk()
    yield disk
    disk.close()


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


def begin_fault(fault: str, disk: Disk) -> None:
    """Let saves fail."""
    if fault == "full":
        disk.fill()
    elif fault == "read-only":
        disk.remount("ro")
    else:
        shutil.rmtree("checkpoints/default")


def end_fault(fault: str, disk: Disk) -> None:
    """Let saves succeed, after a look at what is on the disk."""
    if fault != "gone":
        assert saved_step() == 2
        verified_manifest(DIRECTORY / "ckpt-2")
        assert {path.name.split(".")[0] for path in DIRECTORY.glob("ckpt-*")} == {"ckpt-2"}
    if fault == "read-only":
        disk.remount("rw")
    disk.free()


@pytest.fixture(scope="module")
def without_fault(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The weights and slots after the eight steps of a run without faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("without_fault"))
        write_pairs(Path("pairs.tsv"))
        assert train_small(1, data=("pairs.tsv",), steps=8) == 0
        return weights()


@pytest.mark.parametrize(
    ("fault", "warning"),
    [
        (
            "full",
            r"default/ckpt-{}: cannot be written \(.*\); the checkpoint of step 2 is kept",
        ),
        (
            "read-only",
            r"default/ckpt-{}: cannot be written \(Read-only file system\); the checkpoint of step 2 is kept",
        ),
        ("gone", "default: the folder had been removed and was made again; earlier checkpoints and metrics are lost"),
    ],
)
def test_training_goes_on_when_a_save_fails(
    disk: Disk,
    fault: str,
    warning: str,
    without_fault: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Steps 4 and 6 cannot be saved, step 8 can. The run ends as one without the fault."""
    data = {"data": ("pairs.tsv",), "save_every": 2}
    locked = []
    with monkeypatch.context() as patch:
        begin, end = (functools.partial(change, fault, disk) for change in (begin_fault, end_fault))
        at_steps(patch, {3: begin, 7: lambda: locked.append(is_training(DIRECTORY)), 8: end})
        assert train_small(1, **data, steps=8) == 0
    assert locked == [fault == "gone"], "a folder that is made again is locked, as the one before was by train.py"
    assert not is_training(DIRECTORY)
    err = capsys.readouterr().err
    for step in (4, 6) if fault != "gone" else (4,):
        assert len(re.findall(f"Warning: .*{warning.format(step)}", err)) == 1, err
    assert saved_step() == 8
    for a, b in zip(weights(), without_fault, strict=True):
        np.testing.assert_array_equal(a, b)


def test_last_save_that_fails_is_tried_again_and_ends_the_run_with_an_error(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_steps(monkeypatch, {3: disk.fill})
    message = r"ckpt-4: .*; the checkpoint of step 2 is kept: .*, and run the same command again$"
    with pytest.raises(UserError, match=message):
        train_small(1, data=("pairs.tsv",), save_every=2, steps=4)
    assert saved_step() == 2
    verified_manifest(DIRECTORY / "ckpt-2")

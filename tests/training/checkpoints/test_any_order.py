"""Saves, kills, full disks, damaged files and restarts in any order."""

import contextlib
import errno
import io
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from chatbot.attempts.checkpoint import DamagedError, read_pointer
from chatbot.attempts.opening import has_checkpoint
from chatbot.config.training import Settings
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.checkpoints.store import Checkpoints
from tests.training.checkpoints.step_checkpoints import (
    DIRECTORY,
    KilledError,
    fill,
    kill_at,
    model_of,
    state_of,
    steps_on_disk,
    values_of,
)

MAX_CALLS = 30  # a save and the result of a validation sync, name and remove about 25 files
CALLS = st.integers(0, MAX_CALLS)


def pointed() -> dict[str, int]:
    """The steps that `last` and `best` name; 0 without such a file."""
    paths = {name: DIRECTORY / name for name in ("last", "best")}
    return {name: read_pointer(path)["step"] if path.exists() else 0 for name, path in paths.items()}


def manifests() -> set[int]:
    """The steps that have a manifest, which is written last."""
    return {int(path.stem.removeprefix("ckpt-")) for path in DIRECTORY.glob("ckpt-*.json")}


class Store(RuleBasedStateMachine):
    """A run that is killed, disturbed and restarted. Weights and state of a checkpoint have the value of its step."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.folder = Path.cwd(), tempfile.TemporaryDirectory()
        os.chdir(self.folder.name)
        DIRECTORY.mkdir(parents=True)
        self.model = model_of(0)
        self.damaged: set[int] = set()
        self.best_of = {0: {0}}  # the best step that was known before a step was validated, and after it

    def teardown(self) -> None:
        os.chdir(self.before)
        self.folder.cleanup()

    @initialize(keep=st.integers(1, 3))
    def begin(self, keep: int) -> None:
        self.keep = keep
        self.restart()

    def is_whole(self, step: int) -> bool:
        return step in manifests() - self.damaged and (DIRECTORY / f"ckpt-{step}.safetensors").exists()

    def save(self, is_best: bool) -> None:
        """Train a step, save it, validate it, and write the result."""
        step = self.progress.step = self.progress.step + 1
        self.best_of[step] = {self.progress.best_step, step if is_best else self.progress.best_step}
        self.damaged.discard(step)
        fill(self.model, step)
        self.checkpoints.save(self.progress, state_of(step))
        fill(self.model, -1)  # training goes on while the checkpoint is written
        if is_best:
            self.progress.best_step = step
        self.checkpoints.amend(self.progress, is_best)
        self.checkpoints.wait()

    def check_saved(self, before: set[int]) -> None:
        """The newest checkpoints stay, and those that are named. before: the steps on the disk."""
        step = self.progress.step
        assert pointed() == {"last": step, "best": self.progress.best_step}
        newest = sorted({number for number in before if number < step} | {step})[-self.keep :]
        kept = {*newest, step, self.progress.best_step} - {0}
        names = {f"ckpt-{number}.{ending}" for number in kept for ending in ("json", "safetensors")}
        files = {DIRECTORY / name for name in (*names, "last", "best", "config.json")}
        assert {*DIRECTORY.glob("[!.]*")} == {path for path in files if path.exists()}
        assert self.is_whole(step)

    @rule(is_best=st.booleans())
    def save_whole(self, is_best: bool) -> None:
        before = manifests()
        self.save(is_best)
        self.check_saved(before)

    @rule(is_best=st.booleans(), calls=CALLS)
    def save_and_be_killed(self, is_best: bool, calls: int) -> None:
        before, step = pointed(), self.progress.step + 1
        try:
            with kill_at(calls):
                self.save(is_best)
        except KilledError:
            after = pointed()
            assert after["last"] in (before["last"], step)
            assert after["best"] in (before["best"], step if is_best and after["last"] == step else before["best"])
        self.restart()

    @rule(is_best=st.booleans(), calls=CALLS)
    def save_on_a_full_disk(self, is_best: bool, calls: int) -> None:
        """Training goes on, and what could not be written is written when there is space again."""
        before, named = manifests(), pointed()
        with kill_at(calls, OSError(errno.ENOSPC, "No space left on device")):
            self.save(is_best)
            warnings = self.checkpoints.warnings()
        if warnings:
            (warning,) = warnings
            assert f"ckpt-{self.progress.step}: cannot be written (No space left on device); " in warning
            assert pointed()["last"] in (named["last"], self.progress.step)
            assert steps_on_disk() <= before | {*pointed().values()}, "what was written in part takes no space"
        self.checkpoints.finish()
        assert self.checkpoints.warnings() == []
        self.check_saved(before)

    @rule(data=st.data(), tensors=st.booleans(), kind=st.sampled_from(["flip", "cut", "remove"]))
    @precondition(lambda self: bool(manifests() - self.damaged))
    def damage(self, data: st.DataObject, tensors: bool, kind: str) -> None:
        step = data.draw(st.sampled_from(sorted(manifests() - self.damaged)))  # a second flip would mend the first
        path = DIRECTORY / f"ckpt-{step}{'.safetensors' if tensors else '.json'}"
        if path.exists():
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.write_bytes(content[:-20] if kind == "cut" else content)
            if kind == "remove":
                path.unlink()
        self.damaged.add(step)

    @rule()
    def restart(self) -> None:
        """The newest whole checkpoint up to `last` is resumed; without one, nothing is changed."""
        self.checkpoints = Checkpoints(DIRECTORY, self.model, self.keep)
        named = pointed()
        (DIRECTORY / "config.json").touch()
        assert has_checkpoint(Settings()) == bool(named["last"])
        step = max((step for step in range(1, named["last"] + 1) if self.is_whole(step)), default=0)
        if named["last"] and not step:
            self.refuse(named["last"])
            return
        fill(self.model, 0)
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            self.progress, state = self.checkpoints.restore(state_of(0))
        used = f"; the checkpoint of step {step} is used instead.\n" if step < named["last"] else ""
        assert printed.getvalue().startswith(f"Warning: {DIRECTORY}/ckpt-{named['last']}: checkpoint " if used else "")
        assert printed.getvalue().endswith(used)
        assert bool(printed.getvalue()) == bool(used)
        assert (self.progress.step, int(*state.optimizer)) == (step, step)
        assert values_of(self.model.trainable_variables) == {float(step)}
        # What was the best is forgotten where its file was found damaged, and the next validation is the best.
        best = json.loads((DIRECTORY / f"ckpt-{step}.json").read_text())["progress"]["best_step"] if step else 0
        assert best in self.best_of[step]
        kept = step if best == step else named["best"] if named["best"] <= step else 0
        assert pointed() == {"last": step, "best": kept}
        assert self.progress.best_step == (best if best in (step, named["best"]) else 0)

    def refuse(self, last: int) -> None:
        """Refuse to resume, and begin anew in an empty folder."""
        before = {path: path.read_bytes() for path in DIRECTORY.iterdir()}
        with pytest.raises(DamagedError, match=f"ckpt-{last}: checkpoint (damaged|missing) .*; restore it from a back"):
            self.checkpoints.restore(state_of(0))
        assert {path: path.read_bytes() for path in DIRECTORY.iterdir()} == before
        for path in DIRECTORY.iterdir():
            path.unlink()
        self.restart()

    @rule()
    def talk(self) -> None:
        """The best checkpoint replies; the last one where there is no best one, or it is damaged."""
        last, best = pointed().values()
        fill(self.model, last)
        with contextlib.redirect_stderr(io.StringIO()):
            self.checkpoints.load_best(Progress(step=last, best_step=best))
        assert values_of(self.model.trainable_variables) == {float(best if self.is_whole(best) else last)}


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)


@pytest.mark.parametrize("saves", [0, 1])
def test_process_killed_at_any_call_keeps_an_intact_checkpoint(saves: int) -> None:
    """At the first save it can begin again."""
    is_saved = False
    for calls in range(MAX_CALLS + 1):
        store = Store()
        store.begin(keep=1)
        for _ in range(saves):
            store.save_whole(is_best=True)
        store.save_and_be_killed(is_best=True, calls=calls)
        is_saved = pointed()["last"] == saves + 1
        store.talk()
        store.save_whole(is_best=True)
        store.teardown()
    assert is_saved, "it was killed at each call"

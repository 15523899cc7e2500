"""A store of checkpoints equals a dictionary, whatever is saved, killed, damaged and resumed, and how often."""

import contextlib
import functools
import tempfile
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chatbot.errors import UserError
from chatbot.model.checkpoint import pointed_steps, resumable_steps
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from tests.training.checkpoints.step_checkpoints import (
    DIRECTORY,
    KilledError,
    fill,
    flip_a_bit,
    kill_at,
    model_of,
    state_of,
    steps_on_disk,
    values_of,
)

KEEP = 2
shared_model = functools.cache(lambda: model_of(0))


class Store(RuleBasedStateMachine):
    """The checkpoints of a run, and what is expected of them. Weights and state have the number of their step."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._folder = tempfile.TemporaryDirectory()
        self._patch.chdir(self._folder.name)
        DIRECTORY.mkdir(parents=True)
        self._model = shared_model()
        self._begin_process()
        self._progress = Progress()
        self._saved: dict[int, int] = {}  # the best step that each whole checkpoint knows
        self._pointed: dict[str, int] = {}

    def teardown(self) -> None:
        self._patch.undo()
        self._folder.cleanup()

    def _begin_process(self) -> None:
        self._store = Checkpoints(DIRECTORY, self._model, keep=KEEP)

    def _begin_save(self, best: bool) -> None:
        self._progress.step += 1
        if best:
            self._progress.best_step = self._progress.step
        fill(self._model, self._progress.step)
        self._store.save(self._progress, state_of(self._progress.step), best)
        fill(self._model, -1)  # training goes on while the copy is written

    def _was_saved(self, best: bool, removed: bool = True) -> None:
        step = self._progress.step
        self._saved[step] = self._progress.best_step
        self._pointed |= {"last": step, **({"best": step} if best else {})}
        if removed:
            kept = {*self._pointed.values(), *sorted(self._written_to_the_end(), reverse=True)[:KEEP]}
            self._saved = {step: best for step, best in self._saved.items() if step in kept}
            assert steps_on_disk() == kept
            assert not (DIRECTORY / "saving").exists()

    def _written_to_the_end(self) -> set[int]:
        return {int(path.stem.removeprefix("ckpt-")) for path in DIRECTORY.glob("ckpt-*.json")} | {*self._saved}

    @rule(best=st.booleans())
    def save(self, best: bool) -> None:
        self._begin_save(best)
        self._store.finish()
        assert self._store.warnings() == []
        self._was_saved(best)

    @rule(best=st.booleans(), limit=st.integers(0, 16))
    def save_and_be_killed(self, best: bool, limit: int) -> None:
        with kill_at(limit) as calls:
            self._begin_save(best)
            with contextlib.suppress(KilledError):
                self._store.finish()
        step = self._progress.step
        if "name last" in calls:
            self._was_saved(best and "name best" in calls, removed=False)
            if best and "name best" not in calls:
                self._pointed.setdefault("best", 0)
                self._saved[step] = step
        self._saved = {step: best for step, best in self._saved.items() if step in steps_on_disk()}
        self._resume()

    @precondition(lambda self: self._saved)
    @rule(data=st.data(), ending=st.sampled_from([".safetensors", ".json"]))
    def damage_and_resume(self, data: Any, ending: str) -> None:
        step = data.draw(st.sampled_from(sorted(self._saved)))
        flip_a_bit(DIRECTORY / f"ckpt-{step}{ending}")
        del self._saved[step]
        self._resume()

    @rule()
    def resume(self) -> None:
        self._resume()

    def _resume(self) -> None:
        """Restore in a new process: the newest whole checkpoint up to `last`; `best` names what the progress says."""
        self._begin_process()
        last = self._pointed.get("last", 0)
        whole = [step for step in self._saved if step <= last]
        files = {path: path.read_bytes() for path in DIRECTORY.iterdir()}
        if last and not whole:
            with pytest.raises(UserError, match="restore it from"):
                self._store.restore(state_of(0))
            assert {path: path.read_bytes() for path in DIRECTORY.iterdir()} == files
            (DIRECTORY / "last").unlink()
            for path in DIRECTORY.iterdir():
                path.unlink()
            self._pointed, self._saved, self._progress = {}, {}, Progress()
            return
        fill(self._model, 0)
        self._progress, state = self._store.restore(state_of(0))
        step = max(whole, default=0)
        assert self._progress.step == step
        assert (values_of(self._model.trainable_variables), int(*state.optimizer)) == ({float(step)}, step)
        if not last:
            return
        assert self._progress.best_step in (self._saved[step], 0)
        self._pointed = pointed_steps(DIRECTORY)
        assert self._pointed["last"] == step
        assert self._pointed.get("best", 0) <= step
        if self._progress.best_step:
            assert self._pointed["best"] == self._progress.best_step

    @invariant()
    def another_process_finds_the_last_checkpoint(self) -> None:
        assert pointed_steps(DIRECTORY) == {name: step for name, step in self._pointed.items() if step}
        if self._pointed.get("last"):
            assert resumable_steps(DIRECTORY)[0] == self._pointed["last"]


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=12, stateful_step_count=8, deadline=None)

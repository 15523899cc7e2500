"""A step that makes no progress: a line, once, not while a graph is traced nor while a run validates; or the end."""

import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from chatbot.errors import EXIT_LOST, LostError
from chatbot.training import watch as module
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.loop import Loop
from chatbot.training.run import Run
from chatbot.training.validation import Validator
from chatbot.training.variable_update import Graph
from chatbot.training.watch import CAUSES, LIMIT, StepWatch, interrupts
from tests.training.small_run import validation_of
from tests.training.untraced_update import UntracedUpdate, train_untraced


def lines_of(watch: StepWatch, seconds: int) -> list[str]:
    """What a watch says in some seconds."""
    return [line for line in (watch.tick() for _ in range(seconds)) if line]


def test_warning_is_printed_once_for_a_slow_step() -> None:
    tracing = False
    watch = StepWatch(True, lambda: tracing, lambda: None)
    assert not lines_of(watch, 2 * LIMIT)
    for step in (1, 2):
        with watch.step(step):
            assert not lines_of(watch, LIMIT)
    assert not lines_of(watch, 2 * LIMIT)
    with watch.step(3):
        tracing = True
        assert not lines_of(watch, 2 * LIMIT)
        tracing = False
        assert not lines_of(watch, LIMIT - 1)
        assert lines_of(watch, 2 * LIMIT) == [
            f"Step 3 has made no progress for {LIMIT} seconds. It may just be slow; otherwise {CAUSES}."
        ]
    with watch.step(4):
        assert not lines_of(watch, 2 * LIMIT)


def test_lost_device_ends_the_process_after_each_limit_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that says nothing else. The driver is asked on another thread, since it may not answer."""
    ended: queue.Queue[Exception] = queue.Queue()
    monkeypatch.setattr("chatbot.training.watch.end_process", ended.put)
    asked = []

    def lost_device() -> LostError | None:
        asked.append(threading.current_thread())
        return LostError("GPU 1 does not answer") if len(asked) == 2 else None

    watch = StepWatch(False, lambda: False, lost_device)
    with watch.step(1):
        assert not lines_of(watch, LIMIT + 1)
        assert not asked  # before the line of this second can be printed
        assert not lines_of(watch, LIMIT + 1)
    assert str(ended.get(timeout=240)) == "GPU 1 does not answer"
    assert len(asked) == 2
    assert threading.current_thread() not in asked


@pytest.mark.parametrize("in_thread", [False, True])
def test_hanging_step_ends_the_process(in_thread: bool, pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a run that another thread of a program trains."""
    ended: queue.Queue[LostError] = queue.Queue()
    monkeypatch.setattr(module, "end_process", ended.put)
    monkeypatch.setattr(module, "TICK", 0.001)
    errors: list[LostError] = []

    def stand_still(step: int) -> None:
        errors.append(ended.get(timeout=240))

    def train() -> None:
        train_untraced(strike=stand_still, validation="none", steps=1, step_timeout=0.05)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(train).result() if in_thread else train()
    assert str(errors[0]).startswith("step 1 has made no progress for 3 seconds (--step-timeout); the same commands")
    assert len(f"error: {errors[0]}") < 200
    assert errors[0].exit_code == EXIT_LOST


def test_step_ends_the_process_only_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: queue.Queue[LostError] = queue.Queue()
    monkeypatch.setattr(module, "end_process", ended.put)
    for timeout, seconds, expected in ((5, 4, 0), (5, 5, 1), (math.inf, 1000, 1)):
        watch = StepWatch(False, lambda: False, lambda: None, timeout)
        with watch.step(1):
            assert not lines_of(watch, 1 + seconds)  # the first call notices the step
        assert ended.qsize() == expected


@pytest.mark.parametrize(
    ("step_timeout", "has_exchange", "limit"), [(0, True, math.inf), (2, False, math.inf), (2, True, 120)]
)
def test_steps_of_a_run_are_watched_and_nothing_else(
    step_timeout: float, has_exchange: bool, limit: float, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a step computes, its results are read, and machines exchange something; not in a validation and a save.

    A step has a limit where it waits for other devices or machines. The second one is skipped, and the run goes back.
    """
    watched: list[tuple[str, int | None]] = []
    made: list[StepWatch] = []
    failures = {2}

    class Kept(StepWatch):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            assert arguments[-1] == limit
            made.append(self)
            watched.clear()

    def noted(place: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            watched.append((place, made[0]._step if made else None))
            return function(*arguments)

        return note

    validation = validation_of(1.0, ["子"])
    monkeypatch.setattr(Validator, "validate", noted("validation", lambda *_: validation))
    monkeypatch.setattr(Checkpoints, "save", noted("save", Checkpoints.save))
    monkeypatch.setattr(Checkpoints, "restore_previous_best", noted("disk", Checkpoints.restore_previous_best))
    monkeypatch.setattr(Run, "due", noted("due", Run.due))
    monkeypatch.setattr(Run, "go_back", noted("back", Run.go_back))
    monkeypatch.setattr(Loop, "_read", noted("results", Loop._read))
    monkeypatch.setattr(UntracedUpdate, "gather_state", noted("state", UntracedUpdate.gather_state))
    monkeypatch.setattr(UntracedUpdate, "has_exchange", has_exchange)
    monkeypatch.setattr("chatbot.training.loop.StepWatch", Kept)
    monkeypatch.setattr("chatbot.training.alarms.PATIENCE", 1)
    strike = noted("step", lambda step: failures.clear() if step == 2 else None)
    run = {"validation": str(held_out), "steps": 2, "validate_every": 1, "step_timeout": step_timeout}
    train_untraced(**run, strike=strike, not_finite=failures)
    trained, saved = ["step", "due", "results"], ["disk", "state", "save", "validation"]
    places = [*trained, *saved], [*trained, "back", "state", *trained, *saved]
    by_disk_or_chief = "disk", "save", "validation", "back"
    expected = [(place, None if place in by_disk_or_chief else n) for n in (1, 2) for place in places[n - 1]]
    assert watched == expected


def test_watching_thread_prints_the_warning(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK", 0.001)
    lines, printed = iter(["", "a line"]), threading.Event()

    def tick() -> str:
        line = next(lines, None)
        if line is None:
            printed.set()
        return line or ""

    with interrupts(announced=False, tick=tick):
        assert printed.wait(240)
    assert capfd.readouterr().err == "\na line\n"


def test_update_is_tracing_until_its_graphs_are_traced() -> None:
    seen: list[bool] = []

    def double(x: tf.Tensor) -> tf.Tensor:
        seen.append(update.is_tracing)
        return 2 * x

    class Update(UntracedUpdate):
        def __init__(self) -> None:
            self.graph, self.other = Graph(double), Graph(double)

    update = Update()
    seen.append(update.is_tracing)
    update.graph(tf.constant(1.0))
    assert [*seen, update.is_tracing] == [False, True, False]

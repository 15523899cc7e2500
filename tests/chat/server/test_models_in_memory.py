"""Random uses, checkpoints, refreshes and closings of models, compared with a simple account of them."""

import asyncio
import dataclasses
import json
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from chatbot.attempts.files import LAST
from chatbot.chat.loading import LoadedModel
from chatbot.chat.server import models as module
from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.models import OVERHEAD_BYTES, Models
from tests.chat.server.fake_models import FakeEngine, point, served

UNIT = OVERHEAD_BYTES // 2
SIZES = {"a": 2, "b": 2, "c": 3, "large": 6}  # in units, with what a model takes beside its weights
LIMIT = 5
NAMES = st.sampled_from(sorted(SIZES))


class ThreadOfTheTest(ThreadPoolExecutor):
    """An executor that runs calls in the test's thread: immediately, or when they are taken from `waiting`."""

    def __init__(self, waits: bool) -> None:
        super().__init__()
        self.waits = waits
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future = Future[Any]()

        def call() -> None:
            try:
                future.set_result(function(*arguments, **named))
            except Exception as error:
                future.set_exception(error)

        self.waiting.append(call)
        if not self.waits:
            self.waiting.popleft()()
        return future


@dataclasses.dataclass(eq=False)
class Loaded:
    """A model in memory according to the account. ended: when its last use ended."""

    name: str
    step: int
    ended: int = 0


@dataclasses.dataclass(eq=False)
class Use:
    """A running question. loaded: its model in the account. status: the status of a refusal."""

    name: str
    end: asyncio.Event
    model: LoadedModel | None = dataclasses.field(default=None, repr=False)
    loaded: Loaded | None = None
    status: int = 0


class ModelsInMemory(RuleBasedStateMachine):
    """Each action finishes before the next, and must agree with the account."""

    overlap = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.thread = ThreadOfTheTest(waits=self.overlap)
        self.loop.set_default_executor(self.thread)
        self.folder = Path(tempfile.mkdtemp())
        self.offered: dict[str, Path] = {}
        self.models = Models(lambda: self.offered, self.open_model, LIMIT * UNIT + 1000)  # bytes of empty checkpoints
        self.engines: list[tuple[str, FakeEngine]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.uses: list[Use] = []
        self.number = 0
        self.whole: dict[str, int] = {}  # the newest checkpoints, without damaged ones
        self.account: dict[str, Loaded] = {}  # the models that get questions, in the order in which they were loaded
        for name in ("a", "b", "c"):
            self.write_checkpoint(name, whole=True)

    def open_model(self, directory: Path) -> LoadedModel:
        engine = FakeEngine()
        self.engines.append((directory.name, engine))
        return served(engine, step=self.whole[directory.name], directory=str(directory))

    def run(self, begun: Coroutine[Any, Any, None] | None = None) -> None:
        """Start a coroutine, and run everything that can run."""

        async def settle() -> None:
            for _ in range(30):
                await asyncio.sleep(0)

        if begun is not None:
            self.tasks.append(self.loop.create_task(begun))
        self.loop.run_until_complete(settle())

    @rule(name=NAMES, whole=st.booleans())
    def write_checkpoint(self, name: str, whole: bool) -> None:
        """Write a checkpoint. The first one adds the attempt to the offered models."""
        self.number += 1
        if name not in self.offered:
            (self.folder / name).mkdir()
            with (self.folder / name / "ckpt-0.safetensors").open("wb") as file:
                file.truncate(SIZES[name] * UNIT - OVERHEAD_BYTES)
            self.offered[name] = self.folder / name
            whole = True
        point(self.folder / name, self.number, whole)
        if whole:
            self.whole[name] = self.number

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        use = Use(name, asyncio.Event())

        async def answer() -> None:
            try:
                async with self.models.use(name) as use.model:
                    await use.end.wait()
            except ApiError as error:
                use.status = error.status_code

        self.uses.append(use)
        self.run(answer())
        if self.overlap:
            return
        if name in self.offered and name not in self.account and self.makes_room(SIZES[name]):
            self.account[name] = Loaded(name, self.whole[name])
        use.loaded = self.account.get(name)
        if use.loaded is None:
            assert use.status == (503 if name in self.offered else 404)
        else:
            assert use.model is not None
            assert use.model.card.step == use.loaded.step

    @rule(name=NAMES)
    def use_shortly(self, name: str) -> None:
        self.use(name)
        self.end(self.uses[-1])

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def end_use(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.uses)))

    def end(self, use: Use) -> None:
        self.uses.remove(use)
        use.end.set()
        self.run()
        self.number += 1
        if use.loaded is not None:
            use.loaded.ended = self.number

    @rule()
    def refresh(self) -> None:
        self.run(self.models.refresh())
        for name, old in [*self.account.items()]:
            newest = json.loads((self.folder / name / LAST).read_text())["step"]
            if self.account.get(name) is not old or old.step == self.whole[name] or newest != self.whole[name]:
                continue  # it has left for another one, has no newer checkpoint, or a damaged one
            if self.makes_room(SIZES[name], old):
                del self.account[name]
                self.account[name] = Loaded(name, newest, old.ended)
            elif not self.is_used(old):
                del self.account[name]

    def is_used(self, loaded: Loaded) -> bool:
        return any(use.loaded is loaded for use in self.uses)

    def makes_room(self, size: int, spared: Loaded | None = None) -> bool:
        """Remove the fewest least recently used models from the account, if that makes room."""
        in_memory = {*self.account.values(), *(use.loaded for use in self.uses if use.loaded is not None)}
        idle = [loaded for loaded in self.account.values() if not self.is_used(loaded) and loaded is not spared]
        idle.sort(key=lambda loaded: loaded.ended)
        for number in range(len(idle) + 1):
            rest = sum(SIZES[loaded.name] for loaded in in_memory - {*idle[:number]})
            if rest == 0 or rest + size <= LIMIT:
                for loaded in idle[:number]:
                    del self.account[loaded.name]
                return True
        return False

    @invariant()
    def memory_is_bounded(self) -> None:
        sizes = [SIZES[name] for name, engine in self.engines if not engine.closed.is_set()]
        assert sum(sizes) <= LIMIT or len(sizes) == 1

    @invariant()
    def models_in_use_are_open(self) -> None:
        assert not any(use.model.engine.closed.is_set() for use in self.uses if use.model is not None)  # type: ignore[attr-defined]

    @precondition(lambda self: not self.overlap)
    @invariant()
    def models_are_those_of_the_account(self) -> None:
        steps = {name: model.card.step for name, model in self.models.loaded.items()}
        assert steps == {name: loaded.step for name, loaded in self.account.items()}

    def go_on(self) -> None:
        """Run the next waiting call."""
        self.thread.waiting.popleft()()
        self.run()

    def teardown(self) -> None:
        for use in self.uses:
            use.end.set()
        self.run()
        self.run(self.models.close())
        while self.thread.waiting:
            self.go_on()
        assert all(task.done() for task in self.tasks)
        assert all(engine.closed.is_set() for _, engine in self.engines)
        self.loop.close()
        shutil.rmtree(self.folder)


class OverlappingActions(ModelsInMemory):
    """Actions overlap, so the account cannot predict them and stays empty."""

    overlap = True

    @precondition(lambda self: self.thread.waiting)
    @rule()
    def let_go_on(self) -> None:
        self.go_on()


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collections are slow in a test process; `test_models.py` tests them."""
    monkeypatch.setattr(module, "freeze_live_objects", lambda: None)


@pytest.mark.parametrize("machine", [ModelsInMemory, OverlappingActions])
def test_models_in_memory(machine: type[ModelsInMemory]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=30, deadline=None))


def test_model_unloaded_while_its_refresh_waits() -> None:
    """Another model takes its memory, so there is nothing to refresh."""
    machine = OverlappingActions()
    for name in "ab":
        machine.use(name)
        while machine.thread.waiting:
            machine.go_on()
        machine.end(machine.uses[-1])
    machine.use("c")
    machine.write_checkpoint("a", whole=True)
    machine.refresh()
    while machine.thread.waiting:
        machine.go_on()
        machine.memory_is_bounded()
    assert [*machine.models.loaded] == ["b", "c"]
    machine.teardown()

"""The models of a server: their names, and what goes wrong when they are loaded or replaced."""

import asyncio
import contextlib
import itertools
import json
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from chatbot.chat.server import models as module
from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.models import (
    BESIDE_WEIGHTS,
    Models,
    ServedModel,
    client_names,
    leave_out_of_collections,
    models_of,
)
from chatbot.config.attempts import CONFIG, LAST
from chatbot.errors import UserError
from tests.chat.server.fake_models import FakeEngine, fake_models, point, served


@pytest.fixture(autouse=True)
def _few_collections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collections of a test's process take seconds, since it has everything in memory; only their test has them."""
    if "collections" not in request.node.name:
        monkeypatch.setattr(module, "leave_out_of_collections", lambda: None)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def newest(models: Models, opened: list[FakeEngine]) -> Models:
    """Models, each time with an engine of its own, which is added to a list."""

    def open_model(directory: Path) -> ServedModel:
        opened.append(FakeEngine())
        return served(opened[-1], step=len(opened), directory=directory.name)

    models._open = open_model
    return models


@hypothesis.given(st.lists(st.integers(0, 11), max_size=40))
@hypothesis.example([0, 9, 9, 3, 1, 9, 9, 4, 2, 6, 9, 9, 9, 9, 9, 9])  # a leaves while its refresh waits for the lock
@hypothesis.settings(max_examples=20, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_models_in_memory_never_exceed_the_limit_whatever_happens_in_which_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    """Steps 0 to 2 use a model, 3 to 5 stop using it, 6 to 8 write a newer checkpoint of it and refresh the models; the
    others let the next thread of those that load and close models go on."""
    sizes, limit = {"a": 2, "b": 2, "c": 3}, 5
    used = most_used = 0
    threads: deque[asyncio.Event] = deque()

    class Engine(FakeEngine):
        def __init__(self, size: int) -> None:
            nonlocal used, most_used
            super().__init__()
            self.size = size
            used += size
            most_used = max(most_used, used)

        def close(self) -> None:
            nonlocal used
            used -= self.size

    def open_model(directory: Path) -> ServedModel:
        return served(Engine(sizes[directory.name]), step=checked_step(directory) or 0, directory=directory.name)

    async def to_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        threads.append(asyncio.Event())
        await threads[-1].wait()
        return function(*arguments, **named)

    def checked_step(directory: Path) -> int:
        return int(json.loads((directory / LAST).read_text())["step"])

    async def use(name: str, end: asyncio.Event) -> None:
        with contextlib.suppress(ApiError):
            async with models.use(name):
                await end.wait()

    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def test() -> None:
        tasks: list[asyncio.Task[None]] = []
        ends: dict[str, list[asyncio.Event]] = {name: [] for name in sizes}
        for number, step in enumerate(steps):
            kind, name = step // 3, "abc"[step % 3]
            if kind == 0:
                ends[name].append(asyncio.Event())
                tasks.append(asyncio.create_task(use(name, ends[name][-1])))
            elif kind == 1 and ends[name]:
                ends[name].pop().set()
            elif kind == 2:
                point(tmp_path / name, number + 2)
                tasks.append(asyncio.create_task(models.refresh()))
            elif threads:
                threads.popleft().set()
            await settle()
        for end in itertools.chain(*ends.values()):
            end.set()
        tasks.append(asyncio.create_task(models.close()))
        for _ in range(100):
            await settle()
            if threads:
                threads.popleft().set()
        assert all(task.done() for task in tasks)
        assert used == 0
        assert most_used <= limit

    models = fake_models(dict.fromkeys(sizes, FakeEngine()), tmp_path, limit)
    models._open = open_model
    with monkeypatch.context() as patch:
        patch.setattr(module, "estimated_bytes", lambda directory: sizes[directory.name])
        patch.setattr(module, "checked_step", checked_step)
        patch.setattr(asyncio, "to_thread", to_thread)
        run(test())


def test_memory_of_a_replaced_model_is_freed_although_collections_leave_its_objects_out(tmp_path: Path) -> None:
    opened: list[FakeEngine] = []
    models = newest(fake_models({"a": FakeEngine()}, tmp_path), opened)

    async def test() -> None:
        async with models.use("a"):
            opened[0].itself = opened[0]  # type: ignore[attr-defined]  # as graphs, it is part of a cycle
            leave_out_of_collections()
            point(tmp_path / "a", 2)
            await models.refresh()
        replaced = weakref.ref(opened.pop(0))
        await asyncio.gather(*models._closing)
        assert replaced() is None
        await models.close()

    run(test())


def test_damaged_newer_checkpoint_keeps_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened: list[FakeEngine] = []
    models = newest(fake_models({"a": FakeEngine()}, tmp_path), opened)

    async def test() -> None:
        async with models.use("a"):
            pass
        point(tmp_path / "a", 2, whole=False)
        for _ in range(3):
            await models.refresh()
        assert len(opened) == 1
        assert caplog.text.count("newer checkpoint is not used") == 1
        (tmp_path / "a" / LAST).unlink()
        await models.refresh()
        point(tmp_path / "a", 3)  # an engine with another step is loaded in its place
        await models.refresh()
        async with models.use("a") as model:
            assert model.loaded.card.step == 1
        assert [engine.closed.is_set() for engine in opened] == [False, True]
        assert "step 3 is missing or damaged" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(test())


def test_model_without_room_is_refused_for_now(tmp_path: Path) -> None:
    models = fake_models({"a": FakeEngine(), "b": FakeEngine()}, tmp_path, limit=BESIDE_WEIGHTS)

    async def test() -> None:
        async with models.use("a"):
            with pytest.raises(ApiError) as raised:
                async with models.use("b"):
                    pass
            assert (raised.value.status_code, raised.value.code) == (503, "memory")
            assert raised.value.headers == {"Retry-After": "5"}

    run(test())


def test_model_that_cannot_be_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = fake_models({"a": FakeEngine()}, tmp_path)

    def open_model(directory: Path) -> ServedModel:
        raise UserError(f"{directory}: damaged")

    models._open = open_model

    async def test() -> None:
        with pytest.raises(ApiError) as raised:
            async with models.use("a"):
                pass
        assert raised.value.status_code == 503
        assert str(tmp_path) not in raised.value.detail
        assert f"{tmp_path / 'a'}: damaged" in caplog.text

    run(test())


def test_questions_at_once_load_a_model_once(tmp_path: Path) -> None:
    """Also if the client of the first one leaves meanwhile."""
    opened: list[FakeEngine] = []
    models = newest(fake_models({"a": FakeEngine()}, tmp_path), opened)
    begun, may_open, open_model = threading.Event(), threading.Event(), models._open

    def slow(directory: Path) -> ServedModel:
        begun.set()
        may_open.wait(5)
        return open_model(directory)

    models._open = slow

    async def use() -> int:
        async with models.use("a") as model:
            return model.loaded.card.step

    async def test() -> None:
        first, *others = [asyncio.create_task(use()) for _ in range(10)]
        await asyncio.to_thread(begun.wait, 5)
        first.cancel()
        may_open.set()
        assert await asyncio.gather(*others) == [1] * 9
        assert len(opened) == 1

    run(test())


@pytest.mark.parametrize("name", ["x", "", ".", "..", "../a", "a/", "A", "a\0", "a" * 100_000])
def test_unknown_names(tmp_path: Path, name: str) -> None:
    models = fake_models({"a": FakeEngine()}, tmp_path)
    with pytest.raises(ApiError) as raised:
        models.name_of(name)
    assert (raised.value.status_code, raised.value.code) == (404, "model_not_found")
    assert len(raised.value.detail) < 200
    assert raised.value.detail.endswith("; there are: a; /v1/models lists all")
    assert models.name_of(None) == "a"


def test_names_for_clients() -> None:
    names = ("weibo", "o1", "o3-mini", "gpt-5", "GPT-4o", "chatgpt-x", "chatbot-o1", "中文", "old", "opus")
    found = client_names([Path("/x") / name for name in names])
    assert list(found) == [
        *("weibo", "chatbot-o1", "chatbot-o3-mini", "chatbot-gpt-5", "chatbot-GPT-4o", "chatbot-chatgpt-x"),
        *("chatbot-chatbot-o1", "中文", "old", "opus"),
    ]
    assert client_names([Path("/x/a"), Path("/y/a")]) == {"a": Path("/x/a"), "chatbot-a": Path("/y/a")}


def test_models_of_the_folder(work_dir: Path) -> None:
    """Only those that are named, unless all are; attempts without a checkpoint are left out."""
    for name, files in {"b": (CONFIG, LAST), "a": (CONFIG, LAST), "new": (CONFIG,)}.items():
        (work_dir / "checkpoints" / name).mkdir(parents=True)
        for file in files:
            (work_dir / "checkpoints" / name / file).touch()
    named, exported = work_dir / "checkpoints" / "b", work_dir / "exported"
    assert list(models_of([named])()) == ["b"]
    assert list(models_of([exported, named])()) == ["exported", "b"]
    assert list(models_of([], all_attempts=True)()) == ["a", "b"]
    assert list(models_of([named], all_attempts=True)()) == ["b", "a"]
    assert list(models_of([exported], all_attempts=True)()) == ["exported", "a", "b"]
    assert models_of([work_dir / "a"], all_attempts=True)()["a"] == work_dir / "a"

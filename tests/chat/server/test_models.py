"""The models of a server: names, and failures while loading and replacing them."""

import asyncio
import dataclasses
import gc
import logging
import threading
import weakref
from pathlib import Path

import pytest

from chatbot.attempts.files import CONFIG, LAST
from chatbot.chat.loading import LoadedModel
from chatbot.chat.server import models as module
from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.models import (
    OVERHEAD_BYTES,
    assign_client_names,
    model_lister,
)
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST
from tests.chat.server.fake_models import FakeEngine, fake_models, point, served


@pytest.fixture(autouse=True)
def _few_collections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collections are slow in a test process, so only the tests about them run them."""
    if "collections" not in request.node.name:
        monkeypatch.setattr(module, "freeze_live_objects", lambda: None)


@dataclasses.dataclass
class Opened:
    """Models whose step is the number of models opened so far, each with its own engine.

    engines: in the order of opening. begun, goes_on: set when opening begins, and to let it continue.
    """

    folder: Path
    names: str = "a"
    most: int = 10**6  # models in memory
    engines: list[FakeEngine] = dataclasses.field(default_factory=list)
    begun: threading.Event = dataclasses.field(default_factory=threading.Event)
    goes_on: threading.Event = dataclasses.field(default_factory=threading.Event)
    damaged: str = ""  # the name of a model that cannot be opened

    def __post_init__(self) -> None:
        self.goes_on.set()
        limit = self.most * OVERHEAD_BYTES + 1000  # bytes of empty checkpoints
        self.models = fake_models(dict.fromkeys(self.names), self.folder, limit, self.open_model)

    def open_model(self, directory: Path) -> LoadedModel:
        self.begun.set()
        self.goes_on.wait(240)
        if directory.name == self.damaged:
            raise UserError(f"{directory}: damaged")
        self.engines.append(FakeEngine())
        return served(self.engines[-1], step=len(self.engines), directory=str(directory))

    async def use(self, name: str = "a") -> int:
        """Use a model briefly, and return its step."""
        async with self.models.use(name) as model:
            return model.card.step

    async def error_of(self, name: str) -> ApiError:
        with pytest.raises(ApiError) as raised:
            await self.use(name)
        return raised.value


def test_memory_of_a_replaced_model_is_freed_despite_frozen_collections(tmp_path: Path) -> None:
    opened = Opened(tmp_path)

    async def test() -> None:
        await opened.use()
        opened.engines[0].itself = opened.engines[0]  # type: ignore[attr-defined]  # as graphs, it is part of a cycle
        gc.freeze()  # as `freeze_live_objects` does
        point(tmp_path / "a", 2)
        await opened.models.refresh()
        replaced = weakref.ref(opened.engines.pop(0))
        await asyncio.gather(*opened.models._closing)
        assert replaced() is None
        await opened.models.close()

    asyncio.run(test())


def test_damaged_newer_checkpoint_keeps_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened(tmp_path)

    async def test() -> None:
        await opened.use()
        point(tmp_path / "a", 2, whole=False)
        for _ in range(3):
            await opened.models.refresh()
        assert len(opened.engines) == 1
        assert caplog.text.count("newer checkpoint cannot be loaded") == 1
        (tmp_path / "a" / LAST).unlink()
        await opened.models.refresh()
        point(tmp_path / "a", 3)  # an engine with another step is loaded in its place
        await opened.models.refresh()
        assert await opened.use() == 1
        assert [engine.closed.is_set() for engine in opened.engines] == [False, True]
        assert "step 3 is missing or damaged" in caplog.text

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())


def test_unloadable_model_and_full_memory_are_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that failed to load leaves room for another."""
    opened = Opened(tmp_path, "abc", most=1, damaged="a")

    async def test() -> None:
        error = await opened.error_of("a")
        assert (error.status_code, str(tmp_path) in error.detail) == (503, False)
        assert f"{tmp_path / 'a'}: damaged" in caplog.text
        async with opened.models.use("b"):
            error = await opened.error_of("c")
            assert (error.status_code, error.code, error.headers) == (503, "memory", {"Retry-After": "5"})
        assert await opened.use("c") == 2

    asyncio.run(test())


def test_newer_checkpoint_inherits_the_last_use(tmp_path: Path) -> None:
    opened = Opened(tmp_path, "abc", most=3)

    async def test() -> None:
        for name in "bab":
            await opened.use(name)
        point(tmp_path / "b", 3)
        await opened.models.refresh()
        await asyncio.gather(*opened.models._closing)
        opened.models._limit = 2 * OVERHEAD_BYTES + 1000
        await opened.use("c")
        assert [*opened.models.loaded] == ["b", "c"]

    asyncio.run(test())


def test_concurrent_questions_load_a_model_once(tmp_path: Path) -> None:
    """This holds even if the first client disconnects."""
    opened = Opened(tmp_path)
    opened.goes_on.clear()

    async def test() -> None:
        first, *others = [asyncio.create_task(opened.use()) for _ in range(10)]
        await asyncio.to_thread(opened.begun.wait, 5)
        first.cancel()
        opened.goes_on.set()
        assert await asyncio.gather(*others) == [1] * 9
        assert len(opened.engines) == 1

    asyncio.run(test())


@pytest.mark.parametrize(("history", "turns"), [(None, 2), (1, 1), (5, 2)])
def test_model_is_ready_once_opened(monkeypatch: pytest.MonkeyPatch, history: int | None, turns: int) -> None:
    engine, limits, frozen = FakeEngine(), list[int](), list[object]()

    def load(directory: Path, decoding: DecodingSettings, most_waiting: int) -> LoadedModel:
        limits.append(most_waiting)
        return served(engine)

    monkeypatch.setattr(module, "load_model", load)
    monkeypatch.setattr(module, "freeze_live_objects", lambda: frozen.append(engine.questions[-1]))
    assert module.open_model(Path("a"), DecodingSettings(), history, 7).turns == turns
    assert limits == [7]
    assert len(frozen) == 1  # after the model has answered


def test_export_has_its_size_and_no_newer_steps(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"a" * 500)
    assert module.estimate_bytes(tmp_path) == 500 + OVERHEAD_BYTES
    assert module.newest_verified_step(tmp_path) is None


def test_names_for_clients() -> None:
    names = ("weibo", "o1", "o3-mini", "gpt-5", "GPT-4o", "chatgpt-x", "chatbot-o1", "中文", "old", "opus")
    found = assign_client_names([Path("/x") / name for name in names])
    assert list(found) == [
        *("weibo", "chatbot-o1", "chatbot-o3-mini", "chatbot-gpt-5", "chatbot-GPT-4o", "chatbot-chatgpt-x"),
        *("chatbot-chatbot-o1", "中文", "old", "opus"),
    ]
    assert assign_client_names([Path("/x/a"), Path("/y/a")]) == {"a": Path("/x/a"), "chatbot-a": Path("/y/a")}


def test_models_of_the_folder(work_dir: Path) -> None:
    """Only named models are listed unless all are offered. Attempts without a checkpoint are left out."""
    for name, files in {"b": (CONFIG, LAST), "a": (CONFIG, LAST), "new": (CONFIG,)}.items():
        (work_dir / "checkpoints" / name).mkdir(parents=True)
        for file in files:
            (work_dir / "checkpoints" / name / file).touch()
    named, exported = work_dir / "checkpoints" / "b", work_dir / "exported"
    assert list(model_lister([named])()) == ["b"]
    assert list(model_lister([exported, named])()) == ["exported", "b"]
    assert list(model_lister([], all_attempts=True)()) == ["a", "b"]
    assert list(model_lister([named], all_attempts=True)()) == ["b", "a"]
    assert list(model_lister([exported], all_attempts=True)()) == ["exported", "a", "b"]
    assert model_lister([work_dir / "a"], all_attempts=True)()["a"] == work_dir / "a"

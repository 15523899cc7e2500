"""The models on this machine, attempts and exports: their names for clients, and those in memory, which are loaded at
first use, replaced by newer checkpoints, and removed when memory is needed.
"""

import asyncio
import contextlib
import gc
import importlib.util
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from chatbot.attempts.checkpoint import checkpoint_path, largest_checkpoint, read_pointer, verified_manifest
from chatbot.attempts.files import CONFIG, LAST
from chatbot.chat.loading import LoadedModel, Version, load_model, pointer_of, version_of
from chatbot.chat.server.errors import ApiError
from chatbot.config.attempts import CHECKPOINTS
from chatbot.config.decoding import DecodingSettings, one_hypothesis
from chatbot.durable import size_of
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST
from chatbot.inference.engine import MOST_WAITING

log = logging.getLogger(__name__)
MOST_NAMES = 5  # in a message
# Clients treat such models in a special way: they send other fields, or none that are important here.
SPECIAL = re.compile(
    r"(o\d|gpt|chatgpt|codex|omni|text-|davinci|babbage|whisper|tts|dall-e|computer-use)", re.IGNORECASE
)
PREFIX = "chatbot-"
# Seconds for which the names of the folder with all attempts are kept.
FRESH = 2.0
# Memory of a model beside its weights: graphs and buffers.
BESIDE_WEIGHTS = 50_000_000


def client_names(directories: Sequence[Path]) -> dict[str, Path]:
    """Return the directories by the names for clients, which are unique and have a prefix where they are special."""
    names: dict[str, Path] = {}
    for directory in directories:
        name = directory.name
        while SPECIAL.match(name) or name in names:
            name = PREFIX + name
        names[name] = directory
    return names


def models_of(named: Sequence[Path], all_attempts: bool = False) -> Callable[[], Mapping[str, Path]]:
    """Return a function that returns the models that there are now: those that are named, then maybe all others.

    named: directories of attempts or exports. all_attempts: whether those in checkpoints/ are offered, too. Attempts
    need TensorFlow, and are left out without.
    """
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None
    directories = client_names(named)
    read = -FRESH

    def models() -> Mapping[str, Path]:
        nonlocal directories, read
        if all_attempts and has_tensorflow and monotonic() >= read + FRESH:
            attempts = sorted(path.parent.absolute() for path in CHECKPOINTS.glob(f"*/{CONFIG}"))
            others = [path for path in attempts if (path / LAST).exists() and path not in named]
            directories = client_names([*named, *others])
            read = monotonic()
        return directories

    return models


def estimated_bytes(directory: Path) -> int:
    """Return about how many bytes of memory a model takes: those of the files of its weights, and some more."""
    if (directory / MANIFEST).exists():
        return size_of(directory) + BESIDE_WEIGHTS
    return largest_checkpoint(directory) + BESIDE_WEIGHTS


def checked_step(directory: Path) -> int | None:
    """Return the step of the newest checkpoint of an attempt; None for an export.

    Raises UserError if the checkpoint is damaged, in place of which `load_model` would load an older one.
    """
    if (directory / MANIFEST).exists():
        return None
    pointer = read_pointer(pointer_of(directory))
    verified_manifest(checkpoint_path(directory, pointer["step"]))
    return int(pointer["step"])


Open = Callable[[Path], LoadedModel]


def open_model(
    directory: Path, decoding: DecodingSettings, history: int | None, most_waiting: int = MOST_WAITING
) -> LoadedModel:
    """Load a model, and answer its first questions. Raises UserError as `load_model`.

    decoding: of the command line. history: the maximum number of turns to read; None: as many as the model was trained
    with. most_waiting: as for `Engine`.
    """
    model = load_model(directory, decoding, most_waiting=most_waiting)
    if history is not None:
        model.turns = min(history, model.turns)
    model.engine.warm_up((None, one_hypothesis(model.responder.decoding)))
    leave_out_of_collections()
    return model


class Models:
    """The models of a server. All methods are for the thread of its event loop.

    directories: returns the models that there are now, the default one first. open_model: loads one; called in another
    thread. limit: bytes of models in memory, with those that answer their last questions; a model that is larger is in
    memory alone.
    """

    def __init__(self, directories: Callable[[], Mapping[str, Path]], open_model: Open, limit: int) -> None:
        self.directories = directories
        self._open = open_model
        self._limit = limit
        self.loaded: dict[str, LoadedModel] = {}  # the models in memory that get questions
        self._bytes = 0  # of all models in memory
        self._is_closed = False
        self._lock = asyncio.Lock()  # one model is loaded at a time
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def name_of(self, name: str | None) -> str:
        """Return the name of a model that a client asks for, by default the first one. Raises ApiError (404)."""
        models = self.directories()
        if name is None and models:
            return next(iter(models))
        if name is None or name not in models:
            known = f"there are: {', '.join([*models][:MOST_NAMES])}" if models else "there is none"
            message = "There is no model" if name is None else f"No model is named {name[:40]!r}; {known}"
            raise ApiError(404, f"{message}; /v1/models lists all", param="model", code="model_not_found")
        return name

    def put(self, name: str, model: LoadedModel) -> None:
        """Add a model that was loaded before the event loop runs. Raises OSError."""
        model.bytes = estimated_bytes(model.directory)
        self._bytes += model.bytes
        self.loaded[name] = model

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[LoadedModel]:
        """Load a model, unless it is in memory, and keep it there in the block.

        Raises ApiError for a name that there is not, for a damaged model, and if all memory is in use.
        """
        while (model := self.loaded.get(name)) is None:
            if name not in self._loading:
                self._loading[name] = asyncio.create_task(self._load(name))
                self._loading[name].add_done_callback(lambda _: self._loading.pop(name))
            await asyncio.shield(self._loading[name])
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            model.used = asyncio.get_running_loop().time()
            if model.is_retired and not model.users:
                self._close(model)

    async def refresh(self) -> None:
        """Load the newer checkpoints of the models in memory. One that cannot be loaded is logged, and left out."""
        for name, model in [*self.loaded.items()]:
            version = version_of(model.directory)
            if version not in (None, model.version, model.refused):
                async with self._lock:
                    if self.loaded.get(name) is model:  # it was not removed while another one was loaded
                        await self._replace(name, model, version)

    async def close(self) -> None:
        """Remove all models, after they have answered the questions that wait."""
        self._is_closed = True
        for name in [*self.loaded]:
            self._retire(name)
        await asyncio.gather(*self._closing)

    async def _load(self, name: str) -> None:
        async with self._lock:
            if self._is_closed:
                raise ApiError(503, "The server stops")
            try:
                has_room = await self._open_beside(name, self.directories()[self.name_of(name)])
            except (UserError, OSError) as error:
                log.error("%s: %s", name, error)
                raise ApiError(
                    503, f"The model {name!r} cannot be loaded; the server's log says why", code="model_unavailable"
                ) from error
            if not has_room:
                raise ApiError(503, "Other models use all memory; try again in 5 seconds", code="memory", retry_after=5)

    async def _open_beside(self, name: str, directory: Path, old: LoadedModel | None = None) -> bool:
        """Load a model in another thread, if there is room. Returns whether there was.

        old: the one whose place it takes; the newest checkpoint must then be whole. Raises what `open_model` does, and
        UserError for a damaged checkpoint.
        """
        step = None if old is None else await asyncio.to_thread(checked_step, directory)
        size = await asyncio.to_thread(estimated_bytes, directory)
        if not await self._make_room(size, old):
            return False
        self._bytes += size
        try:
            model = await asyncio.to_thread(self._open, directory)
            if step not in (None, model.card.step):
                model.engine.close()
                raise UserError(f"{directory}: the checkpoint of step {step:,} is missing or damaged")
        except BaseException:
            self._bytes -= size
            raise
        model.bytes = size
        if old is not None:
            model.used = old.used
        if name in self.loaded:
            self._retire(name)
        self.loaded[name] = model
        if self._is_closed:
            self._retire(name)
        return True

    async def _make_room(self, size: int, spared: LoadedModel | None = None) -> bool:
        """Remove the models that were used least recently, until one of this size fits or is alone.

        Returns whether there is room. If models that are in use leave none, all stay. spared: a model that stays, too.
        """
        while self._bytes and self._bytes + size > self._limit:
            if self._closing:
                await asyncio.gather(*self._closing)
                continue
            idle = {name: model for name, model in self.loaded.items() if not model.users and model is not spared}
            busy = self._bytes - sum(model.bytes for model in idle.values())
            if not idle or (busy and busy + size > self._limit):
                return False
            self._retire(min(idle, key=lambda name: idle[name].used))
        return True

    async def _replace(self, name: str, old: LoadedModel, version: Version | None) -> None:
        """Load a newer checkpoint beside the old one.

        Where there is no room for both, the old one is removed as soon as nobody uses it; the next use loads the newer.
        """
        try:
            if await self._open_beside(name, old.directory, old):
                log.warning("%s: a newer checkpoint answers", name)
            elif not old.users:
                self._retire(name)
        except Exception as error:  # whatever is wrong with it, the old one answers, if need be loaded again
            old.refused = version
            log.warning("%s: the newer checkpoint is not used: %s", name, error)

    def _retire(self, name: str) -> None:
        """Give no more questions to a model, and close it when it has answered all."""
        model = self.loaded.pop(name)
        model.is_retired = True
        if not model.users:
            self._close(model)

    def _close(self, model: LoadedModel) -> None:
        task = asyncio.create_task(self._closed([model]))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, models: list[LoadedModel]) -> None:
        """Close the engine of a model, to which the list has the only reference, and free its memory."""
        size = models[0].bytes
        try:
            # A bound method in place of the lambda would keep the engine until the thread has forgotten it.
            await asyncio.to_thread(lambda: models.pop().engine.close())  # noqa: PLW0108
            if self.loaded:  # otherwise the server stops, or loads a model, which collects garbage, too
                await asyncio.to_thread(leave_out_of_collections)
        finally:
            self._bytes -= size


def leave_out_of_collections() -> None:
    """Collect garbage, and leave the objects that are there out of later collections until this is called again.

    A model has hundreds of thousands of objects that live as long as it. A collection that visits them all stops
    every thread for a fifth of a second, and the small objects of requests cause one every few seconds.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()

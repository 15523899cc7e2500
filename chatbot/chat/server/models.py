"""Manages the server's models: loads them on first use, updates them, and unloads them to free memory."""

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
from chatbot.chat.loading import LoadedModel, Version, checkpoint_version, load_model, pointer_path
from chatbot.chat.server.errors import ApiError
from chatbot.config.attempts import CHECKPOINTS
from chatbot.config.decoding import DecodingSettings, one_hypothesis
from chatbot.durable import size_of
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST
from chatbot.inference.engine import MAX_WAITING

log = logging.getLogger(__name__)
# The maximum number of models that an error message lists.
MAX_NAMES = 5
# If a model name matches this pattern, OpenAI clients omit or change fields that this server needs.
SPECIAL = re.compile(
    r"(o\d|gpt|chatgpt|codex|omni|text-|davinci|babbage|whisper|tts|dall-e|computer-use)", re.IGNORECASE
)
PREFIX = "chatbot-"
# The list of available models is read from disk again after this number of seconds.
CACHE_SECONDS = 2.0
# The memory that a model needs in addition to its weights, in bytes.
OVERHEAD_BYTES = 50_000_000


def assign_client_names(directories: Sequence[Path]) -> dict[str, Path]:
    """Return a dictionary from the model names that clients use to directories.

    A name gets a prefix if another model has the same name, or if OpenAI clients treat the name specially.
    """
    names: dict[str, Path] = {}
    for directory in directories:
        name = directory.name
        while SPECIAL.match(name) or name in names:
            name = PREFIX + name
        names[name] = directory
    return names


def model_lister(named: Sequence[Path], all_attempts: bool = False) -> Callable[[], Mapping[str, Path]]:
    """Return a function that lists the available models.

    The function returns a dictionary from names to directories, with the default model first.

    Args:
        named: The directories of the models that are always available.
        all_attempts: Whether to include all trained models in checkpoints/. Ignored if TensorFlow is not installed.
    """
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None
    directories = assign_client_names(named)
    read_at = -CACHE_SECONDS

    def models() -> Mapping[str, Path]:
        nonlocal directories, read_at
        if all_attempts and has_tensorflow and monotonic() >= read_at + CACHE_SECONDS:
            attempts = sorted(path.parent.absolute() for path in CHECKPOINTS.glob(f"*/{CONFIG}"))
            others = [path for path in attempts if (path / LAST).exists() and path not in named]
            directories = assign_client_names([*named, *others])
            read_at = monotonic()
        return directories

    return models


def estimate_bytes(directory: Path) -> int:
    """Estimate the memory usage of a model in bytes from the size of its weights on disk."""
    if (directory / MANIFEST).exists():
        return size_of(directory) + OVERHEAD_BYTES
    return largest_checkpoint(directory) + OVERHEAD_BYTES


def newest_verified_step(directory: Path) -> int | None:
    """Return the training step of the newest checkpoint, or None for an exported model.

    Raises:
        UserError: If the newest checkpoint is damaged. Unlike `load_model`, this function does not try older ones.
    """
    if (directory / MANIFEST).exists():
        return None
    pointer = read_pointer(pointer_path(directory))
    verified_manifest(checkpoint_path(directory, pointer["step"]))
    return int(pointer["step"])


# The type of a function that loads the model in a directory.
Open = Callable[[Path], LoadedModel]


def open_model(
    directory: Path, decoding: DecodingSettings, history: int | None, most_waiting: int = MAX_WAITING
) -> LoadedModel:
    """Load a model, and answer a few questions so that later answers are fast.

    Args:
        directory: The directory of the model.
        decoding: The decoding settings of the command line.
        history: The maximum number of earlier messages that the model reads along with a question. By default, this is
            the number that the model was trained with.
        most_waiting: The maximum number of queued questions per client. See `Engine`.

    Raises:
        UserError: If the directory is missing or damaged, or if the model does not support the settings.
    """
    model = load_model(directory, decoding, most_waiting=most_waiting)
    if history is not None:
        model.turns = min(history, model.turns)
    model.engine.warm_up((None, one_hypothesis(model.responder.decoding)))
    freeze_live_objects()
    return model


class Models:
    """Manages the models of a server. All methods must be called from the thread of the event loop.

    Args:
        directories: Returns a dictionary from the names of the available models to their directories. The default model
            is the first one.
        open_model: Loads a model. Called in another thread.
        limit: The maximum memory of all models in bytes. It includes replaced models that still answer requests. A
            single model is loaded even if it is larger.
    """

    def __init__(self, directories: Callable[[], Mapping[str, Path]], open_model: Open, limit: int) -> None:
        self.directories = directories
        self._open = open_model
        self._limit = limit
        self.loaded: dict[str, LoadedModel] = {}  # The models that accept requests.
        self._bytes = 0  # The memory of all models. It includes models that only finish their last requests.
        self._is_closed = False
        self._lock = asyncio.Lock()  # Only one model is loaded at a time.
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def resolve_name(self, name: str | None) -> str:
        """Return `name`, or the name of the default model if `name` is None. Raises ApiError if the name is unknown."""
        models = self.directories()
        if name is None and models:
            return next(iter(models))
        if name is None or name not in models:
            available = f"the models are {', '.join([*models][:MAX_NAMES])}" if models else "no model is available"
            message = "No model is available" if name is None else f"No model is named {name[:40]!r}; {available}"
            raise ApiError(404, f"{message}; see /v1/models for a list", param="model", code="model_not_found")
        return name

    def put(self, name: str, model: LoadedModel) -> None:
        """Add a model that is already loaded. Call this method before the event loop starts."""
        model.bytes = estimate_bytes(model.directory)
        self._bytes += model.bytes
        self.loaded[name] = model

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[LoadedModel]:
        """Load a model if necessary, and keep it in memory while a `with` block runs.

        Raises:
            ApiError: If the model does not exist, cannot be loaded, or does not fit into memory.
        """
        while (model := self.loaded.get(name)) is None:
            if name not in self._loading:
                self._loading[name] = asyncio.create_task(self._load(name))
                self._loading[name].add_done_callback(lambda _: self._loading.pop(name))
            await asyncio.shield(self._loading[name])
        model.active_requests += 1
        try:
            yield model
        finally:
            model.active_requests -= 1
            model.last_used = asyncio.get_running_loop().time()
            if model.is_retired and not model.active_requests:
                self._close(model)

    async def refresh(self) -> None:
        """Load newer checkpoints of the loaded models. If a checkpoint cannot be loaded, log the error and skip it."""
        for name, model in [*self.loaded.items()]:
            version = checkpoint_version(model.directory)
            if version not in (None, model.version, model.rejected_version):
                async with self._lock:
                    if self.loaded.get(name) is model:  # The model may have been unloaded in the meantime.
                        await self._replace(name, model, version)

    async def close(self) -> None:
        """Unload all models after answering the questions that are waiting."""
        self._is_closed = True
        for name in [*self.loaded]:
            self._retire(name)
        await asyncio.gather(*self._closing)

    async def _load(self, name: str) -> None:
        async with self._lock:
            if self._is_closed:
                raise ApiError(503, "The server is stopping")
            try:
                has_room = await self._load_if_room(name, self.directories()[self.resolve_name(name)])
            except (UserError, OSError) as error:
                log.error("%s: %s", name, error)
                raise ApiError(
                    503, f"The model {name!r} cannot be loaded; see the server's log", code="model_unavailable"
                ) from error
            if not has_room:
                raise ApiError(
                    503, "Other active models use all memory; try again in 5 seconds", code="memory", retry_after=5
                )

    async def _load_if_room(self, name: str, directory: Path, old: LoadedModel | None = None) -> bool:
        """Load a model in another thread if there is enough memory.

        Args:
            name: The name of the model.
            directory: The directory of the model.
            old: The loaded model to replace. In this case, UserError is raised if the newest checkpoint is damaged.

        Returns:
            Whether the model was loaded.
        """
        step = None if old is None else await asyncio.to_thread(newest_verified_step, directory)
        size = await asyncio.to_thread(estimate_bytes, directory)
        if not await self._free_memory(size, old):
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
            model.last_used = old.last_used  # Loading a newer checkpoint does not count as use.
        if name in self.loaded:
            self._retire(name)
        self.loaded[name] = model
        if self._is_closed:
            self._retire(name)
        return True

    async def _free_memory(self, size: int, protected: LoadedModel | None = None) -> bool:
        """Unload idle models until another model fits into memory, starting with the least recently used one.

        Args:
            size: The size of the new model in bytes.
            protected: A model that must not be unloaded.

        Returns:
            Whether the new model fits into memory. If it cannot fit, no model is unloaded.
        """
        while self._bytes and self._bytes + size > self._limit:
            if self._closing:
                await asyncio.gather(*self._closing)
                continue
            idle = {
                name: model
                for name, model in self.loaded.items()
                if not model.active_requests and model is not protected
            }
            active_bytes = self._bytes - sum(model.bytes for model in idle.values())
            if not idle or (active_bytes and active_bytes + size > self._limit):
                return False
            self._retire(min(idle, key=lambda name: idle[name].last_used))
        return True

    async def _replace(self, name: str, old: LoadedModel, version: Version | None) -> None:
        """Load a newer checkpoint of a model.

        If both checkpoints do not fit into memory, the old one is unloaded as soon as it is idle. The next request
        then loads the new one.
        """
        try:
            if await self._load_if_room(name, old.directory, old):
                log.warning("%s: loaded a newer checkpoint", name)
            elif not old.active_requests:
                self._retire(name)
        except Exception as error:  # The old checkpoint remains in use.
            old.rejected_version = version
            log.warning("%s: the newer checkpoint cannot be loaded: %s", name, error)

    def _retire(self, name: str) -> None:
        """Send no more requests to a model, and close it after its last request."""
        model = self.loaded.pop(name)
        model.is_retired = True
        if not model.active_requests:
            self._close(model)

    def _close(self, model: LoadedModel) -> None:
        task = asyncio.create_task(self._close_engine([model]))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_engine(self, models: list[LoadedModel]) -> None:
        """Close a model and free its memory. The list must contain the only reference to the model."""
        size = models[0].bytes
        try:
            # The thread must not receive `engine.close` itself, because it would keep the engine in memory.
            await asyncio.to_thread(lambda: models.pop().engine.close())  # noqa: PLW0108
            if self.loaded:  # Otherwise, the server is stopping, or the next model collects garbage.
                await asyncio.to_thread(freeze_live_objects)
        finally:
            self._bytes -= size


def freeze_live_objects() -> None:
    """Collect garbage now, and exclude all remaining objects from garbage collection until the next call.

    This avoids pauses. A model consists of hundreds of thousands of Python objects. Under load, Python would visit all
    of them every few seconds, which would stop every thread for 0.2 s.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()

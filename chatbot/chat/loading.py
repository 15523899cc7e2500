"""Loads trained and exported models for the chat, and describes them to users."""

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.description import read_attempt
from chatbot.attempts.files import BEST, LAST, learned_questions, trained_directory
from chatbot.config.attempts import RATINGS
from chatbot.config.decoding import DecodingSettings, default_search
from chatbot.config.export import THREADS_VARIABLE
from chatbot.config.run import RunSettings
from chatbot.corpus.workers import cores
from chatbot.decoding.interface import Model
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST, Manifest, open_export
from chatbot.inference.engine import MAX_WAITING, Engine
from chatbot.inference.request import Piece, Question
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.rated_replies import RatedRetrieval

# Identifies a version of a model: the name, modification time and size of the file that `pointer_path` returns.
Version = tuple[str, int, int]


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Describes the training data and the quality of a model.

    Attributes:
        name: The name of the training run.
        step: The training step of the checkpoint.
        data: The names of the training files; empty if unknown.
        pairs: The number of training pairs; None if unknown.
        nats_per_character: The validation loss in nats per character; None if unknown or not measured.
        validated: Whether the validation loss was measured.
        format: The format of an exported model; None for a model that is not exported.
        questions: A few short training questions to suggest to users.
    """

    name: str
    step: int
    data: tuple[str, ...] = ()
    pairs: int | None = None
    nats_per_character: float | None = None
    validated: bool = False
    format: str | None = None
    questions: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return a one-line summary."""
        pairs = "pairs" if self.pairs is None else pluralize(self.pairs, "pair")
        files = self.data[0] if len(self.data) == 1 else f"{len(self.data)} files"
        parts = [f"{self.name}: {pairs} from {files}" if self.data else self.name, f"step {self.step:,}"]
        if self.nats_per_character is not None:
            parts.append(f"{self.nats_per_character:.3f} nats per character on held-out pairs")
        elif not self.validated:
            parts.append("not validated")
        if self.format is not None:
            parts.append(self.format)
        return "; ".join(parts)

    @property
    def sources(self) -> list[str]:
        """The names of the training files, without file extensions."""
        return [name.removesuffix(".gz").rpartition(".")[0] or name for name in self.data]

    def display_name(self, name: str) -> str:
        """Return the name to show to users.

        A model with the default name is shown under the name of its training file, if there is only one file.
        """
        return self.sources[0] if name == RunSettings.attempt and len(self.sources) == 1 else name


def attempt_card(directory: Path, step: int) -> ModelCard:
    """Create the model card for a checkpoint of a training run."""
    attempt = read_attempt(directory)
    nats = attempt.best_nats_per_character
    questions = tuple(learned_questions(directory))
    return ModelCard(directory.name, step, attempt.data, attempt.pairs, nats, nats is not None, questions=questions)


def export_card(manifest: Manifest) -> ModelCard:
    """Create the model card for an exported model, whose training files are unknown."""
    return ModelCard(
        manifest.attempt,
        manifest.step,
        validated=manifest.validated,
        format=manifest.format,
        questions=tuple(manifest.questions),
    )


@dataclasses.dataclass(eq=False)
class LoadedModel:
    """A loaded model and the engine that runs it.

    The fields after `version` are only used by the server, which loads and unloads several models.

    Attributes:
        directory: The folder of the model.
        card: The model card to show to users.
        turns: The number of earlier messages that the model reads along with a question.
        responder: Answers questions. A question without decoding settings uses those of the command line.
        engine: Queues questions, and runs the responder in background threads.
        version: The version of the loaded checkpoint.
        bytes: The estimated memory usage of the model in bytes.
        active_requests: The number of requests that are using the model.
        last_used: The time at which the latest request ended, in seconds on the clock of the event loop.
        is_retired: Whether the model accepts no new requests, because it is being unloaded or replaced.
        rejected_version: The version of a newer checkpoint that failed to load.
    """

    directory: Path
    card: ModelCard
    turns: int
    responder: TextResponder
    engine: Engine
    version: Version | None = None
    bytes: int = 0
    active_requests: int = 0
    last_used: float = 0.0
    is_retired: bool = False
    rejected_version: Version | None = None


def load_chosen(attempt: str, export: str | None, decoding: DecodingSettings, ratings: Path = RATINGS) -> LoadedModel:
    """Load the model that is named by --export or, without that flag, by --attempt. See `load_model`."""
    directory = trained_directory(attempt) if export is None else Path(export)
    return load_model(directory, decoding, ratings, is_export=export is not None)


def load_model(
    directory: Path,
    decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
    ratings: Path | None = RATINGS,
    most_waiting: int = MAX_WAITING,
    is_export: bool = False,
) -> LoadedModel:
    """Load the best checkpoint of a training run, or an exported model. Exported models do not require TensorFlow.

    Args:
        directory: The folder of the training run, or the folder or zip file of the exported model.
        decoding: The decoding settings for questions without their own. If these settings do not choose between beam
            search, sampling and retrieval, the model's default is used.
        ratings: The file with users' ratings of replies. Retrieval prefers replies rated good and avoids those rated
            bad. None to ignore ratings.
        most_waiting: The maximum number of queued questions per client. See `Engine`.
        is_export: Whether to accept only exported models.

    Raises:
        UserError: If the directory is missing or damaged, or if the model does not support the settings.
    """
    version = checkpoint_version(directory)
    model: Model
    if is_export or directory.is_file() or (directory / MANIFEST).exists():
        from chatbot.export.exported import load_export

        directory = open_export(directory)
        manifest, settings, vocabulary, model, retrieval = load_export(directory)
        card = export_card(manifest)
        names = [manifest.attempt, directory.name]
    else:
        from chatbot.memory import let_gpu_memory_grow
        from chatbot.quiet import import_tensorflow

        import_tensorflow()
        let_gpu_memory_grow()
        # Each kind of search needs its own graph, and TensorFlow would warn that there are many graphs.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        from chatbot.attempts.trained import load_trained
        from chatbot.inference.tensorflow_model import TensorFlowModel

        trained = load_trained(directory)
        trained.model.freeze()
        model = TensorFlowModel(trained.model)
        settings = trained.settings
        vocabulary = trained.vocabulary
        retrieval = trained.retrieval
        card = attempt_card(directory, trained.step)
        names = [directory.name]
    if retrieval is not None and ratings is not None:
        retrieval = RatedRetrieval(retrieval, settings, ratings, *names)
    default = default_search(retrieval is not None)
    responder = TextResponder(model, vocabulary, settings, decoding, retrieval, default)
    engine = Engine(responder, most_waiting)
    return LoadedModel(directory, card, settings.encoding.history, responder, engine, version)


def pointer_path(directory: Path) -> Path:
    """Return the path of the file that changes whenever a model has a new checkpoint.

    For a training run, this file contains the name of the best checkpoint, or of the last one if there is no
    validation. For an exported model, it is the manifest.
    """
    return next((directory / name for name in (MANIFEST, BEST) if (directory / name).exists()), directory / LAST)


def checkpoint_version(directory: Path) -> Version | None:
    """Return the version of a model's checkpoint, or None if there is no checkpoint."""
    path = pointer_path(directory)
    try:
        status = path.stat()
    except OSError:
        return None
    return path.name, status.st_mtime_ns, status.st_size


class CurrentModel:
    """The model that answers questions in a terminal or a pipe. It can be replaced while the chat runs.

    Args:
        model: The model to start with.
        decoding: The user's decoding settings. See `load_model`.
        follow: Whether `update` loads newer checkpoints.
    """

    def __init__(self, model: LoadedModel, decoding: DecodingSettings, follow: bool = False) -> None:
        self.model = model
        self.decoding = decoding
        self._follow = follow

    @property
    def effective_decoding(self) -> DecodingSettings:
        """The user's decoding settings, completed with the defaults of the model."""
        return self.model.responder.completed(self.decoding)

    def set_decoding(self, decoding: DecodingSettings) -> None:
        """Change the decoding settings. Raises UserError if the model does not support them."""
        self.model.responder.completed(decoding)
        self.decoding = decoding

    def pieces(self, text: str, history: Sequence[str], last_reply: str, **fields: Any) -> Iterator[Piece]:
        """Ask a question, and yield parts of the replies as they are generated.

        Args:
            text: The text of the question.
            history: The earlier messages that the model reads along with the question.
            last_reply: The previous reply, even if it is missing from `history`.
            **fields: Other fields of `Question`. The default of `decoding` is `effective_decoding`.
        """
        return self.model.engine.pieces(
            Question(text, tuple(history), last_reply, **{"decoding": self.effective_decoding, **fields})
        )

    def close(self) -> None:
        """Stop the threads of the model."""
        self.model.engine.close()

    def switch(self, name: Path) -> None:
        """Switch to another model.

        Args:
            name: The name of a training run, or the folder of a training run or an exported model.

        Raises:
            UserError: If the model cannot be loaded or does not support the settings. The old model remains in use.
        """
        directory = name if (name / MANIFEST).exists() else trained_directory(str(name), "/model")
        self._replace(load_model(directory, self.decoding))

    def update(self, notify: Callable[[str], None]) -> None:
        """Load the newest checkpoint if it is newer than the loaded one.

        If loading fails, the loaded checkpoint remains in use, and the newer one is not tried again.

        Args:
            notify: Called with a one-line message that says whether loading succeeded.
        """
        directory = self.model.directory
        step = self.model.card.step
        version = checkpoint_version(directory)
        known_versions = self.model.version, self.model.rejected_version
        if not self._follow or (directory / MANIFEST).exists() or version in known_versions:
            return
        self.model.rejected_version = version
        try:
            if read_pointer(pointer_path(directory))["step"] == step:
                return
            model = load_model(directory, self.decoding)
        except UserError as error:
            notify(f"Warning: {error}")
            return
        if model.card.step == step:  # The newer checkpoint is damaged; `load_model` has printed a warning.
            model.engine.close()
            return
        self._replace(model)
        notify(f"Now using the checkpoint of step {model.card.step:,} instead of step {step:,}.")

    def _replace(self, model: LoadedModel) -> None:
        self.model.engine.close()
        self.model = model


def limit_threads() -> None:
    """Limit each operation of a model to half of the CPU cores, unless TF_NUM_INTRAOP_THREADS is set.

    Call this function before using TensorFlow or loading an exported model. Using fewer threads is faster, because
    decoding consists of many short operations, and synchronising threads takes longer than they save. On two cores,
    TensorFlow generates a reply with one thread in 55% to 90% of the time that it needs with two threads.
    """
    os.environ.setdefault(THREADS_VARIABLE, str(max(1, cores() // 2)))

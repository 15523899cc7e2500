"""A model for the faces of the chat, an attempt or an export, with what a user should know about it; and the one that
answers in a terminal or through a pipe, which may change.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.description import read_attempt
from chatbot.attempts.files import BEST, LAST, RETRIEVAL, learned_questions, trained_directory
from chatbot.config.attempts import RATINGS
from chatbot.config.decoding import DecodingSettings, default_search
from chatbot.config.export import THREADS_VARIABLE
from chatbot.config.run import RunSettings
from chatbot.corpus.workers import cores
from chatbot.decoding.interface import Model
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.export.manifest import MANIFEST, Manifest, folder_of
from chatbot.inference.engine import MOST_WAITING, Engine
from chatbot.inference.request import Piece, Question
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.rated_replies import RatedRetrieval

# What changes when a model has a newer checkpoint: the name of its pointer, and when and how it was written.
Version = tuple[str, int, int]


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What a model was trained on, and its quality."""

    name: str
    step: int  # of the checkpoint
    data: tuple[str, ...] = ()  # names of the files of training pairs; empty: not known
    pairs: int | None = None  # None: not known
    nats_per_character: float | None = None  # of the held-out pairs; None: not validated, or not known
    validated: bool = False
    format: str | None = None  # of an export
    questions: tuple[str, ...] = ()  # short ones that it has learned, to begin with

    def line(self) -> str:
        """Return the card as one line."""
        parts = [f"{self.name}: {self._pairs()}" if self.data else self.name, f"step {self.step:,}"]
        if self.nats_per_character is not None:
            parts.append(f"{self.nats_per_character:.3f} nats per character on held-out pairs")
        elif not self.validated:
            parts.append("not validated")
        if self.format is not None:
            parts.append(self.format)
        return "; ".join(parts)

    @property
    def sources(self) -> list[str]:
        """The names of the data for readers: those of the files without endings."""
        return [name.removesuffix(".gz").rpartition(".")[0] or name for name in self.data]

    def name_for_readers(self, name: str) -> str:
        """Return what readers call the model: `name`, or the data's name where nobody has chosen one."""
        return self.sources[0] if name == RunSettings.attempt and len(self.sources) == 1 else name

    def _pairs(self) -> str:
        pairs = "pairs" if self.pairs is None else counted(self.pairs, "pair")
        return f"{pairs} of {self.data[0] if len(self.data) == 1 else f'{len(self.data)} files'}"


def card_of_attempt(directory: Path, step: int) -> ModelCard:
    """Return the card of an attempt. step: of the checkpoint that was loaded."""
    attempt = read_attempt(directory)
    nats = attempt.best_nats_per_character
    questions = tuple(learned_questions(directory))
    facts = directory.name, step, attempt.data, attempt.pairs, nats
    return ModelCard(*facts, validated=nats is not None, questions=questions)


def card_of_export(manifest: Manifest) -> ModelCard:
    """Return the card of an export, which does not have the names of the files of training pairs."""
    of = manifest
    questions = tuple(manifest.questions)
    return ModelCard(of.attempt, of.step, validated=of.validated, format=of.format, questions=questions)


@dataclasses.dataclass(eq=False)
class LoadedModel:
    """A model in memory, which answers by its engine.

    directory: of the attempt or the export. turns: the number of turns before a question that it reads. responder: has
    the decoding settings of questions without their own. version: of the checkpoint, see `version_of`. The rest is what
    a server knows of its use of memory: users: requests that it answers. used: the end of the last one. is_retired:
    whether another one has taken its place. refused: the version of a newer checkpoint that could not be loaded.
    """

    directory: Path
    card: ModelCard
    turns: int
    responder: TextResponder
    engine: Engine
    version: Version | None = None
    bytes: int = 0
    users: int = 0
    used: float = 0.0
    is_retired: bool = False
    refused: Version | None = None


def load_chosen(attempt: str, export: str | None, decoding: DecodingSettings, ratings: Path = RATINGS) -> LoadedModel:
    """Load the export of --export, or without one the attempt of --attempt, as `load_model` does."""
    directory = trained_directory(attempt) if export is None else Path(export)
    return load_model(directory, decoding, ratings, is_export=export is not None)


def load_model(
    directory: Path,
    decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
    ratings: Path | None = RATINGS,
    most_waiting: int = MOST_WAITING,
    is_export: bool = False,
) -> LoadedModel:
    """Load an export, a folder or a zip, without TensorFlow, or the best checkpoint of an attempt.

    decoding: of questions that have none of their own, with the model's default search if it chooses none. ratings: the
    file whose ratings change what is looked up; None: there is none. most_waiting: as for `Engine`. is_export: whether
    it must be an export. Raises UserError for a missing or damaged directory, and for settings that the model does not
    admit.
    """
    version = version_of(directory)
    model: Model
    if is_export or directory.is_file() or (directory / MANIFEST).exists():
        from chatbot.export.runtime import load_export

        directory = folder_of(directory)
        manifest, settings, vocabulary, model, retrieval = load_export(directory)
        card = card_of_export(manifest)
        names = [manifest.attempt, directory.name]
    else:
        from chatbot.memory import let_gpu_memory_grow
        from chatbot.quiet import import_tensorflow

        import_tensorflow()
        let_gpu_memory_grow()
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of many graphs, but each setting has its own
        from chatbot.attempts.trained import load_trained
        from chatbot.inference.tensorflow_model import TensorFlowModel

        trained = load_trained(directory)
        trained.model.freeze()
        model = TensorFlowModel(trained.model)
        settings = trained.settings
        vocabulary = trained.vocabulary
        retrieval = trained.retrieval
        card = card_of_attempt(directory, trained.step)
        names = [directory.name]
    if retrieval is not None and ratings is not None:
        retrieval = RatedRetrieval(directory / RETRIEVAL, vocabulary, settings, ratings, *names)
    default = default_search(retrieval is not None)
    responder = TextResponder(model, vocabulary, settings, decoding, retrieval, default)
    engine = Engine(responder, most_waiting)
    return LoadedModel(directory, card, settings.encoding.history, responder, engine, version)


def pointer_of(directory: Path) -> Path:
    """Return the file of a model that changes with its checkpoint: with validation, the one that names the best."""
    return next((directory / name for name in (MANIFEST, BEST) if (directory / name).exists()), directory / LAST)


def version_of(directory: Path) -> Version | None:
    """Return what changes when a model has a newer checkpoint; None without one."""
    path = pointer_of(directory)
    try:
        status = path.stat()
    except OSError:
        return None
    return path.name, status.st_mtime_ns, status.st_size


class CurrentModel:
    """The model that answers, which may change, and the decoding settings of replies.

    decoding: as they were chosen. follow: whether `update` takes newer checkpoints.
    """

    def __init__(self, model: LoadedModel, decoding: DecodingSettings, follow: bool = False) -> None:
        self.model = model
        self.decoding = decoding
        self._follow = follow

    @property
    def used_decoding(self) -> DecodingSettings:
        """The settings of replies, with the model's default search if none was chosen."""
        return self.model.responder.completed(self.decoding)

    def set_decoding(self, decoding: DecodingSettings) -> None:
        """Set the settings of replies. Raises UserError for those that the model does not admit."""
        self.model.responder.completed(decoding)
        self.decoding = decoding

    def pieces(self, text: str, history: Sequence[str], last_reply: str, **fields: Any) -> Iterator[Piece]:
        """Ask, and yield the pieces of the replies. fields: of `Question`, by default with the settings of replies."""
        return self.model.engine.pieces(
            Question(text, tuple(history), last_reply, **{"decoding": self.used_decoding, **fields})
        )

    def close(self) -> None:
        """Compute nothing more."""
        self.model.engine.close()

    def switch(self, name: Path) -> None:
        """Take another model. name: of an attempt, or the directory of an attempt or an export.

        Raises UserError for a model that cannot be loaded or does not admit the settings; the old one stays.
        """
        directory = name if (name / MANIFEST).exists() else trained_directory(str(name), "/model")
        self._take(load_model(directory, self.decoding))

    def update(self, say: Callable[[str], None]) -> None:
        """Take a newer checkpoint if there is one. say: gets the line that says so, or why it cannot be loaded.

        Then the old one stays, and the next call does not try it again.
        """
        directory = self.model.directory
        step = self.model.card.step
        version = version_of(directory)
        if not self._follow or (directory / MANIFEST).exists() or version in (self.model.version, self.model.refused):
            return
        self.model.refused = version
        try:
            if read_pointer(pointer_of(directory))["step"] == step:
                return
            model = load_model(directory, self.decoding)
        except UserError as error:
            say(f"Warning: {error}")
            return
        if model.card.step == step:  # the newer one is damaged, as a warning has said
            model.engine.close()
            return
        self._take(model)
        say(f"The checkpoint of step {model.card.step:,} answers now, instead of that of step {step:,}.")

    def _take(self, model: LoadedModel) -> None:
        self.model.engine.close()
        self.model = model


def limit_threads() -> None:
    """Compute an operation of a model with half of the cores, unless the environment has TF_NUM_INTRAOP_THREADS.

    To be called before TensorFlow computes anything, and before an export is read. The operations of a reply are short,
    and threads that wait for each other take more time than they save: with one thread on two cores, a reply takes 0.55
    to 0.9 of the time with TensorFlow.
    """
    os.environ.setdefault(THREADS_VARIABLE, str(max(1, cores() // 2)))

"""A model for the faces of the chat: an attempt or an export, with what a user should know about it."""

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path

from chatbot.attempts.description import read_attempt
from chatbot.attempts.files import BEST, LAST, RETRIEVAL, learned_questions, trained_directory
from chatbot.attempts.settings import with_default_search
from chatbot.config.decoding import DecodingSettings
from chatbot.config.run import RunSettings
from chatbot.corpus.workers import cores
from chatbot.display import counted
from chatbot.export.manifest import MANIFEST, Manifest, folder_of
from chatbot.export.runtime import THREADS_VARIABLE, ExportedResponder, load_export
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.rated_replies import RatedRetrieval
from chatbot.retrieval.ratings import RATINGS


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


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model in memory.

    directory: of the attempt or the export. turns: the number of turns before a question that the model reads.
    responder_of: returns a responder for decoding settings, with the model's default search if they choose none. It
    raises UserError for settings that the model does not admit. All responders share the weights.
    """

    directory: Path
    card: ModelCard
    turns: int
    responder_of: Callable[[DecodingSettings], TextResponder]


def load_chosen(attempt: str, export: str | None, ratings: Path = RATINGS) -> LoadedModel:
    """Load the export of --export, or without one the attempt of --attempt, as `load_model` does."""
    return load_model(trained_directory(attempt), ratings) if export is None else load_exported(Path(export), ratings)


def load_model(directory: Path, ratings: Path | None = RATINGS) -> LoadedModel:
    """Load an export, or the best checkpoint of an attempt, by its directory.

    ratings: the file whose ratings change what is looked up; None: there is none. Raises UserError for a missing
    or damaged directory.
    """
    if directory.is_file() or (directory / MANIFEST).exists():
        return load_exported(directory, ratings)
    from chatbot.memory import let_gpu_memory_grow
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    let_gpu_memory_grow()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of many graphs, but each setting has its own
    from chatbot.attempts.trained import load_trained
    from chatbot.inference.responder import Responder, TensorFlowModel

    trained = load_trained(directory)
    trained.model.freeze()
    if trained.retrieval is not None and ratings is not None:
        of_attempt = trained.vocabulary, trained.settings, ratings, directory.name
        trained = dataclasses.replace(trained, retrieval=RatedRetrieval(directory / RETRIEVAL, *of_attempt))
    model = TensorFlowModel(trained.model)  # traced once for all settings
    return LoadedModel(
        directory,
        card_of_attempt(directory, trained.step),
        trained.settings.encoding.history,
        lambda decoding: Responder(trained, with_default_search(decoding, directory), model),
    )


def load_exported(folder: Path, ratings: Path | None = RATINGS) -> LoadedModel:
    """Load an export for ONNX Runtime, a folder or a zip, without TensorFlow. Raises UserError as `load_export`.

    ratings: as for `load_model`, of the attempt or of the export.
    """
    folder = folder_of(folder)
    export = load_export(folder)
    if export.retrieval is not None and ratings is not None:
        names = export.manifest.attempt, folder.name
        rated = RatedRetrieval(folder / RETRIEVAL, export.vocabulary, export.settings, ratings, *names)
        export = export._replace(retrieval=rated)
    card = card_of_export(export.manifest)
    turns = export.settings.encoding.history
    return LoadedModel(folder, card, turns, lambda decoding: ExportedResponder(export, decoding))


def pointer_of(directory: Path) -> Path:
    """Return the file of a model that changes with its checkpoint: with validation, the one that names the best."""
    return next((directory / name for name in (MANIFEST, BEST) if (directory / name).exists()), directory / LAST)


def version_of(directory: Path) -> tuple[str, int, int] | None:
    """Return what changes when a model has a newer checkpoint; None without one."""
    path = pointer_of(directory)
    try:
        status = path.stat()
    except OSError:
        return None
    return path.name, status.st_mtime_ns, status.st_size


def limit_threads() -> None:
    """Compute an operation of a model with half of the cores, unless the environment has TF_NUM_INTRAOP_THREADS.

    To be called before TensorFlow computes anything, and before an export is read. The operations of a reply are short,
    and threads that wait for each other take more time than they save: with one thread on two cores, a reply takes 0.55
    to 0.9 of the time with TensorFlow.
    """
    os.environ.setdefault(THREADS_VARIABLE, str(max(1, cores() // 2)))

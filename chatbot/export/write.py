"""Writes the export of an attempt: a folder that is complete or absent."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from chatbot.config.attempts import CONFIG, DICTIONARY, NGRAMS, VOCABULARY, is_validated
from chatbot.config.default_search import with_default_search
from chatbot.config.export import FLOAT32, ONNX, SAVEDMODEL, ExportSettings
from chatbot.config.model import ModelSettings
from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.corpus.encoding.corpus import encode
from chatbot.corpus.encoding.history import History
from chatbot.corpus.encoding.ngrams import Ngrams, load_ngrams
from chatbot.corpus.encoding.selection import Selection
from chatbot.corpus.encoding.shards import Shards
from chatbot.corpus.encoding.tokenised import corpus_files
from chatbot.corpus.reading.files.sources import find_parts
from chatbot.corpus.text.utterance import without_pair_rules
from chatbot.corpus.training_set import validation_set
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.export.graphs import plain_model
from chatbot.export.manifest import Manifest, size_of, write_manifest
from chatbot.export.rounding import Stored, restored, stored
from chatbot.flags import fields_of
from chatbot.model.saved import Trained, load_trained

# The settings that an answer depends on; the others, such as the paths of the training data, stay with the attempt.
KEPT = {*fields_of(ModelSettings), "clean", "tokenizer", "history", "both_directions"} - {"word_vectors"}


def export(settings: ExportSettings, directory: Path, folder: Path) -> None:
    """Export the attempt in a directory to a new folder, and print its size and the loss of its weights.

    Raises UserError for an attempt that cannot be read or exported, and for a package that is missing.
    """
    write = _writer(settings.format)
    trained = load_trained(directory)
    losses = _Losses(trained, settings)
    before = losses.measured() if settings.weights != FLOAT32 else None
    weights = _rounded(trained, settings.weights)
    after = losses.measured()
    order = trained.settings.model.ngrams
    ngrams = load_ngrams(directory / NGRAMS, len(trained.vocabulary), order) if order else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        write(_Job(part, trained, ngrams, weights, settings, directory))
        manifest = Manifest(settings.format, settings.weights, directory.name, trained.step, is_validated(directory))
        write_manifest(part, manifest)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    print(f"{folder}: {settings.format}, weights in {settings.weights}, {size_of(folder) / 1e6:.1f} MB")
    print(losses.line(before, after))


@dataclasses.dataclass(frozen=True)
class _Job:
    """What a format is written from. The weights of the trained model have the values that are stored."""

    folder: Path
    trained: Trained
    ngrams: Ngrams | None
    weights: list[Stored]
    settings: ExportSettings
    directory: Path


def _writer(name: str) -> Callable[[_Job], None]:
    """Return the function that writes a format. Raises UserError if a package that it needs is missing."""
    try:
        if name == SAVEDMODEL:
            return _write_savedmodel
        if name == ONNX:
            import onnx  # noqa: F401
            import tf2onnx  # noqa: F401

            return _write_onnx
        return _write_litert
    except ModuleNotFoundError as error:
        remedy = f"run `pip install 'chatbot[{name}]'`"
        raise UserError(f"--format {name}: {error.name} is not installed; {remedy}") from None


def _write_onnx(job: _Job) -> None:
    from chatbot.export.onnx_format import write_onnx

    write_onnx(job.folder, plain_model(job.trained), job.trained.settings.model, job.weights)
    _write_texts(job)


def _write_litert(job: _Job) -> None:
    from chatbot.export.litert_format import write_litert

    write_litert(job.folder, plain_model(job.trained), job.trained.settings.model, job.settings.weights)
    _write_texts(job)


def _write_savedmodel(job: _Job) -> None:
    from chatbot.export.savedmodel_format import write_savedmodel

    decoding = with_default_search(job.settings.decoding, job.directory)
    write_savedmodel(job.folder, job.trained, job.ngrams, job.weights, decoding)


def _write_texts(job: _Job) -> None:
    """Write what the runtime needs beside the graphs."""
    folder, settings = job.folder, job.trained.settings
    values = {name: value for name, value in storable(settings).items() if name in KEPT}
    if settings.corpus.dictionary is not None:
        values["dictionary"] = DICTIONARY
        shutil.copyfile(settings.corpus.dictionary, folder / DICTIONARY)
    (folder / CONFIG).write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / VOCABULARY).write_bytes(job.trained.vocabulary.content())
    if job.ngrams is not None:
        (folder / NGRAMS).write_bytes(job.ngrams.content())


def _rounded(trained: Trained, kind: str) -> list[Stored]:
    """Return the weights as they are stored, and set those of the model to the same values."""
    weights = []
    for variable in trained.model.trainable_variables:
        rows = variable.name in ("embeddings", "projection")
        weights.append(stored(variable.numpy(), kind, rows))
        variable.assign(restored(weights[-1]))
    return weights


class _Losses:
    """Measures the loss of a model on held-out pairs, which are read once."""

    def __init__(self, trained: Trained, settings: ExportSettings) -> None:
        self._scorer = Scorer(trained.model)
        self._reason = ""
        self._shards: Shards | None = None
        try:
            self._shards = _held_out(trained, settings)
        except UserError as error:
            if settings.data:
                raise
            self._reason = f"the attempt's validation pairs cannot be read ({error})"
        if self._shards is None and not self._reason:
            self._reason = "the attempt has no validation pairs"

    def measured(self) -> float | None:
        """Return the nats per character, by the weights that the model has now; None without pairs."""
        return None if self._shards is None else self._scorer(self._shards).nats_per_character

    def line(self, before: float | None, after: float | None) -> str:
        """Return the line about the loss. before: with the weights in float32, if they are now rounded."""
        if after is None:
            return f"No loss was measured: {self._reason}; give pairs with --data FILE."
        assert self._shards is not None
        change = "" if before is None else f", {after - before:+.4f} against float32"
        return f"{after:.4f} nats per character on {self._shards.lengths.pairs:,} held-out pairs{change}"


def _held_out(trained: Trained, settings: ExportSettings) -> Shards | None:
    """Return the pairs of --data, or those that the attempt was validated on; None if it has none."""
    attempt: Settings = trained.settings
    vocabulary, max_length = trained.vocabulary, attempt.model.max_length
    if settings.data:
        corpus = dataclasses.replace(without_pair_rules(attempt.corpus), columns=(), encoding=None, format=None)
        files = corpus_files(find_parts(settings.data).measured, corpus, attempt.encoding.history)
        return encode(files, Selection(), vocabulary, History(attempt.encoding.history, max_length)).shards
    held_out = validation_set(attempt.corpus, attempt.encoding, vocabulary, max_length)
    return None if held_out is None else held_out.shards

"""Writes an export atomically, and measures the loss of the exported weights."""

import contextlib
import hashlib
import shutil
from pathlib import Path

from chatbot.attempts.files import CONFIG, DICTIONARY, NGRAMS, RETRIEVAL, VOCABULARY, is_validated, learned_questions
from chatbot.attempts.settings import stored_values, with_default_search
from chatbot.attempts.trained import Trained, load_trained
from chatbot.config.corpus import FileSettings
from chatbot.config.export import ONNX, SAVEDMODEL, TRANSFORMERS, ExportSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.dataset import encode, validation_set
from chatbot.corpus.files import corpus_files, with_file_settings
from chatbot.corpus.reading.sources import find_parts
from chatbot.corpus.selection import Selection
from chatbot.corpus.shards import Shards
from chatbot.corpus.tokenizer import without_pair_rules
from chatbot.display import pluralize
from chatbot.durable import replacing, size_of, unused_name, write_json
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.export.manifest import Manifest, write_manifest, write_zip
from chatbot.export.model import Stored, plain_model, restore_weight, store_weight
from chatbot.export.transformers_format import write_transformers
from chatbot.flags import flags_of

# Only the settings that affect replies are exported. Others, such as the paths of the training data, are not.
EXPORTED = {*flags_of(ModelSettings), "form", "clean", "tokenizer", "history", "both_directions"} - {"word_vectors"}


def export(settings: ExportSettings, directory: Path, path: Path) -> None:
    """Export an attempt to a folder or a zip file, and print its size and loss. An existing export is replaced.

    Args:
        settings: The settings of the export.
        directory: The folder of the attempt.
        path: The folder or zip file to write.

    Raises:
        UserError: The attempt cannot be read or exported, or a package is not installed.
    """
    part = unused_name(path)
    part.mkdir(parents=True)  # Fail early if the path is not writable.
    try:
        line = _export_to(part, settings, directory)
        if settings.zip is None:
            before = unused_name(path)
            if path.exists():
                path.rename(before)
            part.rename(path)
            shutil.rmtree(before, ignore_errors=True)
        else:
            with replacing(path) as file:
                write_zip(part, file)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f"{path}: {settings.format}, weights in {settings.weights}, {size_of(path) / 1e6:.1f} MB")
    if settings.zip is not None:
        print(f"SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    print(line)


def _export_to(folder: Path, settings: ExportSettings, directory: Path) -> str:
    """Write all files of an export to an empty folder, and return a line that reports the loss."""
    trained = load_trained(directory)
    pairs = held_out_pairs(trained, settings)
    scorer = Scorer(trained.model)
    weights = _round_weights(trained, settings.weights)
    if settings.format == TRANSFORMERS:
        write_transformers(folder, trained)
    elif settings.format == SAVEDMODEL:
        from chatbot.export.savedmodel_format import write_savedmodel

        write_savedmodel(folder, trained, weights, with_default_search(settings.decoding, directory))
    else:
        assert settings.format == ONNX
        from chatbot.export.onnx_format import write_onnx

        write_onnx(folder, plain_model(trained), weights)
        _write_texts(folder, trained)
        if (directory / RETRIEVAL).exists():
            shutil.copytree(directory / RETRIEVAL, folder / RETRIEVAL, ignore=shutil.ignore_patterns("*.part"))
    learned = learned_questions(directory)
    facts = settings.format, settings.weights, directory.name, trained.step, is_validated(directory), learned
    write_manifest(folder, Manifest(*facts))
    return _loss_line(pairs, scorer)


def _loss_line(pairs: Shards | None, scorer: Scorer) -> str:
    """Return a line that reports the loss of the exported weights."""
    if pairs is None:
        return "No loss was measured: the attempt has no readable validation pairs; add some with --data FILE."
    loss = scorer(pairs).nats_per_character
    return f"{loss:.4f} nats per character on {pluralize(pairs.lengths.pairs, 'held-out pair')}"


def _write_texts(folder: Path, trained: Trained) -> None:
    """Write the settings, the vocabulary and the n-grams of an ONNX export."""
    values = {name: value for name, value in stored_values(trained.settings).items() if name in EXPORTED}
    if trained.settings.corpus.dictionary is not None:
        values["dictionary"] = DICTIONARY
        shutil.copyfile(trained.settings.corpus.dictionary, folder / DICTIONARY)
    write_json(folder / CONFIG, values)
    (folder / VOCABULARY).write_bytes(trained.vocabulary.content())
    if trained.model.ngrams is not None:
        (folder / NGRAMS).write_bytes(trained.model.ngrams.ngrams.content())


def _round_weights(trained: Trained, kind: str) -> list[Stored]:
    """Convert the weights to the dtype of the export, and set the model's weights to the rounded values."""
    weights = []
    for variable in trained.model.trainable_variables:
        rows = variable.name in ("embeddings", "projection")
        weights.append(store_weight(variable.numpy(), kind, rows))
        variable.assign(restore_weight(weights[-1]))
    return weights


def held_out_pairs(trained: Trained, settings: ExportSettings) -> Shards | None:
    """Return the pairs of --data or, by default, the attempt's validation pairs. None if neither is available.

    Raises:
        UserError: The files of --data cannot be read.
    """
    attempt: Settings = trained.settings
    vocabulary = trained.vocabulary
    max_length = attempt.model.max_length
    if settings.data:
        corpus = with_file_settings(without_pair_rules(attempt.corpus), FileSettings())
        files = corpus_files(find_parts(settings.data).measured, corpus)
        return encode(files, Selection(), vocabulary, attempt.encoding.history, max_length).shards
    with contextlib.suppress(UserError):
        held_out = validation_set(attempt.corpus, attempt.encoding, vocabulary, max_length)
        return None if held_out is None else held_out.shards
    return None

"""Loads an ONNX export without TensorFlow."""

from pathlib import Path
from typing import NamedTuple

from chatbot.attempts.files import CONFIG, DICTIONARY, NGRAMS, RETRIEVAL, VOCABULARY
from chatbot.attempts.settings import stored_settings
from chatbot.config.export import ONNX
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import Vocabulary, load_vocabulary
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import load_ngrams
from chatbot.errors import UserError
from chatbot.export.manifest import Manifest, read_manifest, unreadable_export
from chatbot.flags import replace
from chatbot.inference.onnx_model import OnnxModel
from chatbot.retrieval.index import Retrieval, load_retrieval


class Export(NamedTuple):
    """A loaded ONNX export."""

    manifest: Manifest
    settings: Settings
    vocabulary: Vocabulary
    model: OnnxModel
    retrieval: Retrieval | None  # index of the training pairs, if the attempt has one


def load_export(folder: Path) -> Export:
    """Load an ONNX export. Only its graphs are executed, so an export cannot run other code.

    Raises:
        UserError: The folder is missing or damaged or contains no ONNX export, or a package is not installed.
    """
    manifest = read_manifest(folder)
    if manifest.format != ONNX:
        raise UserError(
            f"{folder}: chat.py cannot read the format {manifest.format}; talk to the attempt with --attempt, or "
            "export it with --format onnx"
        )
    settings = stored_settings(folder / CONFIG)
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(folder.absolute() / DICTIONARY))
    vocabulary = load_vocabulary(folder / VOCABULARY)
    mixture = None
    if order := settings.model.ngrams:
        mixture = NgramMixture(load_ngrams(folder / NGRAMS, len(vocabulary), order), settings.model.ngram_weight)
    try:
        model = OnnxModel(folder, mixture)
    except UserError:
        raise
    except Exception as error:  # ONNX Runtime raises various subclasses of Exception.
        raise unreadable_export(folder, error) from None
    return Export(manifest, settings, vocabulary, model, load_retrieval(folder / RETRIEVAL, vocabulary))

"""An export as a responder, for chat.py --export."""

from pathlib import Path
from typing import NamedTuple

from chatbot.config.attempts import CONFIG, DICTIONARY, NGRAMS, VOCABULARY
from chatbot.config.decoding import DecodingSettings, default_search, over_default
from chatbot.config.export import ONNX
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.ngrams import load_ngrams
from chatbot.corpus.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.export.manifest import Manifest, read_manifest
from chatbot.export.runtime.ngram_mixture import NgramMixture
from chatbot.export.runtime.onnx_model import OnnxModel
from chatbot.export.runtime.replier import ExportedReplier
from chatbot.flags import replace
from chatbot.inference.ranking import for_attempt
from chatbot.inference.text_responder import TextResponder


class Export(NamedTuple):
    """An export that has been read."""

    manifest: Manifest
    settings: Settings
    vocabulary: Vocabulary
    model: OnnxModel


def load_export(folder: Path) -> Export:
    """Read an export for ONNX Runtime. Nothing in its files is executed but their graphs.

    Raises UserError for a folder that is missing, damaged, or no such export, and for a package that is missing.
    """
    manifest = read_manifest(folder)
    if manifest.format != ONNX:
        raise UserError(
            f"--export {folder}: a SavedModel, which TensorFlow answers from (docs/export.md); talk to the attempt "
            "with --attempt, or export it with --format onnx"
        )
    settings = stored_settings(folder / CONFIG)
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(folder.absolute() / DICTIONARY))
    vocabulary = load_vocabulary(folder / VOCABULARY)
    mixture = None
    if order := settings.model.ngrams:
        mixture = NgramMixture(load_ngrams(folder / NGRAMS, len(vocabulary), order), settings.model.ngram_weight)
    return Export(manifest, settings, vocabulary, OnnxModel(folder, mixture))


class ExportedResponder(TextResponder):
    """Answers questions in text form by an export; it is used as `chatbot.inference.responder.Responder`.

    decoding: the search of the export's attempt, if it chooses none. Raises UserError for decoding settings that the
    attempt does not admit.
    """

    def __init__(self, export: Export, decoding: DecodingSettings) -> None:
        _, settings, vocabulary, model = export
        both_directions = settings.learning.both_directions == "on"
        decoding = over_default(decoding, default_search(export.manifest.validated, both_directions))
        replier = ExportedReplier(model, vocabulary, settings.model, for_attempt(decoding, settings))
        shown = settings.model.attention != "none" and not settings.model.input_feeding
        super().__init__(replier, vocabulary, settings, replier.attention if shown else None)

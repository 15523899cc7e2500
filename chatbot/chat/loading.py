"""A model for the faces of the chat: an attempt or an export, with the searches that it admits."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from chatbot.chat.model_card import ModelCard, card_of_attempt, card_of_export
from chatbot.config.decoding import DecodingSettings
from chatbot.config.default_search import with_default_search
from chatbot.export.manifest import MANIFEST
from chatbot.export.runtime.load import ExportedResponder, load_export
from chatbot.inference.text_responder import TextResponder


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


def load_model(directory: Path) -> LoadedModel:
    """Load an attempt or an export by its directory. Raises UserError for a missing or damaged one."""
    return load_exported(directory) if (directory / MANIFEST).exists() else load_attempt(directory)


def load_attempt(directory: Path) -> LoadedModel:
    """Load the best checkpoint in the directory of an attempt. Raises UserError as `load_trained`."""
    from chatbot.quiet import import_tensorflow, let_gpu_memory_grow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.inference.responder import Responder
    from chatbot.inference.tensor_rows import TensorRows
    from chatbot.model.saved import load_trained

    trained = load_trained(directory)
    rows = functools.cache(lambda: TensorRows(trained.model))  # traced once for all settings
    return LoadedModel(
        directory,
        card_of_attempt(directory, trained.step),
        trained.settings.encoding.history,
        lambda decoding: Responder(trained, with_default_search(decoding, directory), rows),
    )


def load_exported(folder: Path) -> LoadedModel:
    """Load an export for ONNX Runtime, without TensorFlow. Raises UserError as `load_export`."""
    export = load_export(folder)
    manifest = export.manifest
    card = card_of_export(manifest.attempt, manifest.step, manifest.validated, manifest.format)
    turns = export.settings.encoding.history
    return LoadedModel(folder, card, turns, lambda decoding: ExportedResponder(export, decoding))

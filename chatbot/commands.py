"""The commands. Each function parses the flags before it imports TensorFlow, and returns the exit code.

`train.py` and `chat.py` call these functions, and so do the installed commands `chatbot-train`, `chatbot-chat`,
`chatbot-data` and `chatbot-attempts`.
"""

from pathlib import Path

from chatbot.config.attempts import trained_directory
from chatbot.config.chat import ChatSettings, chat_settings
from chatbot.config.default_search import with_default_search
from chatbot.config.stored import train_settings
from chatbot.errors import exit_code_of


def train() -> int:
    """Train a chatbot on question-answer pairs."""
    return exit_code_of(_train)


def chat() -> int:
    """Talk to a trained chatbot."""
    return exit_code_of(_chat)


def data() -> int:
    """Inspect or encode a corpus; equal to `python -m chatbot.corpus`."""
    from chatbot.corpus.__main__ import main

    return exit_code_of(main)


def attempts() -> int:
    """List, compare, prune, rename or average attempts; equal to `python -m chatbot.attempts`."""
    from chatbot.attempts.__main__ import main

    return exit_code_of(main)


def _train() -> int:
    settings = train_settings()
    from chatbot.training.start import start

    return start(settings)


def _chat() -> int:
    settings = chat_settings()
    if settings.export is not None:
        return _chat_with_export(settings, Path(settings.export))
    directory = trained_directory(settings.attempt)
    decoding = with_default_search(settings.decoding, directory)
    from chatbot.quiet import import_tensorflow, let_gpu_memory_grow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.chat.terminal import chat
    from chatbot.inference.responder import Responder
    from chatbot.model.saved import load_trained

    trained = load_trained(directory)
    history = settings.turns_of(trained.settings.encoding.history)
    return chat(Responder(trained, decoding), f"{settings.attempt} (step {trained.step:,})", history)


def _chat_with_export(settings: ChatSettings, folder: Path) -> int:
    """Talk to an export. Nothing here imports TensorFlow."""
    from chatbot.chat.terminal import chat
    from chatbot.export.runtime.load import ExportedResponder, load_export

    export = load_export(folder)
    history = settings.turns_of(export.settings.encoding.history)
    name = f"{export.manifest.attempt} (step {export.manifest.step:,}, {export.manifest.format})"
    return chat(ExportedResponder(export, settings.decoding), name, history)

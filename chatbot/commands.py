"""The commands. Each function parses the flags before it imports TensorFlow, and returns the exit code.

`train.py` and `chat.py` call these functions, and so do the installed commands `chatbot-train`, `chatbot-chat`,
`chatbot-data`, `chatbot-attempts` and `chatbot-export`.
"""

from chatbot.config.chat import ChatSettings, chat_settings
from chatbot.config.stored import train_settings
from chatbot.errors import UserError, exit_code_of


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
    """List, compare, prune or rename attempts; equal to `python -m chatbot.attempts`."""
    from chatbot.attempts.__main__ import main

    return exit_code_of(main)


def export() -> int:
    """Write a trained chatbot in another format; equal to `python -m chatbot.export`."""
    from chatbot.export.__main__ import main

    return exit_code_of(main)


def _train() -> int:
    settings = train_settings()
    from chatbot.training.start import start

    return start(settings)


def _chat() -> int:
    settings = chat_settings()
    from chatbot.chat.loading import limit_threads, load_chosen

    limit_threads()
    if settings.server.serve is not None:
        return _serve(settings)
    from chatbot.chat.terminal.start import chat

    model = load_chosen(settings.attempt, settings.export)
    settings.turns_of(model.turns)  # or UserError
    return chat(model, settings)


def _serve(settings: ChatSettings) -> int:
    try:
        from chatbot.chat.server.run import serve
    except ModuleNotFoundError as error:
        raise UserError(f'--serve: {error}; run `make serve`, or pip install "chatbot[serve]"') from error

    return serve(settings)

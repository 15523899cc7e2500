"""Starts a chat in a terminal or through a pipe, the reply to one question, or the server."""

from chatbot.chat.loading import limit_threads, load_chosen
from chatbot.config.chat import ChatSettings
from chatbot.errors import UserError


def start(settings: ChatSettings) -> int:
    """Talk, answer or serve, as the settings say, and return the exit code. Raises UserError."""
    limit_threads()
    if settings.server.serve is not None:
        try:
            from chatbot.chat.server.run import serve
        except ModuleNotFoundError as error:
            raise UserError(f'--serve: {error}; run `make serve`, or pip install "duida[serve]"') from error
        return serve(settings)
    from chatbot.chat.terminal.start import ask, chat

    model = load_chosen(settings.attempt, settings.export)
    settings.turns_of(model.turns)  # or UserError
    return ask(model, settings) if settings.question else chat(model, settings)

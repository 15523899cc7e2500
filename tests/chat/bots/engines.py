"""Stand-ins for the engine."""

from collections.abc import Callable
from typing import Any

from chatbot.chat.bots.conversations import Conversations
from chatbot.config.bots import BotSettings
from chatbot.flags import compose
from chatbot.inference.questions import Piece, Question, Receive, Request, Usage


def echo(question: Question, receive: Receive) -> Request:
    """Replies with the history and the question, in two pieces."""
    for text in ("".join(f"{turn}/" for turn in question.history), question.text):
        receive(Piece(0, text))
    receive(Usage(1, 2))
    return Request(question, receive)


def conversations(
    submit: Callable[[Question, Receive], Request] = echo, turns: int = 2, **settings: Any
) -> Conversations:
    """The conversations of a bot with these settings."""
    return Conversations(submit, compose(BotSettings, **settings), "talk", 9000, turns)

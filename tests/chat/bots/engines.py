"""The conversations of a bot with an engine that is none."""

from collections.abc import Iterator
from typing import Any

from chatbot.chat.bots.conversations import Conversations
from chatbot.config.bots import BotSettings
from chatbot.flags import compose
from chatbot.inference.questions import Message, Piece, Question, Usage
from tests.chat.server.fake_models import FakeEngine


def echo(question: Question) -> Iterator[Message]:
    """Reply with the history and the question, in two pieces."""
    for text in ("".join(f"{turn}/" for turn in question.history), question.text):
        yield Piece(0, text)
    yield Usage(1, 2)


def conversations(engine: FakeEngine | None = None, turns: int = 2, **settings: Any) -> Conversations:
    """The conversations of a bot with these settings, by default with an echo."""
    submit = (engine or FakeEngine(echo)).submit
    return Conversations(submit, compose(BotSettings, token_file="token", **settings), "talk", 9000, turns)

"""A conversation with a model: questions, their replies, and what the next reply may depend on."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatbot.decoding.reply_text import Origin
from chatbot.retrieval.ratings import Rating, append_rating, rating_of


@dataclasses.dataclass
class Exchange:
    """A question and its reply.

    before: the turns that the model read before the question. replies: all replies to it so far, with `reply` the last.
    rated: the record of the reply's rating in the file of ratings; None if it is not rated. model: the name of the one
    that replied; empty if it is not known. origin: None if it is not known.
    """

    question: str
    reply: str
    before: tuple[str, ...] = ()
    replies: list[str] = dataclasses.field(default_factory=list)
    rated: Mapping[str, Any] | None = None
    model: str = ""
    origin: Origin | None = None

    @property
    def rating(self) -> Rating | None:
        """The rating of the reply."""
        return None if self.rated is None else self.rated["rating"]

    def replace(self, reply: str, before: tuple[str, ...], model: str) -> None:
        """Replace the reply by another one, which is not rated yet. before, model: of the new one."""
        self.reply = reply
        self.before = before
        self.model = model
        self.rated = None
        self.origin = None
        self.replies.append(reply)


class Conversation:
    """The questions and replies of a chat. read: the maximum number of turns that the model reads before a question."""

    def __init__(self, read: int) -> None:
        self.read = read
        self.exchanges: list[Exchange] = []

    @property
    def last(self) -> Exchange | None:
        """The last question and its reply."""
        return self.exchanges[-1] if self.exchanges else None

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns that the model reads before the next question, the oldest first."""
        return self._turns_before(len(self.exchanges))

    @property
    def last_reply(self) -> str:
        """The reply before the next question, whatever the model reads; "" before the first one."""
        return self._reply_before(len(self.exchanges))

    @property
    def turns_before_last(self) -> tuple[str, ...]:
        """The turns that the model reads before the last question if it answers that again."""
        return self._turns_before(len(self.exchanges) - 1)

    @property
    def reply_before_last(self) -> str:
        """The reply before the last question; "" if that is the first one."""
        return self._reply_before(len(self.exchanges) - 1)

    def _reply_before(self, number: int) -> str:
        return self.exchanges[number - 1].reply if number else ""

    def _turns_before(self, number: int) -> tuple[str, ...]:
        """Return the turns that the model reads before a question. number: of the questions before it."""
        exchanges = self.exchanges[max(0, number - (self.read + 1) // 2) : number]
        turns = [turn for exchange in exchanges for turn in (exchange.question, exchange.reply)]
        return tuple(turns[max(0, len(turns) - self.read) :])

    @property
    def turns_to_learn(self) -> list[str]:
        """The turns that the model read before the last question, from a question on, after the last bad reply.

        Training learns those replies, too.
        """
        *before, last = self.exchanges
        read = before[max(0, len(before) - len(last.before) // 2) :]
        bad = max((number for number, exchange in enumerate(read, 1) if exchange.rating == "bad"), default=0)
        return [turn for exchange in read[bad:] for turn in (exchange.question, exchange.reply)]

    def add(
        self,
        question: str,
        reply: str,
        model: str = "",
        rated: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Add a question and its reply. model, rated, origin: as in `Exchange`."""
        self.exchanges.append(Exchange(question, reply, self.turns, [reply], rated, model, origin))


def rate_last(path: Path, conversation: Conversation, rating: Rating, model: str, client: str | None = None) -> None:
    """Append a rating of the last reply of a conversation to a file; it replaces another rating of this reply.

    model: its name. client: who rates; None: the operator. Raises UserError if the rating cannot be written.
    """
    last = conversation.last
    assert last is not None
    if last.rating != rating:
        written_to = "" if last.origin is None else last.origin.question
        history = conversation.turns_to_learn
        record = rating_of(last.question, last.reply, history, rating, model, client, written_to=written_to)
        append_rating(path, record, last.rated)
        last.rated = record

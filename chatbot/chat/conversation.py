"""Stores the questions, replies and ratings of a conversation with a model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatbot.decoding.reply_text import Origin
from chatbot.retrieval.ratings import Rating, append_rating, rating_record


@dataclasses.dataclass
class Exchange:
    """A question and its reply.

    Attributes:
        question: The user's question.
        reply: The current reply, which is the last element of `replies`.
        history: The earlier messages that the model read along with the question, oldest first.
        replies: All replies to this question. There are several if the user asked for another reply.
        stored_rating: The JSON object with the rating in the ratings file; None if the reply is not rated.
        model: The name of the model that generated the reply; empty if unknown.
        origin: Whether the reply was generated or retrieved, and from where; None if unknown.
    """

    question: str
    reply: str
    history: tuple[str, ...] = ()
    replies: list[str] = dataclasses.field(default_factory=list)
    stored_rating: Mapping[str, Any] | None = None
    model: str = ""
    origin: Origin | None = None

    @property
    def rating(self) -> Rating | None:
        """The rating of the reply."""
        return None if self.stored_rating is None else self.stored_rating["rating"]

    def replace_reply(self, reply: str, history: tuple[str, ...], model: str) -> None:
        """Replace the reply with a new reply, and remove the rating."""
        self.reply = reply
        self.history = history
        self.model = model
        self.stored_rating = None
        self.origin = None
        self.replies.append(reply)


class Conversation:
    """The questions and replies of a chat.

    Args:
        max_turns: The maximum number of earlier messages that the model reads along with a question.
    """

    def __init__(self, max_turns: int) -> None:
        self.max_turns = max_turns
        self.exchanges: list[Exchange] = []

    @property
    def last(self) -> Exchange | None:
        """The last question and its reply, or None if the conversation is empty."""
        return self.exchanges[-1] if self.exchanges else None

    def context(self, end: int | None = None) -> tuple[tuple[str, ...], str]:
        """Return the earlier messages that the model reads along with a question, and the previous reply.

        Args:
            end: The index of the question. -1 refers to the last question, and None to the next question.

        Returns:
            At most `max_turns` earlier messages, oldest first, and the previous reply. The previous reply is returned
            even if `max_turns` is 0. It is "" for the first question.
        """
        exchanges = self.exchanges[:end]
        last_exchanges = exchanges[max(0, len(exchanges) - (self.max_turns + 1) // 2) :]
        turns = [turn for exchange in last_exchanges for turn in (exchange.question, exchange.reply)]
        return tuple(turns[max(0, len(turns) - self.max_turns) :]), exchanges[-1].reply if exchanges else ""

    @property
    def history_to_learn(self) -> list[str]:
        """The earlier messages to store with a rating of the last reply.

        These are the messages that the model read, except those up to the last reply that was rated bad. They are left
        out because ratings are used for training, which also learns the replies in the history.
        """
        *previous, last = self.exchanges
        exchanges = previous[max(0, len(previous) - len(last.history) // 2) :]
        start = max((number for number, exchange in enumerate(exchanges, 1) if exchange.rating == "bad"), default=0)
        return [turn for exchange in exchanges[start:] for turn in (exchange.question, exchange.reply)]

    def add(
        self,
        question: str,
        reply: str,
        model: str = "",
        stored_rating: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Append a question and its reply. The arguments are described in `Exchange`."""
        history, _ = self.context()
        self.exchanges.append(Exchange(question, reply, history, [reply], stored_rating, model, origin))


def rate_last(path: Path, conversation: Conversation, rating: Rating, model: str, client: str | None = None) -> None:
    """Append a rating of the last reply to the ratings file. It replaces any earlier rating of this reply.

    Args:
        path: The ratings file.
        conversation: A conversation with at least one reply.
        rating: The new rating.
        model: The name of the model that generated the reply.
        client: The name of the client that rated the reply; None for the person who runs the model.

    Raises:
        UserError: If the rating cannot be written.
    """
    last = conversation.last
    assert last is not None
    if last.rating != rating:
        written_to = "" if last.origin is None else last.origin.question
        history = conversation.history_to_learn
        record = rating_record(last.question, last.reply, history, rating, model, client, written_to=written_to)
        append_rating(path, record, last.stored_rating)
        last.stored_rating = record

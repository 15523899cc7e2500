"""A conversation with a model: questions, their replies, and what the next reply may depend on."""

import dataclasses

from chatbot.chat.ratings import Rating


@dataclasses.dataclass
class Exchange:
    """A question and its reply.

    before: the turns that the model read before the question. found: all replies to it so far, with `reply` the last.
    """

    question: str
    reply: str
    before: tuple[str, ...] = ()
    found: list[str] = dataclasses.field(default_factory=list)
    rating: Rating | None = None

    def replace(self, reply: str) -> None:
        """Replace the reply by another one, which is not rated yet."""
        self.reply, self.rating = reply, None
        self.found.append(reply)


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
        exchanges = self.exchanges[max(0, len(self.exchanges) - (self.read + 1) // 2) :]
        turns = [turn for exchange in exchanges for turn in (exchange.question, exchange.reply)]
        return tuple(turns[max(0, len(turns) - self.read) :])

    def add(self, question: str, reply: str) -> None:
        """Add a question and its reply."""
        self.exchanges.append(Exchange(question, reply, self.turns, [reply]))

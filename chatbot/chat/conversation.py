"""A conversation with a model: questions, their replies, and what the next reply may depend on."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Rating = Literal["good", "bad"]


@dataclasses.dataclass
class Exchange:
    """A question and its reply.

    before: the turns that the model read before the question. found: all replies to it so far, with `reply` the last.
    rated: the record of the reply's rating in the file of ratings; None if it is not rated. model: the name of the one
    that replied; empty if it is not known.
    """

    question: str
    reply: str
    before: tuple[str, ...] = ()
    found: list[str] = dataclasses.field(default_factory=list)
    rated: Mapping[str, Any] | None = None
    model: str = ""

    @property
    def rating(self) -> Rating | None:
        """The rating of the reply."""
        return None if self.rated is None else self.rated["rating"]

    def replace(self, reply: str, before: tuple[str, ...], model: str) -> None:
        """Replace the reply by another one, which is not rated yet. before, model: of the new one."""
        self.reply, self.before, self.model, self.rated = reply, before, model, None
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
        return self._turns_before(len(self.exchanges))

    @property
    def turns_before_last(self) -> tuple[str, ...]:
        """The turns that the model reads before the last question if it answers that again."""
        return self._turns_before(len(self.exchanges) - 1)

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

    def add(self, question: str, reply: str, model: str = "", rated: Mapping[str, Any] | None = None) -> None:
        """Add a question and its reply. model, rated: as in `Exchange`."""
        self.exchanges.append(Exchange(question, reply, self.turns, [reply], rated, model))

"""A question within the engine, and who asked it."""

import dataclasses
import functools
import logging
from collections.abc import Callable

from chatbot.inference.batching.question import Piece, Question, Usage
from chatbot.inference.ticket import Ticket

log = logging.getLogger(__name__)
# Gets the pieces of the replies, then their usage; or an exception, after which nothing follows. It is called in a
# thread of the engine, which it must not block. If it raises, nothing more is computed for the question.
Receive = Callable[[Piece | Usage | Exception], None]


@dataclasses.dataclass(eq=False)
class Asked:
    """A question within the engine. Only the thread that answers it changes the numbers."""

    question: Question
    receive: Receive
    ticket: Ticket
    question_tokens: int = 0
    reply_tokens: int = 0
    unfinished: int = 0  # replies

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for more."""
        return self.ticket.cancelled.is_set()

    @functools.cached_property
    def characters(self) -> int:
        """The length of the question and its history."""
        return len(self.question.text) + sum(map(len, self.question.history))

    def give(self, message: Piece | Usage | Exception) -> None:
        """Give a message to who asked, unless nobody waits for it. It ends with a usage or an exception."""
        if self.is_over:
            return
        try:
            self.receive(message)
        except Exception as error:  # the caller's: the other questions are answered
            log.warning("A reply could not be given: %s: %s", type(error).__name__, error)
            self.ticket.cancel()
        if not isinstance(message, Piece):
            self.ticket.cancel()

    def give_reply(self, piece: Piece, tokens: int) -> None:
        """Give the last piece of a reply with this many tokens, and after the last reply the usage."""
        self.give(piece)
        self.reply_tokens += tokens
        self.unfinished -= 1
        if self.unfinished == 0:
            self.give(Usage(self.question_tokens, self.reply_tokens))

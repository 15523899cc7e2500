"""A question, what it is answered with, and the request for its replies."""

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.reply_text import Origin

log = logging.getLogger(__name__)
# Why a reply ended: by the end symbol or a stop text; by its maximum length.
FinishReason = Literal["stop", "length"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, and the settings of the replies to it.

    history: the turns before the text, the oldest first, alternately of the user and of the chatbot. A model that was
    trained with --history N reads the last N of them. last_reply: what the chatbot said last, whatever is read; "":
    nothing. A looked-up reply does not repeat it. is_cut: whether a longer text was asked. decoding: None: those of the
    engine's responder. seed, stop, min_score, fallback: those of the question, apart from `decoding`, so that many
    share one: a seed of samples and a least score in place of those of the settings, texts that end a reply beside
    theirs. repeats: how often the client has asked it before: it gets another of the good replies that a search has
    compared. replies: their number; samples or the fallback stand for those that a search does not find. n_best: above
    0, in place of `replies`: the best ones that the search finds, at most this number, with their scores. max_tokens:
    of a reply, at least 1; None: the model's limit. top_log_probs: number of alternatives for each token; None: no
    log-probabilities. streams: whether a reply is given in pieces, or as one, which costs less. client: the name of who
    asks; clients are served in turn.
    """

    text: str
    history: tuple[str, ...] = ()
    last_reply: str = ""
    is_cut: bool = False
    decoding: DecodingSettings | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    min_score: float | None = None
    fallback: str | None = None
    repeats: int = 0
    replies: int = 1
    n_best: int = 0
    max_tokens: int | None = None
    top_log_probs: int | None = None
    streams: bool = True
    client: str = dataclasses.field(default="", compare=False)

    @property
    def characters(self) -> int:
        """The number of characters to tokenise before the question can be answered."""
        return len(self.text) + sum(map(len, self.history))


class TokenLogProb(NamedTuple):
    """A token of a reply. log_prob: in nats, of the model's distribution, before the settings of decoding change it.

    text: bytes that are no character are surrogates, as `surrogateescape` has them.
    """

    text: str
    log_prob: float
    top: tuple[tuple[str, float], ...] = ()  # the most probable tokens at this place, the most probable first


class Piece(NamedTuple):
    """The next piece of a reply. The last one has a finish_reason, and what follows it here; its text may be empty."""

    reply: int  # 0 to replies - 1
    text: str
    tokens: tuple[TokenLogProb, ...] = ()
    finish_reason: FinishReason | None = None
    origin: Origin = Origin()
    score: float | None = None  # of `Reply`; None for a reply that was compared with none
    read: str = ""  # the part of the question that the model reads; "": all of it


class Usage(NamedTuple):
    """The numbers of tokens, after the last piece of all replies."""

    question_tokens: int
    reply_tokens: int


# Gets the pieces of the replies, then their usage; or an exception, after which nothing follows. It is called in a
# thread of the engine, which it must not block. If it raises, nothing more is computed for the question.
Message = Piece | Usage | Exception
Receive = Callable[[Message], None]


@dataclasses.dataclass(eq=False)
class Request:
    """A question whose replies somebody waits for. Only the thread that answers it changes the numbers."""

    question: Question
    receive: Receive
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)
    question_tokens: int = 0
    read: str = ""  # as in `Piece`
    reply_tokens: int = 0
    unfinished: int = 0  # replies

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for more."""
        return self.cancelled.is_set()

    def cancel(self) -> None:
        """Compute no more for it, unless others of its batch wait: nobody waits. Any thread may call this."""
        self.cancelled.set()

    def give(self, message: Piece | Usage | Exception) -> None:
        """Give a message to who asked, unless nobody waits for it. It ends with a usage or an exception."""
        if self.is_over:
            return
        try:
            self.receive(message)
        except Exception as error:  # the caller's: the other questions are answered
            log.warning("A reply could not be given: %s: %s", type(error).__name__, error)
            self.cancel()
        if not isinstance(message, Piece):
            self.cancel()

    def give_reply(self, piece: Piece, tokens: int) -> None:
        """Give the last piece of a reply with this many tokens, and after the last reply the usage."""
        self.give(piece._replace(read=self.read))
        self.reply_tokens += tokens
        self.unfinished -= 1
        if self.unfinished == 0:
            self.give(Usage(self.question_tokens, self.reply_tokens))

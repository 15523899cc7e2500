"""Questions, the requests of clients, and the pieces of text that they receive."""

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.reply_text import Origin

log = logging.getLogger(__name__)
# Why a reply ended: "stop" after EOS or a stop text, "length" at the maximum length.
FinishReason = Literal["stop", "length"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question and the settings for its replies.

    Attributes:
        text: The text of the question.
        history: The previous turns, oldest first, alternating between user and chatbot. A model trained with --history
            N reads the last N of them.
        last_reply: The chatbot's previous reply, or an empty string. Retrieval does not return this reply again.
        is_cut: Whether `text` was truncated.
        decoding: The decoding settings, or None for those of the engine's responder.
        seed: A random seed that overrides the one in `decoding`. Questions with different seeds can still be
            searched together.
        stop: Stop texts in addition to those in `decoding`.
        min_score: A minimum score that overrides `decoding.min_score`.
        fallback: A fallback reply that overrides `decoding.fallback`.
        repeats: The number of times the client has already asked this question. Each time, the client gets a different
            good reply.
        replies: The number of replies. If a search finds too few, samples or the fallback are added.
        n_best: If positive, the maximum number of best replies to return with their scores; `replies` is ignored.
        max_tokens: The maximum length of a reply, at least 1, or None for the model's limit.
        top_log_probs: The number of alternatives to return for each token, or None to return no log-probabilities.
        streams: Whether to send a reply in several pieces, which costs more time than a single piece.
        client: The name of the client. The engine alternates between clients.
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
        """The number of characters in the question and its history."""
        return len(self.text) + sum(map(len, self.history))


class TokenLogProb(NamedTuple):
    """The log-probability of a token in a reply.

    Attributes:
        text: The text of the token. Bytes that are not valid UTF-8 are decoded with `surrogateescape`.
        log_prob: The model's log-probability of the token in nats, without the effect of decoding settings.
        top: The most probable tokens at this position and their log-probabilities, in descending order.
    """

    text: str
    log_prob: float
    top: tuple[tuple[str, float], ...] = ()


class Piece(NamedTuple):
    """A piece of a reply. finish_reason and the fields after it are set only in the last piece, which can be empty."""

    reply: int  # index of the reply, from 0
    text: str
    tokens: tuple[TokenLogProb, ...] = ()
    finish_reason: FinishReason | None = None
    origin: Origin = Origin()
    score: float | None = None  # score as in `Reply`; None if there was only one candidate
    read: str = ""  # part of the question that was read for this reply; empty if all of it was read


class Usage(NamedTuple):
    """The token counts of a request, sent after the last piece."""

    question_tokens: int
    reply_tokens: int


# A callback that receives the pieces of the replies, and finally a Usage or an exception. The callback runs in a thread
# of the engine, so it must not block. If it raises an exception, the request is cancelled.
Message = Piece | Usage | Exception
Receive = Callable[[Message], None]


@dataclasses.dataclass(eq=False)
class Request:
    """A request to answer a question. Only the thread that answers it changes the counts.

    Attributes:
        question: The question.
        receive: The callback that receives the messages.
        cancelled: An event that is set once no more messages are sent.
        question_tokens: The length of the question in tokens.
        read: The part of the question that the model reads, as in `Piece`.
        reply_tokens: The total length of the finished replies in tokens.
        unfinished: The number of unfinished replies.
    """

    question: Question
    receive: Receive
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)
    question_tokens: int = 0
    read: str = ""
    reply_tokens: int = 0
    unfinished: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the request is finished or cancelled, so no more messages are sent."""
        return self.cancelled.is_set()

    def cancel(self) -> None:
        """Stop answering the question. This method is thread-safe."""
        self.cancelled.set()

    def send(self, message: Message) -> None:
        """Send a message unless the request is over. A Usage or an exception ends the request."""
        if self.is_over:
            return
        try:
            self.receive(message)
        except Exception as error:  # An error in a callback must not affect other questions.
            log.warning("A reply could not be sent: %s: %s", type(error).__name__, error)
            self.cancel()
        if not isinstance(message, Piece):
            self.cancel()

    def finish_reply(self, piece: Piece, tokens: int) -> None:
        """Send the last piece of a reply. After the last reply, also send the usage.

        Args:
            piece: The last piece of the reply.
            tokens: The length of the reply in tokens.
        """
        self.send(piece)
        self.reply_tokens += tokens
        self.unfinished -= 1
        if self.unfinished == 0:
            self.send(Usage(self.question_tokens, self.reply_tokens))

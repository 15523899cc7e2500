"""A question to the engine, and what it answers."""

import dataclasses
from typing import Literal, NamedTuple

from chatbot.config.decoding import DecodingSettings

# Why a reply ended: by the end symbol or a stop text; by its maximum length.
FinishReason = Literal["stop", "length"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, and the settings of the replies to it.

    text, history: as for `TextResponder.reply`. decoding: settings of greedy search, or of sampling one reply; None:
    the search of the engine, which may be any. seed, stop: with `decoding` only: the seed in place of that of the
    settings, and texts that end a reply beside those of the settings. They are not part of `decoding`, so that many
    questions share one. replies: their number; those to one question differ in their random numbers, or are the best
    ones of the engine's search, which may find fewer. max_tokens: of a reply, at least 1; None: the model's limit.
    top_log_probs: number of alternatives for each token; None: no log-probabilities are needed. streams: whether the
    pieces of a reply are given while it is generated; False: it is one piece, which costs less. client: the name of who
    asks; clients are served in turn.
    """

    text: str
    history: tuple[str, ...] = ()
    decoding: DecodingSettings | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    replies: int = 1
    max_tokens: int | None = None
    top_log_probs: int | None = None
    streams: bool = True
    client: str = dataclasses.field(default="", compare=False)


class TokenLogProb(NamedTuple):
    """A token of a reply. log_prob: in nats, of the model's distribution, before the settings of decoding change it."""

    text: str
    log_prob: float
    top: tuple[tuple[str, float], ...] = ()  # the most probable tokens at this place, the most probable first


class Piece(NamedTuple):
    """The next piece of a reply. The last one of each reply has a finish_reason; its text may be empty."""

    reply: int  # 0 to replies - 1
    text: str
    tokens: tuple[TokenLogProb, ...] = ()
    finish_reason: FinishReason | None = None


class Usage(NamedTuple):
    """The numbers of tokens, after the last piece of all replies."""

    question_tokens: int
    reply_tokens: int

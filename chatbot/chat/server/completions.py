"""From what the engine answers to the objects of the API: completions, and the chunks of streams."""

import dataclasses
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from chatbot.inference.questions import Piece, TokenLogProb, Usage


@dataclasses.dataclass(frozen=True)
class Completion:
    """What is common to a completion and all chunks of its stream. fingerprint: of the model's checkpoint."""

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str
    chat: bool  # of /v1/chat/completions, in contrast to /v1/completions

    def object(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return an object of a kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def new_completion(model: str, fingerprint: str, chat: bool) -> Completion:
    """Return a completion with an id of its own, which begins now."""
    prefix = "chatcmpl-" if chat else "cmpl-"
    unique = f"{random.getrandbits(96):024x}"  # the numbers of `secrets` need a system call each
    return Completion(prefix + unique, int(time.time()), model, fingerprint, chat)


@dataclasses.dataclass
class Reply:
    """A whole reply. beginning: the number of characters that it began with."""

    text: str = ""
    tokens: list[TokenLogProb] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    beginning: int = 0

    def __post_init__(self) -> None:
        self.beginning = len(self.text)

    def add(self, piece: Piece) -> None:
        """Add the next piece."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish_reason = piece.finish_reason or self.finish_reason


def whole(completion: Completion, replies: Sequence[Reply], usage: Usage, log_probs: bool) -> dict[str, Any]:
    """Return a completion that is not streamed. log_probs: whether those of its tokens were asked for.

    A search may find fewer replies than were asked for; those without an end are left out.
    """
    choices: list[dict[str, Any]] = []
    for index, reply in enumerate(reply for reply in replies if reply.finish_reason is not None):
        shown = _log_probs(completion, reply.tokens, reply.beginning) if log_probs else None
        end = {"logprobs": shown, "finish_reason": reply.finish_reason}
        if completion.chat:
            message = {"role": "assistant", "content": reply.text, "refusal": None}
            choices.append({"index": index, "message": message, **end})
        else:
            choices.append({"index": index, "text": reply.text, **end})
    kind = "chat.completion" if completion.chat else "text_completion"
    return {**completion.object(kind, choices), "usage": usage_object(usage)}


def first_chunk(completion: Completion, index: int, beginning: str) -> dict[str, Any]:
    """Return the chunk before the first piece of a reply: its role in a chat, otherwise its beginning."""
    if completion.chat:
        return _chunk(completion, index, delta={"role": "assistant", "content": "", "refusal": None})
    return _chunk(completion, index, text=beginning)


def chunks(completion: Completion, piece: Piece, log_probs: bool, before: int = 0) -> list[dict[str, Any]]:
    """Return the chunks of a piece: its text, if any, then the reason why its reply ended, if it did.

    before: the number of characters of the reply before the piece.
    """
    made = []
    if piece.text or piece.tokens:
        shown = _log_probs(completion, piece.tokens, before) if log_probs else None
        text = {"delta": {"content": piece.text}} if completion.chat else {"text": piece.text}
        made.append(_chunk(completion, piece.reply, log_probs=shown, **text))
    if piece.finish_reason is not None:
        empty: dict[str, Any] = {"delta": {}} if completion.chat else {"text": ""}
        made.append(_chunk(completion, piece.reply, finish_reason=piece.finish_reason, **empty))
    return made


def usage_chunk(completion: Completion, usage: Usage) -> dict[str, Any]:
    """Return the last chunk of a stream whose usage was asked for."""
    return {**completion.object(_chunk_kind(completion), []), "usage": usage_object(usage)}


def usage_object(usage: Usage) -> dict[str, int]:
    """Return the numbers of tokens."""
    return {
        "prompt_tokens": usage.question_tokens,
        "completion_tokens": usage.reply_tokens,
        "total_tokens": usage.question_tokens + usage.reply_tokens,
    }


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sums of several usages."""
    pairs = list(usages)
    return Usage(sum(usage.question_tokens for usage in pairs), sum(usage.reply_tokens for usage in pairs))


def _chunk(
    completion: Completion, index: int, *, log_probs: Any = None, finish_reason: str | None = None, **content: Any
) -> dict[str, Any]:
    choice = {"index": index, **content, "logprobs": log_probs, "finish_reason": finish_reason}
    return completion.object(_chunk_kind(completion), [choice])


def _chunk_kind(completion: Completion) -> str:
    return "chat.completion.chunk" if completion.chat else "text_completion"


def _log_probs(completion: Completion, tokens: Sequence[TokenLogProb], offset: int) -> dict[str, Any]:
    """Return the log-probabilities of tokens in the form of the protocol. offset: characters before them."""
    if completion.chat:
        content = [
            {**_token(token.text, token.log_prob), "top_logprobs": [_token(text, value) for text, value in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens],
        "text_offset": offsets,
    }


def _token(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode("utf-8", "replace"))}

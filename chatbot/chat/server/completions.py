"""From what the engine answers to what clients get: completions, and the chunks and the events of streams."""

import dataclasses
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chatbot.inference.questions import Piece, Question, TokenLogProb, Usage

DONE = b"data: [DONE]\n\n"


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
class Choice:
    """A reply, as far as it is known. beginning: the number of characters that it began with."""

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


class Choices:
    """The replies to the questions of a request, as far as they are known: the choices of its completion.

    echoes: the beginnings of the replies to each question; (): they are empty. log_probs: whether the
    log-probabilities of tokens were asked for.
    """

    def __init__(
        self, completion: Completion, questions: Sequence[Question], echoes: Sequence[str], log_probs: bool
    ) -> None:
        self.completion = completion
        self._choices = [
            Choice(echo)
            for question, echo in zip(questions, echoes or [""] * len(questions), strict=True)
            for _ in range(question.replies)
        ]
        self._questions, self._log_probs = questions, log_probs
        self._usages: list[Usage] = []
        self._begun: set[int] = set()  # choices whose first chunk was made

    def add(self, item: Piece | Usage) -> None:
        """Add the next piece of a reply, or the usage of a question."""
        if isinstance(item, Usage):
            self._usages.append(item)
        else:
            self._choices[item.reply].add(item)

    def whole(self) -> dict[str, Any]:
        """Return the completion that is not streamed.

        A search may find fewer replies than were asked for; those without an end are left out.
        """
        completion = self.completion
        choices: list[dict[str, Any]] = []
        for index, choice in enumerate(choice for choice in self._choices if choice.finish_reason is not None):
            shown = _log_probs(completion, choice.tokens, choice.beginning) if self._log_probs else None
            end = {"logprobs": shown, "finish_reason": choice.finish_reason}
            if completion.chat:
                message = {"role": "assistant", "content": choice.text, "refusal": None}
                choices.append({"index": index, "message": message, **end})
            else:
                choices.append({"index": index, "text": choice.text, **end})
        kind = "chat.completion" if completion.chat else "text_completion"
        return {**completion.object(kind, choices), "usage": _usage_object(self.usage)}

    def json(self) -> bytes:
        """Return the whole completion as JSON. With log-probabilities, this may take a while."""
        return orjson.dumps(self.whole())

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Add the next piece of a reply, and yield its chunks for a stream.

        The first chunks of replies to a question are in the order of their numbers: some clients keep the replies in a
        list. Replies that the search has not found have no chunks.
        """
        first = piece.reply - piece.reply % self._questions[0].replies  # of this question
        for index in sorted({*range(first, piece.reply + 1)} - self._begun):
            yield first_chunk(self.completion, index, self._choices[index].text)
            self._begun.add(index)
        yield from chunks(self.completion, piece, self._log_probs, len(self._choices[piece.reply].text))
        self.add(piece)

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last chunk of a stream whose usage was asked for."""
        return {**self.completion.object(_chunk_kind(self.completion), []), "usage": _usage_object(self.usage)}

    @property
    def answered(self) -> int:
        """The number of replies that were found."""
        return sum(choice.finish_reason is not None for choice in self._choices)

    @property
    def usage(self) -> Usage:
        """The usage of all questions."""
        return Usage(
            sum(usage.question_tokens for usage in self._usages), sum(usage.reply_tokens for usage in self._usages)
        )

    def lines(self) -> Iterator[str]:
        """Yield a JSON object for each question: {"model", "created", "turns", "replies"}."""
        first = 0
        for question in self._questions:
            choices = self._choices[first : first + question.replies]
            first += question.replies
            yield orjson.dumps(
                {
                    "model": self.completion.model,
                    "created": self.completion.created,
                    "turns": [*question.history, question.text],
                    "replies": [choice.text for choice in choices if choice.finish_reason is not None],
                }
            ).decode()


def first_chunk(completion: Completion, index: int, beginning: str) -> dict[str, Any]:
    """Return the chunk before the first piece of a reply: its role in a chat, otherwise its beginning."""
    if completion.chat:
        return _chunk(completion, index, delta={"role": "assistant", "content": "", "refusal": None})
    return _chunk(completion, index, text=beginning)


def chunks(completion: Completion, piece: Piece, log_probs: bool, before: int) -> list[dict[str, Any]]:
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


def _usage_object(usage: Usage) -> dict[str, int]:
    """Return the numbers of tokens."""
    return {
        "prompt_tokens": usage.question_tokens,
        "completion_tokens": usage.reply_tokens,
        "total_tokens": usage.question_tokens + usage.reply_tokens,
    }


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


def event(data: bytes) -> bytes:
    """Return an event of a stream. data: JSON, which has no line ends."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events as they are found. The generator is closed at the end, also when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})  # nginx passes each event on at once
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._events.aclose()

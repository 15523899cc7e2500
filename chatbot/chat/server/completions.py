"""The routes /v1/chat/completions and /v1/completions."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chatbot.chat.clients import ClientLeftError, RateLimit, run_while_connected, stream_replies
from chatbot.chat.server.errors import ApiError, rate_limit_error, to_api_error
from chatbot.chat.server.request_bodies import (
    ChatRequest,
    CompletionRequest,
    build_questions,
    check_log_probs,
)
from chatbot.chat.server.state import INVISIBLE, ServerState, server_state
from chatbot.inference.request import Piece, Question, TokenLogProb, Usage

NOT_ENDED = {"finish_reason": None}


@dataclasses.dataclass
class _Reply:
    """The part of a reply that has been generated so far."""

    text: str = ""
    tokens: list[TokenLogProb] = dataclasses.field(default_factory=list)
    last: Piece | None = None  # The last part of the reply; None until the reply is complete.
    has_started: bool = False  # Whether an event for this reply has been sent.


class Completion:
    """Collects the replies to a request, and formats them as an OpenAI completion object or as a stream of events.

    Args:
        body: The body of the request.
        model: The model name that clients use.
        fingerprint: Identifies the model's checkpoint.
        questions: The questions in the request.
    """

    def __init__(
        self, body: ChatRequest | CompletionRequest, model: str, fingerprint: str, questions: Sequence[Question]
    ) -> None:
        self._is_chat = isinstance(body, ChatRequest)
        self._with_log_probs = body.top_log_probs is not None
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._questions = questions
        self.replies = [_Reply() for question in questions for _ in range(question.replies)]
        self.head: dict[str, Any] = {
            # `random` is faster than `secrets`, which needs a system call.
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{random.getrandbits(96):024x}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self.model = model
        self.usage = Usage(0, 0)

    def add(self, item: Piece | Usage) -> None:
        """Add the next part of a reply, or the token counts of a question."""
        if isinstance(item, Usage):
            self.usage = Usage(*map(sum, zip(self.usage, item, strict=True)))
            return
        reply = self.replies[item.reply]
        reply.text += item.text
        reply.tokens += item.tokens
        if item.finish_reason is not None:
            reply.last = item

    def to_object(self) -> dict[str, Any]:
        """Return the completion object."""
        choices: list[dict[str, Any]] = []
        for index, reply in enumerate(self.replies):
            if reply.last is None:  # Fewer replies were found than requested.
                continue
            message = {"role": "assistant", "content": reply.text, "refusal": None}
            content = {"message": message} if self._is_chat else {"text": reply.text}
            choices.append(
                {
                    "index": index,
                    **content,
                    "logprobs": self._log_probs_object(reply.tokens),
                    **self.finish_fields(reply.last),
                }
            )
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": self._usage_object()}

    def json(self) -> bytes:
        """Return the completion object as JSON. With many log-probabilities, this is slow."""
        return orjson.dumps(self.to_object())

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Add the next part of a reply, and yield the events that send it to the client.

        The first events of several replies are sent in the order of the replies' indices. Some clients need this
        order, because they append each new reply to a list.
        """
        first = piece.reply - piece.reply % self._questions[0].replies  # The index of the question's first reply.
        for index, reply in enumerate(self.replies[first : piece.reply + 1], first):
            if not reply.has_started:
                reply.has_started = True
                start = {"delta": {"role": "assistant", "content": "", "refusal": None}}
                yield self._format_chunk(index, start if self._is_chat else {"text": ""})
        if piece.text or piece.tokens:
            text = {"delta": {"content": piece.text}} if self._is_chat else {"text": piece.text}
            reply = self.replies[piece.reply]
            yield self._format_chunk(piece.reply, text, self._log_probs_object(piece.tokens, reply.tokens))
        if piece.finish_reason is not None:
            empty: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
            yield self._format_chunk(piece.reply, empty, end=self.finish_fields(piece))
        self.add(piece)

    def final_events(self) -> Iterator[bytes]:
        """Yield the events that end the stream."""
        if self._with_usage:
            usage = {"object": self._chunk_kind, "choices": [], "usage": self._usage_object()}
            yield format_event(orjson.dumps({**self.head, **usage}))
        yield format_event(b"[DONE]")

    def finished_replies(self) -> Iterator[tuple[Question, list[_Reply]]]:
        """Yield each question with its replies, which can be fewer than requested."""
        replies = iter(self.replies)
        for question in self._questions:
            yield question, [reply for reply in itertools.islice(replies, question.replies) if reply.last is not None]

    def log_lines(self) -> Iterator[str]:
        """Yield a JSON object for each question, with the keys model, created, turns and replies."""
        for question, replies in self.finished_replies():
            line = {
                "model": self.model,
                "created": self.head["created"],
                "turns": [*question.history, question.text],
                "replies": [reply.text for reply in replies],
            }
            yield INVISIBLE.sub(lambda c: f"\\u{ord(c[0]):04x}", orjson.dumps(line).decode())

    @staticmethod
    def finish_fields(piece: Piece) -> dict[str, Any]:
        """Return the JSON fields that describe a complete reply.

        These are OpenAI's `finish_reason`, and an object `chatbot` with the following fields:

        - score: The score of the reply; None if the reply was not compared with other replies.
        - looked_up: Whether the reply was retrieved instead of generated.
        - question: For a retrieved reply, the question that it answers in the training data. None if the question is a
          private message of another user.
        - read: The part of the question that was read for the reply; None if the entire question was read.
        """
        origin = piece.origin
        details = {
            "score": piece.score,
            "looked_up": bool(origin.question),
            "question": (not origin.is_rated and origin.question) or None,
            "read": piece.read or None,
        }
        return {"finish_reason": piece.finish_reason, "chatbot": details}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"

    def _format_chunk(
        self, index: int, content: dict[str, Any], log_probs: Any = None, end: Mapping[str, Any] = NOT_ENDED
    ) -> bytes:
        choice = {"index": index, **content, "logprobs": log_probs, **end}
        chunk = {**self.head, "object": self._chunk_kind, "choices": [choice]}
        return format_event(orjson.dumps({**chunk, "usage": None} if self._with_usage else chunk))

    def _usage_object(self) -> dict[str, int]:
        prompt, reply = self.usage
        return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}

    def _log_probs_object(
        self, tokens: Sequence[TokenLogProb], before: Sequence[TokenLogProb] = ()
    ) -> dict[str, Any] | None:
        """Return the log-probabilities of tokens, or None if the request does not include log-probabilities.

        Args:
            tokens: The tokens to describe.
            before: The tokens of the reply before them.
        """
        if not self._with_log_probs:
            return None
        if self._is_chat:
            content = [
                {
                    **_format_token(token.text, token.log_prob),
                    "top_logprobs": [*itertools.starmap(_format_token, token.top)],
                }
                for token in tokens
            ]
            return {"content": content, "refusal": None}
        offsets = []
        prefix = b"".join(_token_bytes(token.text) for token in before)
        for token in tokens:
            # `text_offset` counts characters of the reply, which does not start with a space.
            offsets.append(len(prefix.decode(errors="ignore").lstrip()))
            prefix += _token_bytes(token.text)
        return {
            "tokens": [_token_text(token.text) for token in tokens],
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": [{_token_text(text): log_prob for text, log_prob in token.top} for token in tokens],
            "text_offset": offsets,
        }


def _format_token(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": _token_text(text), "logprob": log_prob, "bytes": list(_token_bytes(text))}


def _token_bytes(text: str) -> bytes:
    """Return the UTF-8 bytes of a token. A token may contain only some of the bytes of a character."""
    return text.encode(errors="surrogateescape")


def _token_text(text: str) -> str:
    """Return the text of a token. The bytes of incomplete characters are replaced by U+FFFD."""
    return _token_bytes(text).decode(errors="replace")


async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Reply to the last message of a chat with an OpenAI chat completion, or with a stream of chunks."""
    return await respond(request, body)


async def completions(body: CompletionRequest, request: Request) -> Response:
    """Reply to one or more independent prompts with an OpenAI completion, or with a stream of chunks."""
    return await respond(request, body)


async def respond(
    request: Request, body: ChatRequest | CompletionRequest, completion_type: type[Completion] = Completion
) -> Response:
    """Answer a request with a completion object or a stream of events.

    If an error occurs before the first event, the response has an error status.
    """
    state = server_state(request)
    check_log_probs(body)
    name = state.models.resolve_name(body.model)
    client = request.state.client  # Set by `Gate`.
    _count_replies(state.rate_limit, client, body.replies)
    deadline = time.monotonic() + state.request_timeout
    async with contextlib.AsyncExitStack() as stack:
        use = stack.enter_async_context(state.models.use(name))
        # This loads the model if necessary.
        model = await run_while_connected(use, state.request_timeout, request.receive)
        questions = body.bare_questions(model.turns)
        key = hash((client, body.end_user_id, name, *questions))
        repeats = state.repeats.get(key) or 0
        questions = build_questions(body, questions, model.responder, client, repeats)
        completion = completion_type(body, name, f"{model.card.name}-step-{model.card.step}", questions)
        record = functools.partial(_record_completion, state, completion, key)
        items = stream_replies(model.engine.submit, questions, deadline - time.monotonic(), request.receive)
        stack.push_async_callback(items.aclose)
        first = await anext(items)
        if body.stream:
            return EventStream(_stream_events(completion, first, items, record, stack.pop_all()))
        completion.add(first)
        async for item in items:
            completion.add(item)
    record()
    content = completion.json() if body.top_log_probs is None else await asyncio.to_thread(completion.json)
    return Response(content, media_type="application/json")


def _count_replies(rate_limit: RateLimit, client: str, replies: int) -> None:
    """Count the replies to a request toward the rate limit, except the first one, which `Gate` has counted.

    Raises:
        ApiError: If the client exceeds its rate limit.
    """
    if rate_limit.per_minute and replies > rate_limit.per_minute:
        message = f"n: {replies:,} replies exceed the limit of {rate_limit.per_minute:,} replies per minute"
        raise ApiError(400, message, param="n", code="invalid_value")
    if wait := rate_limit.wait(client, replies - 1):
        raise rate_limit_error("replies", wait)


async def _stream_events(
    completion: Completion,
    first: Piece | Usage,
    items: AsyncGenerator[Piece | Usage, None],
    record: Callable[[], None],
    stack: contextlib.AsyncExitStack,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream. Call `record` once all replies are complete. Finally close `stack`."""
    async with stack:
        try:
            item: Piece | Usage | None = first
            while item is not None:
                if isinstance(item, Piece):
                    yield b"".join(completion.events(item))
                else:
                    completion.add(item)
                item = await anext(items, None)
            record()
            yield b"".join(completion.final_events())
        except ClientLeftError:
            return
        except Exception as error:  # Sent as an event, because the status 200 was already sent.
            yield format_event(to_api_error(error, "a stream").body())


def format_event(data: bytes) -> bytes:
    """Format a server-sent event. `data` must not contain line breaks."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """A response that streams events. It always closes their generator, even if the response is cancelled."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})  # Without this header, nginx would delay the events.
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


def _record_completion(state: ServerState, completion: Completion, key: int) -> None:
    """Record a request in the metrics, the log and the caches. `key` is its key in `ServerState.repeats`."""
    state.repeats.put(key, 1 + (state.repeats.get(key) or 0))
    for question, replies in completion.finished_replies():
        for reply in replies:
            assert reply.last is not None
            state.origins.put(hash((completion.model, question.text, reply.text)), reply.last.origin)
        state.metrics.replies.labels(completion.model).inc(len(replies))
    state.metrics.tokens.labels(completion.model, "question").inc(completion.usage.question_tokens)
    state.metrics.tokens.labels(completion.model, "reply").inc(completion.usage.reply_tokens)
    if state.conversations is not None:
        for line in completion.log_lines():
            state.conversations.add(line)

"""/v1/chat/completions and /v1/completions: from a request to the engine, and from its replies to the response."""

import asyncio
import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import AsyncGenerator, Hashable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chatbot.chat.server.errors import ApiError, api_error_of, too_many
from chatbot.chat.server.request_bodies import ChatRequest, CompletionRequest, Searches, check_log_probs, questions_of
from chatbot.chat.server.state import INVISIBLE, ServerState, state_of
from chatbot.chat.service import ClientLeftError, RateLimit, answers, while_waited_for
from chatbot.inference.request import Piece, Question, TokenLogProb, Usage

NOT_ENDED = {"finish_reason": None}


@dataclasses.dataclass
class _Reply:
    """A reply, as far as it is known. last: its last piece. has_begun: whether its first chunk was made."""

    text: str = ""
    tokens: list[TokenLogProb] = dataclasses.field(default_factory=list)
    last: Piece | None = None
    has_begun: bool = False


class Completion:
    """The replies to the questions of a request, as far as they are known, in the form of OpenAI's objects.

    fingerprint: of the model's checkpoint. asked: who asks, and what. chat: whether it is of
    /v1/chat/completions, in contrast to /v1/completions. log_probs: whether log-probabilities are shown. with_usage:
    whether a stream says the numbers of tokens.
    """

    def __init__(
        self,
        model: str,
        fingerprint: str,
        questions: Sequence[Question],
        asked: Hashable = (),
        *,
        chat: bool,
        log_probs: bool = False,
        with_usage: bool = False,
    ) -> None:
        self._chat = chat
        self._log_probs = log_probs
        self._with_usage = with_usage
        self._questions = questions
        self.replies = [_Reply() for question in questions for _ in range(question.replies)]
        self.head: dict[str, Any] = {
            # The numbers of `secrets` need a system call each.
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{random.getrandbits(96):024x}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self.model, self.asked, self.usage = model, asked, Usage(0, 0)

    def add(self, item: Piece | Usage) -> None:
        """Add the next piece of a reply, or the usage of a question."""
        if isinstance(item, Usage):
            self.usage = Usage(*map(sum, zip(self.usage, item, strict=True)))
            return
        reply = self.replies[item.reply]
        reply.text += item.text
        reply.tokens += item.tokens
        if item.finish_reason is not None:
            reply.last = item

    def whole(self) -> dict[str, Any]:
        """Return the object that is not streamed."""
        choices: list[dict[str, Any]] = []
        for index, reply in enumerate(self.replies):
            if reply.last is None:  # fewer were found: the others keep the numbers that a stream gives them
                continue
            message = {"role": "assistant", "content": reply.text, "refusal": None}
            content = {"message": message} if self._chat else {"text": reply.text}
            choices.append(
                {"index": index, **content, "logprobs": self._shown(reply.tokens), **self.end_of(reply.last)}
            )
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": self._usage()}

    def json(self) -> bytes:
        """Return `whole` as JSON. With log-probabilities, this may take a while."""
        return orjson.dumps(self.whole())

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Add the next piece of a reply, and yield its chunks for a stream: its text, then why it ended.

        The first chunks of replies to a question are in the order of their numbers: some clients keep the replies in a
        list. Replies that the search has not found have no chunks.
        """
        first = piece.reply - piece.reply % self._questions[0].replies  # of this question
        for index, reply in enumerate(self.replies[first : piece.reply + 1], first):
            if not reply.has_begun:
                reply.has_begun = True
                begin = {"delta": {"role": "assistant", "content": "", "refusal": None}}
                yield self._chunk(index, begin if self._chat else {"text": ""})
        if piece.text or piece.tokens:
            text = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
            reply = self.replies[piece.reply]
            yield self._chunk(piece.reply, text, self._shown(piece.tokens, reply.tokens))
        if piece.finish_reason is not None:
            empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            yield self._chunk(piece.reply, empty, end=self.end_of(piece))
        self.add(piece)

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Add the next piece of a reply, and yield its events for a stream."""
        no_usage = {"usage": None} if self._with_usage else {}
        for chunk in self.chunks(piece):
            yield event_of(orjson.dumps({**chunk, **no_usage}))

    def last_events(self) -> Iterator[bytes]:
        """Yield the events after all replies."""
        if self._with_usage:
            usage = {"object": self._chunk_kind, "choices": [], "usage": self._usage()}
            yield event_of(orjson.dumps({**self.head, **usage}))
        yield event_of(b"[DONE]")

    def answered(self) -> Iterator[tuple[Question, list[_Reply]]]:
        """Yield each question with its replies that were found: a search may find fewer than were asked for."""
        replies = iter(self.replies)
        for question in self._questions:
            yield question, [reply for reply in itertools.islice(replies, question.replies) if reply.last is not None]

    def lines(self) -> Iterator[str]:
        """Yield a JSON object for each question: {"model", "created", "turns", "replies"}."""
        for question, finished in self.answered():
            line = {
                "model": self.model,
                "created": self.head["created"],
                "turns": [*question.history, question.text],
                "replies": [reply.text for reply in finished],
            }
            yield INVISIBLE.sub(lambda c: f"\\u{ord(c[0]):04x}", orjson.dumps(line).decode())

    @staticmethod
    def end_of(piece: Piece) -> dict[str, Any]:
        """Return the fields of a choice that its last piece has, with what only this server says.

        score: None for a reply that was compared with no others. looked_up: whether a person wrote it. question: the
        training question that it was written to; None where it was rated good after a message, which nobody else is
        shown. read: the part of the question that the model reads; None for all of it.
        """
        origin = piece.origin
        ours = {
            "score": piece.score,
            "looked_up": bool(origin.question),
            "question": (not origin.is_rated and origin.question) or None,
            "read": piece.read or None,
        }
        return {"finish_reason": piece.finish_reason, "chatbot": ours}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(
        self, index: int, content: dict[str, Any], log_probs: Any = None, end: Mapping[str, Any] = NOT_ENDED
    ) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": log_probs, **end}
        return {**self.head, "object": self._chunk_kind, "choices": [choice]}

    def _usage(self) -> dict[str, int]:
        prompt, reply = self.usage
        return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}

    def _shown(self, tokens: Sequence[TokenLogProb], before: Sequence[TokenLogProb] = ()) -> dict[str, Any] | None:
        """Return the log-probabilities of tokens, if they are shown. before: the tokens of the reply before them."""
        if not self._log_probs:
            return None
        if self._chat:
            content = [
                {**_token(token.text, token.log_prob), "top_logprobs": [_token(*other) for other in token.top]}
                for token in tokens
            ]
            return {"content": content, "refusal": None}
        offsets = []
        spelled = b"".join(_bytes(token.text) for token in before)
        for token in tokens:
            offsets.append(len(spelled.decode(errors="ignore").lstrip()))  # whole characters; a reply begins with none
            spelled += _bytes(token.text)
        return {
            "tokens": [_visible(token.text) for token in tokens],
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": [{_visible(text): log_prob for text, log_prob in token.top} for token in tokens],
            "text_offset": offsets,
        }


def _token(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": _visible(text), "logprob": log_prob, "bytes": list(_bytes(text))}


def _bytes(text: str) -> bytes:
    """Return the bytes of a token."""
    return text.encode(errors="surrogateescape")


def _visible(text: str) -> str:
    """Return the text of a token, with U+FFFD for bytes that are no character."""
    return _bytes(text).decode(errors="replace")


async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Reply to the last message of a chat, with a chat completion of OpenAI's, or with `stream` its chunks."""
    return await respond(request, body)


async def completions(body: CompletionRequest, request: Request) -> Response:
    """Reply to prompts, each without turns before it, with a completion of OpenAI's, or its chunks."""
    return await respond(request, body)


async def respond(
    request: Request, body: ChatRequest | CompletionRequest, form: type[Completion] = Completion
) -> Response:
    """Return the whole completion, or the stream of its events. An error before the first piece has its own status."""
    state = state_of(request)
    check_log_probs(body)
    name = state.models.name_of(body.model)
    client = request.state.client  # as the gate has named who asks
    _count_replies(state.rate_limit, client, body.replies)
    log_probs = body.top_log_probs is not None
    end = time.monotonic() + state.request_timeout
    async with contextlib.AsyncExitStack() as stack:
        use = stack.enter_async_context(state.models.use(name))
        model = await while_waited_for(use, state.request_timeout, request.receive)  # it may have to be loaded
        asked = client, body.person, name, *body.turns_asked(model.turns)
        questions = questions_of(body, Searches.of(model.responder), model.turns, client, state.repeats.get(asked) or 0)
        options = {
            "chat": isinstance(body, ChatRequest),
            "log_probs": log_probs,
            "with_usage": body.stream_options is not None and bool(body.stream_options.include_usage),
        }
        completion = form(name, f"{model.card.name}-step-{model.card.step}", questions, asked, **options)
        items = answers(model.engine.submit, questions, end - time.monotonic(), request.receive)
        stack.push_async_callback(items.aclose)
        first = await anext(items)
        if body.stream:
            return EventStream(_events(state, completion, first, items, stack.pop_all()))
        completion.add(first)
        async for item in items:
            completion.add(item)
    _note(state, completion)
    content = await asyncio.to_thread(completion.json) if log_probs else completion.json()
    return Response(content, media_type="application/json")


def _count_replies(rate_limit: RateLimit, client: str, replies: int) -> None:
    """Count the replies to a request, which was counted as one already. Raises ApiError for too many."""
    if rate_limit.per_minute and replies > rate_limit.per_minute:
        most = f"{rate_limit.per_minute:,} a minute"
        message = f"n: {replies:,} replies to a request are more than the {most} that are allowed"
        raise ApiError(400, message, param="n", code="invalid_value")
    if wait := rate_limit.wait(client, replies - 1):
        raise too_many("replies", wait)


async def _events(
    state: ServerState,
    completion: Completion,
    first: Piece | Usage,
    items: AsyncGenerator[Piece | Usage, None],
    stack: contextlib.AsyncExitStack,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream. stack: what ends with it."""
    async with stack:
        try:
            item: Piece | Usage | None = first
            while item is not None:
                if isinstance(item, Piece):
                    yield b"".join(completion.events(item))
                else:
                    completion.add(item)
                item = await anext(items, None)
            _note(state, completion)
            yield b"".join(completion.last_events())
        except ClientLeftError:
            return
        except Exception as error:  # the status was sent before: a client learns of a failure from the stream
            yield event_of(api_error_of(error, "a stream").body())


def event_of(data: bytes) -> bytes:
    """Return an event of a stream. data: JSON, which has no line ends."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events as they are made. The generator is closed at the end, also when the client leaves."""

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


def _note(state: ServerState, completion: Completion) -> None:
    """Count an answered request, remember its replies, and log it if conversations are logged."""
    state.repeats.keep(completion.asked, 1 + (state.repeats.get(completion.asked) or 0))
    for question, replies in completion.answered():
        for reply in replies:
            assert reply.last is not None
            state.origins.keep((completion.model, question.text, reply.text), reply.last.origin)
        state.metrics.replies.labels(completion.model).inc(len(replies))
    state.metrics.tokens.labels(completion.model, "question").inc(completion.usage.question_tokens)
    state.metrics.tokens.labels(completion.model, "reply").inc(completion.usage.reply_tokens)
    if state.conversations is not None:
        for line in completion.lines():
            state.conversations.add(line)

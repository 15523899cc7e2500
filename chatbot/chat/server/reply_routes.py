"""/v1/chat/completions and /v1/completions."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from chatbot.chat.server.answers import ClientLeftError, answers
from chatbot.chat.server.completions import new_completion, usage_chunk, whole
from chatbot.chat.server.event_stream import DONE, EventStream, event
from chatbot.chat.server.exchange import Exchange
from chatbot.chat.server.models import ServedModel
from chatbot.chat.server.problems import ERROR_RESPONSES, ApiError
from chatbot.chat.server.questions import chat_question, check_log_probs, completion_questions, echoes_of, prompts_of
from chatbot.chat.server.rates import Rates
from chatbot.chat.server.requests import ChatRequest, CompletionRequest, DecodingFields
from chatbot.chat.server.responses import ChatCompletion, TextCompletion, reply_or_stream
from chatbot.chat.server.state import ServerState, state_of
from chatbot.inference.questions import Piece, Question, Usage

log = logging.getLogger(__name__)
QuestionsOf = Callable[[ServedModel], Sequence[Question]]


def add_reply_routes(app: FastAPI) -> None:
    """Add the routes that answer questions."""

    chat_responses = {**reply_or_stream(ChatCompletion), **ERROR_RESPONSES}
    text_responses = {**reply_or_stream(TextCompletion), **ERROR_RESPONSES}

    @app.post("/v1/chat/completions", tags=["replies"], responses=chat_responses, response_class=Response)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Reply to the last message of a chat."""

        def questions_of(model: ServedModel) -> list[Question]:
            return [chat_question(body, model.searches, model.turns)]

        return await _respond(request, body, questions_of, (), chat=True, log_probs=bool(body.logprobs))

    @app.post("/v1/completions", tags=["replies"], responses=text_responses, response_class=Response)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Reply to one or more prompts, each without turns before it."""

        def questions_of(model: ServedModel) -> list[Question]:
            return completion_questions(body, model.searches)

        echoes = echoes_of(body)
        log_probs, prompts = body.logprobs is not None, len(prompts_of(body))
        return await _respond(request, body, questions_of, echoes, chat=False, log_probs=log_probs, prompts=prompts)


def client_of(request: Request) -> str:
    """Return who asks: as the gate has named the client, otherwise by its address."""
    address = "" if request.client is None else request.client.host
    return str(getattr(request.state, "client", address))


async def _respond(
    request: Request,
    body: DecodingFields,
    questions_of: QuestionsOf,
    echoes: Sequence[str],
    *,
    chat: bool,
    log_probs: bool,
    prompts: int = 1,
) -> Response:
    """Return the response: a completion, or the stream of its chunks. echoes: the beginnings of replies."""
    state = state_of(request)
    name = state.models.name_of(body.model)
    count_replies(state.rates, request.state.client, prompts * (body.n or 1))
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(state.models.use(name))
        client = client_of(request)
        questions = [dataclasses.replace(question, client=client) for question in questions_of(model)]
        check_log_probs(questions)
        exchange = Exchange(new_completion(name, model.fingerprint, chat), questions, echoes, log_probs)
        found = answers(model.engine, questions, request, state.request_timeout)
        stack.push_async_callback(found.aclose)
        first = await anext(found)  # an error before it has a status of its own
        if body.stream:
            options = body.stream_options
            usage = options is not None and bool(options.include_usage)
            return EventStream(_events(state, exchange, first, found, stack.pop_all(), usage=usage))
        exchange.add(first)
        async for item in found:
            exchange.add(item)
        _note(state, exchange)
        content = await asyncio.to_thread(_whole, exchange) if log_probs else _whole(exchange)
        return Response(content, media_type="application/json")
    raise AssertionError  # the stack suppresses no exception


def count_replies(rates: Rates, client: str, replies: int) -> None:
    """Count the replies to a request, which was counted as one already. Raises ApiError for too many."""
    if rates.limit and replies > rates.limit:
        message = f"n: {replies:,} replies to a request are more than the {rates.limit:,} a minute that are allowed"
        raise ApiError(400, message, param="n", code="invalid_value")
    rates.count(client, replies - 1, "replies")


def _whole(exchange: Exchange) -> bytes:
    """Return a completion as JSON. With log-probabilities, this may take a while."""
    return orjson.dumps(whole(exchange.completion, exchange.replies, exchange.usage, exchange.log_probs))


async def _events(
    state: ServerState,
    exchange: Exchange,
    first: Piece | Usage,
    rest: AsyncGenerator[Piece | Usage, None],
    stack: contextlib.AsyncExitStack,
    *,
    usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream. stack: what ends with it. usage: whether it was asked for."""
    completion, no_usage = exchange.completion, {"usage": None} if usage else {}

    def as_events(objects: Iterable[dict[str, Any]]) -> bytes:
        return b"".join(event(orjson.dumps({**value, **no_usage})) for value in objects)

    async with stack:
        try:
            item: Piece | Usage | None = first
            while item is not None:
                if isinstance(item, Piece):
                    yield as_events(exchange.chunks(item))
                else:
                    exchange.add(item)
                item = await anext(rest, None)
            _note(state, exchange)
            if usage:
                yield event(orjson.dumps(usage_chunk(completion, exchange.usage)))
            yield DONE
        except ClientLeftError:
            return
        except ApiError as error:
            yield event(error.body())
        except Exception as error:
            log.error("%s: %s: %s", completion.id, type(error).__name__, error)
            yield event(ApiError(500, "The server failed; its log says why").body())


def _note(state: ServerState, exchange: Exchange) -> None:
    """Count an answered request, and log it if conversations are logged."""
    name, usage = exchange.completion.model, exchange.usage
    state.metrics.replies.labels(name).inc(exchange.answered)
    state.metrics.tokens.labels(name, "question").inc(usage.question_tokens)
    state.metrics.tokens.labels(name, "reply").inc(usage.reply_tokens)
    if state.conversations is not None:
        for line in exchange.lines():
            state.conversations.add(line)

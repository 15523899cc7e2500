"""/v1/chat/completions and /v1/completions: from a request to the engine, and from its replies to the response."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from chatbot.chat.server.completions import DONE, Choices, EventStream, event, new_completion
from chatbot.chat.server.errors import ERROR_RESPONSES, ApiError, busy, too_many
from chatbot.chat.server.models import ServedModel
from chatbot.chat.server.questions import chat_question, check_log_probs, completion_questions, echoes_of, prompts_of
from chatbot.chat.server.schemas import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    DecodingFields,
    TextCompletion,
    reply_or_stream,
)
from chatbot.chat.server.state import ServerState, state_of
from chatbot.chat.service import ClientLeftError, RateLimit
from chatbot.errors import UserError
from chatbot.inference.engine import BusyError, Engine
from chatbot.inference.questions import Piece, Question, Ticket, Usage

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
    client = request.state.client  # as the gate has named who asks
    _count_replies(state.rate_limit, client, prompts * (body.n or 1))
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(state.models.use(name))
        questions = [dataclasses.replace(question, client=client) for question in questions_of(model)]
        check_log_probs(questions)
        choices = Choices(new_completion(name, model.fingerprint, chat), questions, echoes, log_probs)
        found = answers(model.engine, questions, request, state.request_timeout)
        stack.push_async_callback(found.aclose)
        first = await anext(found)  # an error before it has a status of its own
        if body.stream:
            options = body.stream_options
            usage = options is not None and bool(options.include_usage)
            return EventStream(_events(state, choices, first, found, stack.pop_all(), usage=usage))
        choices.add(first)
        async for item in found:
            choices.add(item)
        _note(state, choices)
        content = await asyncio.to_thread(choices.json) if log_probs else choices.json()
        return Response(content, media_type="application/json")
    raise AssertionError  # the stack suppresses no exception


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
    choices: Choices,
    first: Piece | Usage,
    rest: AsyncGenerator[Piece | Usage, None],
    stack: contextlib.AsyncExitStack,
    *,
    usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream. stack: what ends with it. usage: whether it was asked for."""
    completion, no_usage = choices.completion, {"usage": None} if usage else {}

    def as_events(objects: Iterable[dict[str, Any]]) -> bytes:
        return b"".join(event(orjson.dumps({**value, **no_usage})) for value in objects)

    async with stack:
        try:
            item: Piece | Usage | None = first
            while item is not None:
                if isinstance(item, Piece):
                    yield as_events(choices.chunks(item))
                else:
                    choices.add(item)
                item = await anext(rest, None)
            _note(state, choices)
            if usage:
                yield event(orjson.dumps(choices.usage_chunk()))
            yield DONE
        except ClientLeftError:
            return
        except ApiError as error:
            yield event(error.body())
        except Exception as error:
            log.error("%s: %s: %s", completion.id, type(error).__name__, error)
            yield event(ApiError(500, "The server failed; its log says why").body())


def _note(state: ServerState, choices: Choices) -> None:
    """Count an answered request, and log it if conversations are logged."""
    name, usage = choices.completion.model, choices.usage
    state.metrics.replies.labels(name).inc(choices.answered)
    state.metrics.tokens.labels(name, "question").inc(usage.question_tokens)
    state.metrics.tokens.labels(name, "reply").inc(usage.reply_tokens)
    if state.conversations is not None:
        for line in choices.lines():
            state.conversations.add(line)


async def answers(
    engine: Engine, questions: Sequence[Question], request: Request, timeout: float
) -> AsyncGenerator[Piece | Usage, None]:
    """Yield the pieces of the replies as they are found, and the usage of each question.

    The replies are numbered over all questions, which ask for the same number. request: its body was read. timeout:
    seconds for all replies. However this ends, the engine computes no more of them.

    Raises ClientLeftError, and ApiError after the timeout, if too many questions wait, and for settings that the model
    does not admit.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[tuple[int, Piece | Usage | Exception]] = asyncio.Queue()

    def receive(number: int, item: Piece | Usage | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(found.put_nowait, (number, item))

    late = ApiError(504, f"No reply within {timeout:g} seconds", code="timeout")
    timer = loop.call_later(timeout, found.put_nowait, (0, late))
    watch = asyncio.create_task(_watch(request, found))
    tickets: list[Ticket] = []
    try:
        for number, question in enumerate(questions):
            tickets.append(engine.submit(question, functools.partial(receive, number)))
        left = len(questions)
        while left:
            number, item = await found.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Usage):
                left -= 1
                yield item
            else:
                yield item._replace(reply=number * questions[number].replies + item.reply)
    except BusyError:
        raise busy("Too many questions are waiting; try again in a second") from None
    except UserError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
    finally:
        timer.cancel()
        watch.cancel()
        for ticket in tickets:
            ticket.cancel()


async def _watch(request: Request, found: "asyncio.Queue[Any]") -> None:
    """Put a ClientLeftError when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    found.put_nowait((0, ClientLeftError()))

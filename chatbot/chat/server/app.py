"""The ASGI app of the server and its routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from chatbot.chat.clients import RateLimit
from chatbot.chat.loading import pointer_path
from chatbot.chat.server.completions import chat_completions, completions
from chatbot.chat.server.errors import ERROR_RESPONSES, ApiError, add_error_handlers
from chatbot.chat.server.gate import Gate, Needs, Route
from chatbot.chat.server.models import Models
from chatbot.chat.server.page_routes import attention, describe_models, page, rate
from chatbot.chat.server.responses import responses
from chatbot.chat.server.state import Limits, LineLog, Metrics, ServerState, server_state
from chatbot.version import __version__

# The interval between checks for newer checkpoints, in seconds.
REFRESH_SECONDS = 5.0


async def health() -> dict[str, str]:
    """Report that the server process is running."""
    return {"status": "ok"}


async def ready(request: Request) -> dict[str, str]:
    """Report whether the server accepts questions. The status is 503 until a model is loaded and during shutdown."""
    state = server_state(request)
    if state.stopping or not state.models.loaded:
        raise ApiError(503, "The server is stopping" if state.stopping else "No model is loaded yet", code="not_ready")
    return {"status": "ok"}


async def metrics(request: Request) -> Response:
    """Return the Prometheus metrics."""
    return Response(server_state(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def list_models(request: Request) -> dict[str, Any]:
    """List the available models, starting with the default model."""
    models = await asyncio.to_thread(server_state(request).models.directories)
    return {"object": "list", "data": [_model_object(name, directory) for name, directory in models.items()]}


async def show_model(request: Request, name: str) -> dict[str, Any]:
    """Return the description of a model."""
    models = server_state(request).models
    resolved_name = models.resolve_name(name)
    return _model_object(resolved_name, models.directories()[resolved_name])


def _model_object(name: str, directory: Path) -> dict[str, Any]:
    """Return OpenAI's model object. Its field `created` is the Unix time at which the checkpoint was written."""
    try:
        created = int(pointer_path(directory).stat().st_mtime)
    except OSError:  # The model was just deleted.
        created = 0
    return {"id": name, "object": "model", "created": created, "owned_by": "chatbot"}


# Health checks need no API key and no allowed host, and do not count toward limits.
PROBE = Needs(key=False, host=False, slot=False, rate=False)
# The files of the web page need no API key, because the page itself asks the user for the key.
OPEN = Needs(key=False, slot=False, rate=False)
PLAIN_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}, **ERROR_RESPONSES}
ROUTES = [
    Route("/health", health, tag="status", needs=PROBE),
    Route("/health", health, "HEAD", needs=PROBE),
    Route("/ready", ready, tag="status", needs=PROBE),
    Route("/ready", ready, "HEAD", needs=PROBE),
    Route("/metrics", metrics, tag="status", needs=Needs(slot=False, rate=False), responses=PLAIN_TEXT),
    Route("/v1/models", list_models, tag="models"),
    Route("/v1/models/", list_models),
    Route("/v1/models/{name:path}", show_model, tag="models"),
    Route("/v1/chat/completions", chat_completions, "POST", "replies", response_class=Response),
    Route("/v1/completions", completions, "POST", "replies", response_class=Response),
    Route("/v1/responses", responses, "POST", "replies", response_class=Response),
    Route("/", page, needs=OPEN),
    Route("/", page, "HEAD", needs=OPEN),
    Route("/page/{name:path}", page, needs=OPEN),
    Route("/page/{name:path}", page, "HEAD", needs=OPEN),
    Route("/favicon.ico", page, needs=OPEN),
    # These requests do not count toward the rate limit, because the page sends them without an action of the user.
    Route("/chat/models", describe_models, tag="page", needs=Needs(rate=False)),
    Route("/chat/attention", attention, "POST", "page"),
]
# This route is only added if ratings are enabled.
RATE = Route("/chat/ratings", rate, "POST", "page")


def create_app(
    models: Models,
    limits: Limits = Limits(),  # noqa: B008  # immutable
    *,
    request_timeout: float = 60.0,
    cors_origins: Sequence[str] = (),
    log_conversation: Callable[[str], None] | None = None,
    log_access: Callable[[str], None] | None = None,
    ratings: Path | None = None,
) -> FastAPI:
    """Create the ASGI app. Its state is stored in `app.state.server`, a `ServerState`.

    Args:
        models: The models to offer.
        limits: The API keys, allowed hosts and usage limits.
        request_timeout: The maximum number of seconds to answer a request, including the time to load the model.
        cors_origins: The origins of web pages that are allowed to use the API.
        log_conversation: Writes a line to the log of conversations. The line is a JSON object with a question and its
            replies. None disables this log.
        log_access: Writes a line to the access log. The line contains the time, id, client, method, path, status and
            duration of a request. None disables this log.
        ratings: The file to append ratings to; None disables ratings.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        refresh = asyncio.create_task(_refresh(models))
        try:
            yield
        finally:
            refresh.cancel()
            for lines in filter(None, (conversations, access)):
                await asyncio.to_thread(lines.close)
            await models.close()

    routes = ROUTES if ratings is None else [*ROUTES, RATE]
    app = FastAPI(
        title="Chatbot",
        version=__version__,
        description="An OpenAI-compatible API for seq2seq chatbot models. Unlisted fields are ignored.",
        docs_url=None,  # Disabled, because FastAPI's documentation pages load scripts from other sites.
        redoc_url=None,
        lifespan=lifespan,
        routes=[*routes],
    )
    server_metrics = Metrics(lambda: sum(model.engine.waiting for model in models.loaded.values()))
    conversations = None if log_conversation is None else LineLog("--log-conversations", log_conversation)
    access = None if log_access is None else LineLog("--log-access", log_access)
    rate_limit = RateLimit(limits.rate)
    state = ServerState(models, limits, server_metrics, rate_limit, request_timeout, conversations, access, ratings)
    app.state.server = state
    add_error_handlers(app)
    app.add_middleware(Gate, state=state, routes=routes)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


async def _refresh(models: Models) -> None:
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        await models.refresh()

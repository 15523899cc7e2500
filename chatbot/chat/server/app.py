"""The app of the server, for any ASGI server or a test, and the table of its routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from chatbot.chat.loading import pointer_of
from chatbot.chat.server.completions import chat_completions, completions
from chatbot.chat.server.errors import ERROR_RESPONSES, ApiError, add_error_handlers
from chatbot.chat.server.gate import Gate, Needs, Route
from chatbot.chat.server.models import Models
from chatbot.chat.server.page_routes import attention, describe_models, page, rate
from chatbot.chat.server.responses import responses
from chatbot.chat.server.state import Limits, LineLog, Metrics, ServerState, state_of
from chatbot.chat.service import RateLimit
from chatbot.version import __version__

# Seconds between looks for newer checkpoints.
REFRESH = 5.0


async def health() -> dict[str, str]:
    """Answer while the process is alive."""
    return {"status": "ok"}


async def ready(request: Request) -> dict[str, str]:
    """Answer with 503 before a model is in memory, and while the server stops."""
    state = state_of(request)
    if state.stopping or not state.models.loaded:
        raise ApiError(503, "The server stops" if state.stopping else "No model is loaded yet", code="not_ready")
    return {"status": "ok"}


async def metrics(request: Request) -> Response:
    """Answer with the metrics of Prometheus."""
    return Response(state_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def list_models(request: Request) -> dict[str, Any]:
    """List the models, the default one first."""
    models = await asyncio.to_thread(state_of(request).models.directories)
    return {"object": "list", "data": [_object(name, directory) for name, directory in models.items()]}


async def show_model(request: Request, name: str) -> dict[str, Any]:
    """Show a model."""
    models = state_of(request).models
    known = models.name_of(name)
    return _object(known, models.directories()[known])


def _object(name: str, directory: Path) -> dict[str, Any]:
    """Return the object of a model. created: when its checkpoint was written, in seconds since 1970."""
    try:
        created = int(pointer_of(directory).stat().st_mtime)
    except OSError:  # the attempt was removed a moment ago
        created = 0
    return {"id": name, "object": "model", "created": created, "owned_by": "chatbot"}


# For probes.
PROBE = Needs(key=False, host=False, place=False, rate=False)
# For the page, which asks for a key itself.
OPEN = Needs(key=False, place=False, rate=False)
PLAIN_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}, **ERROR_RESPONSES}
ROUTES = [
    Route("/health", health, tag="status", needs=PROBE),
    Route("/health", health, "HEAD", needs=PROBE),
    Route("/ready", ready, tag="status", needs=PROBE),
    Route("/ready", ready, "HEAD", needs=PROBE),
    Route("/metrics", metrics, tag="status", needs=Needs(place=False, rate=False), responses=PLAIN_TEXT),
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
    # The page asks for its list of models by itself, so it is not a request of the user's.
    Route("/chat/models", describe_models, tag="page", needs=Needs(rate=False)),
    Route("/chat/attention", attention, "POST", "page"),
]
# Where ratings are collected.
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
    """Return the app. `app.state.server` is its `ServerState`.

    request_timeout: seconds for all replies of a request, and for loading its model. cors_origins: of web pages that
    may use the API. log_conversation: gets each question with its replies, as a line of JSON. log_access: gets a line
    for each request: its id, the client, the method, the path, the status and the seconds. ratings: the file to which
    ratings of replies are appended; None: none are collected.
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
        description="OpenAI's chat-completions API over seq2seq models. Fields that are not listed are ignored.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        routes=[*routes],
    )
    metrics_of_server = Metrics(lambda: sum(model.engine.waiting for model in models.loaded.values()))
    conversations = None if log_conversation is None else LineLog("--log-conversations", log_conversation)
    access = None if log_access is None else LineLog("--log-access", log_access)
    rate_limit = RateLimit(limits.rate)
    state = ServerState(models, limits, metrics_of_server, rate_limit, request_timeout, conversations, access, ratings)
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
        await asyncio.sleep(REFRESH)
        await models.refresh()

"""The app of the server, for any ASGI server or a test."""

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
from chatbot.chat.server.bodies import BodyRoute
from chatbot.chat.server.errors import ERROR_RESPONSES, ApiError, add_error_handlers
from chatbot.chat.server.gate import Gate
from chatbot.chat.server.models import Models
from chatbot.chat.server.page_routes import add_page_routes
from chatbot.chat.server.replies import add_reply_routes
from chatbot.chat.server.responses import add_responses_route
from chatbot.chat.server.state import Limits, LineLog, Metrics, ServerState, state_of
from chatbot.chat.service import RateLimit
from chatbot.version import __version__

# Seconds between looks for newer checkpoints.
REFRESH = 5.0


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

    app = FastAPI(
        title="Chatbot",
        version=__version__,
        description="OpenAI's chat-completions API over seq2seq models. Fields that are not listed are ignored.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses=ERROR_RESPONSES,
    )
    app.router.route_class = BodyRoute
    metrics = Metrics(lambda: sum(model.engine.waiting for model in models.loaded.values()))
    conversations = None if log_conversation is None else LineLog("--log-conversations", log_conversation)
    access = None if log_access is None else LineLog("--log-access", log_access)
    state = ServerState(models, limits, metrics, RateLimit(limits.rate), request_timeout, conversations, access)
    app.state.server = state
    add_error_handlers(app)
    add_status_routes(app)
    add_model_routes(app)
    add_reply_routes(app)
    add_responses_route(app)
    add_page_routes(app, ratings)
    app.add_middleware(Gate, state=state)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


async def _refresh(models: Models) -> None:
    while True:
        await asyncio.sleep(REFRESH)
        await models.refresh()


def add_status_routes(app: FastAPI) -> None:
    """Add the routes for who operates the server."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["status"])
    async def health() -> dict[str, str]:
        """Answer while the process is alive."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["status"])
    async def ready(request: Request) -> dict[str, str]:
        """Answer with 503 before a model is in memory, and while the server stops."""
        state = state_of(request)
        if state.stopping or not state.models.loaded:
            raise ApiError(503, "The server stops" if state.stopping else "No model is loaded yet", code="not_ready")
        return {"status": "ok"}

    @app.get("/metrics", tags=["status"], responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        """Answer with the metrics of Prometheus."""
        return Response(state_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def add_model_routes(app: FastAPI) -> None:
    """Add the routes that list models."""

    @app.get("/v1/models", tags=["models"])
    @app.get("/v1/models/", include_in_schema=False)
    async def list_models(request: Request) -> dict[str, Any]:
        """List the models, the default one first."""
        models = await asyncio.to_thread(state_of(request).models.directories)
        return {"object": "list", "data": [_object(name, directory) for name, directory in models.items()]}

    @app.get("/v1/models/{name:path}", tags=["models"])
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

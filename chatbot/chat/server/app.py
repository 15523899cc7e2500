"""The app of the server, for any ASGI server or a test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from chatbot.chat.server.bodies import BodyRoute
from chatbot.chat.server.conversation_log import ConversationLog
from chatbot.chat.server.gate import Gate, Limits
from chatbot.chat.server.metrics import Metrics
from chatbot.chat.server.model_routes import add_model_routes
from chatbot.chat.server.models import Models
from chatbot.chat.server.page_routes import add_page_routes
from chatbot.chat.server.problems import add_error_handlers
from chatbot.chat.server.rates import Rates
from chatbot.chat.server.reply_routes import add_reply_routes
from chatbot.chat.server.state import ServerState
from chatbot.chat.server.status_routes import add_status_routes
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
    ratings: Path | None = None,
) -> FastAPI:
    """Return the app. `app.state.server` is its `ServerState`.

    request_timeout: seconds for all replies of a request. cors_origins: of web pages that may use the API.
    log_conversation: gets each question with its replies, as a line of JSON. ratings: the file to which ratings of
    replies are appended; None: none are collected.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        refresh = asyncio.create_task(_refresh(models))
        try:
            yield
        finally:
            refresh.cancel()
            if conversations is not None:
                await asyncio.to_thread(conversations.close)
            await models.close()

    app = FastAPI(
        title="Chatbot",
        version=__version__,
        description="OpenAI's chat-completions API over seq2seq models. Fields that are not listed are ignored.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.router.route_class = BodyRoute
    metrics = Metrics(lambda: sum(model.engine.waiting for model in models.loaded.values()))
    rates = Rates(limits.rate)
    conversations = None if log_conversation is None else ConversationLog(log_conversation)
    app.state.server = ServerState(models, metrics, rates, request_timeout, conversations)
    add_error_handlers(app)
    add_status_routes(app)
    add_model_routes(app)
    add_reply_routes(app)
    add_page_routes(app, ratings)
    app.add_middleware(Gate, limits=limits, metrics=metrics, rates=rates)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


async def _refresh(models: Models) -> None:
    while True:
        await asyncio.sleep(REFRESH)
        await models.refresh()

"""/health, /ready and /metrics."""

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import Response

from chatbot.chat.server.problems import ERROR_RESPONSES, ApiError
from chatbot.chat.server.state import state_of


class Status(BaseModel):
    """That the server is well."""

    status: str = "ok"


def add_status_routes(app: FastAPI) -> None:
    """Add the routes for who operates the server."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["status"], responses=ERROR_RESPONSES)
    async def health() -> Status:
        """Answer while the process is alive."""
        return Status()

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["status"], responses=ERROR_RESPONSES)
    async def ready(request: Request) -> Status:
        """Answer with 503 before a model is in memory, and while the server stops."""
        state = state_of(request)
        if state.stopping or not state.models.loaded:
            raise ApiError(503, "The server stops" if state.stopping else "No model is loaded yet", code="not_ready")
        return Status()

    @app.get("/metrics", tags=["status"], responses={200: {"content": {"text/plain": {}}}, **ERROR_RESPONSES})
    async def metrics(request: Request) -> Response:
        """Answer with the metrics of Prometheus."""
        return Response(state_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

"""Errors of the API, in the form of OpenAI's: {"error": {"message", "type", "param", "code"}}."""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.inference.engine import BusyError

log = logging.getLogger(__name__)
# The status of requests whose client left before a response began, in the metrics, as nginx counts them.
CLIENT_LEFT = 499
# The types of OpenAI's errors by status; of others, invalid_request_error below 500, and server_error from there.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "server_error"}
# The field that only the bodies of a path have.
FIELDS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/responses"}

# For the OpenAPI description of all routes. They take the place of FastAPI's own 422.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be answered"},
    "5XX": {"description": "The server failed, or stops"},
}


class ApiError(HTTPException):
    """An error that the client gets. retry_after: seconds, for a status after which the same request may succeed."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        retry = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, {**(headers or {}), **retry})
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """Return the body of the response, as JSON."""
        kind = TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return orjson.dumps({"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}})

    def response(self) -> Response:
        """Return the response."""
        return Response(self.body(), self.status_code, self.headers, "application/json")


def too_many(what: str, wait: int) -> ApiError:
    """Return the error of a client that asks too often. what: that there are too many of. wait: seconds."""
    message = f"Too many {what} in a minute; wait {counted(wait, 'second')}"
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)


def api_error_of(error: Exception, place: str) -> ApiError:
    """Return what a client gets for an exception. One that is nobody's mistake is logged, with its place."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        return ApiError(429, "Too many questions are waiting; try again in a second", code="busy", retry_after=1)
    if isinstance(error, asyncio.TimeoutError):
        return ApiError(504, str(error), code="timeout")
    if isinstance(error, UserError):
        return ApiError(400, str(error), code="invalid_value")
    log.error("%s: %s: %s", place, type(error).__name__, error)
    return ApiError(500, "The server failed; its log says why")


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error of a body that is not as declared: the field that is wrong, with Pydantic's message.

    errors: those of Pydantic. Of a union's alternatives, the value fits that one best whose error is deepest in it, and
    not about its type.
    """
    error = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    field = field_of(error["loc"])
    others = [name for name in FIELDS if error["type"] == "missing" and field in FIELDS and name in error["input"]]
    remedy = f"; a body with {others[0]} is for {FIELDS[others[0]]}" if others else ""
    return ApiError(400, f"{field or 'The body'}: {error['msg']}{remedy}", param=field, code="invalid_value")


def field_of(location: Sequence[int | str]) -> str | None:
    """Return the field at a location of Pydantic's: ("body", "messages", 0, "role") -> messages[0].role."""
    field = ""
    for part in location[1:]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif part.isidentifier() and part != "str":  # otherwise an alternative of a union
            field += f".{part}" if field else part
    return field or None


def _remedy(path: str) -> str:
    """Return what a client that asked for a path may have meant, "" for other paths."""
    end = re.search(r"/(chat/completions|completions|responses|models)$", path)
    return f"; use /v1{end[0]}: the base URL ends in /v1, once" if end else ""


def add_error_handlers(app: FastAPI) -> None:
    """Make all errors of an app have the form of OpenAI's."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if isinstance(error, ApiError):
            return error.response()
        message = str(error.detail)
        code = None
        path = request.url.path[:200]
        if error.status_code == 404:
            message = f"No such path: {path}{_remedy(path)}"
            code = "not_found"
        if error.status_code == 405:
            message = f"{request.method} is not allowed for {path}; use {(error.headers or {}).get('Allow', 'another')}"
        return ApiError(error.status_code, message, code=code, headers=error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return invalid(error.errors()).response()

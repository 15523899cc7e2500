"""API errors in OpenAI's format: {"error": {"message", "type", "param", "code"}}."""

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

from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.inference.request_queue import BusyError

log = logging.getLogger(__name__)
# The status in metrics and logs if the client disconnects before the response starts. nginx uses the same number.
CLIENT_LEFT = 499
# Maps HTTP statuses to OpenAI's error types. The default is invalid_request_error, or server_error from status 500.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "server_error"}
# Maps fields to the only URL path whose requests must contain them.
FIELDS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/responses"}

# The error responses in the OpenAPI description of all routes. They replace status 422, the default of FastAPI.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is invalid or not allowed"},
    "5XX": {"description": "The server failed or is stopping"},
}


class ApiError(HTTPException):
    """An error response in OpenAI's format.

    Args:
        status: The HTTP status code.
        message: A description of the problem and its solution.
        param: The name of the invalid request field.
        code: A short machine-readable name of the error.
        retry_after: The number of seconds after which the client can retry.
        headers: Additional response headers.
    """

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
        """Return the response body as JSON."""
        kind = TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return orjson.dumps({"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}})

    def response(self) -> Response:
        """Return the HTTP response."""
        return Response(self.body(), self.status_code, self.headers, "application/json")


def rate_limit_error(things: str, wait: int) -> ApiError:
    """Return the error for a client that exceeds its rate limit.

    Args:
        things: What is limited, as a plural noun such as "requests".
        wait: The number of seconds after which the client can retry.
    """
    message = f"Too many {things} per minute; wait {pluralize(wait, 'second')}"
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)


def to_api_error(error: Exception, place: str) -> ApiError:
    """Convert an exception to an error response. Log unexpected exceptions, with the text `place` as a prefix."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        return ApiError(429, "Too many questions are waiting; try again in a second", code="busy", retry_after=1)
    if isinstance(error, asyncio.TimeoutError):
        return ApiError(504, str(error), code="timeout")
    if isinstance(error, UserError):
        return ApiError(400, str(error), code="invalid_value")
    log.error("%s: %s: %s", place, type(error).__name__, error)
    return ApiError(500, "The server failed; see its log")


def from_validation_errors(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Convert Pydantic's validation errors to one error that names the invalid field.

    If a field has a union type, Pydantic reports an error for each member of the union. The most deeply nested error is
    chosen, because it concerns the member that the client probably meant. Type errors are chosen last.
    """
    error = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    field = field_path(error["loc"])
    is_missing = error["type"] == "missing" and field in FIELDS
    present = [name for name in FIELDS if is_missing and name in error["input"]]
    remedy = f"; send a body with {present[0]} to {FIELDS[present[0]]}" if present else ""
    return ApiError(400, f"{field or 'The body'}: {error['msg']}{remedy}", param=field, code="invalid_value")


def field_path(location: Sequence[int | str]) -> str | None:
    """Format the location of a field, such as ("body", "messages", 0, "role"), as "messages[0].role"."""
    field = ""
    for part in location[1:]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif part.isidentifier() and part != "str":  # Other elements of the location name members of a union type.
            field += f".{part}" if field else part
    return field or None


def _base_url_hint(path: str) -> str:
    """Return a hint if the URL path suggests that the client's base URL is wrong, or else an empty string."""
    suffix = re.search(r"/(chat/completions|completions|responses|models)$", path)
    return f"; use /v1{suffix[0]}: the base URL must end in a single /v1" if suffix else ""


def add_error_handlers(app: FastAPI) -> None:
    """Convert all error responses of an app to OpenAI's format."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if isinstance(error, ApiError):
            return error.response()
        message = str(error.detail)
        code = None
        path = request.url.path[:200]
        if error.status_code == 404:
            message = f"No such path: {path}{_base_url_hint(path)}"
            code = "not_found"
        if error.status_code == 405:
            message = f"{request.method} is not allowed for {path}; use {(error.headers or {}).get('Allow', 'another')}"
        return ApiError(error.status_code, message, code=code, headers=error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return from_validation_errors(error.errors()).response()

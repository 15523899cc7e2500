"""Errors of the API, in the form of OpenAI's: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from chatbot.corpus.reading.display import counted

# The types of OpenAI's errors by status; of others, invalid_request_error below 500, and server_error from there.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "server_error"}


class ErrorDetail(BaseModel):
    """What is wrong. param: the field of the request. code: for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every response with a status of at least 400."""

    error: ErrorDetail


# For the OpenAPI description of a route. It takes the place of FastAPI's own 422.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be answered"},
    "5XX": {"model": ErrorBody, "description": "The server failed, or stops"},
}


class ApiError(Exception):
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
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def body(self) -> bytes:
        """Return the body of the response, as JSON."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return orjson.dumps({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})

    def response(self) -> Response:
        """Return the response."""
        return Response(self.body(), self.status, self.headers, "application/json")


def busy(message: str) -> ApiError:
    """Return the error of a request while too many others are being answered; it may succeed a second later."""
    return ApiError(429, message, code="busy", retry_after=1)


def too_many(what: str, wait: int) -> ApiError:
    """Return the error of a client that asks too often. what: that there are too many of. wait: seconds."""
    message = f"Too many {what} in a minute; wait {counted(wait, 'second')}"
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error of a body that is not as declared: the first field that is wrong, with Pydantic's message.

    errors: those of Pydantic. Of the errors of a union's alternatives, those count that are deepest in the value. That
    it is of another type counts only if it is of no alternative's type.
    """
    if errors[0]["type"] == "json_invalid":
        return ApiError(400, "The body is not JSON", code="invalid_json")
    place = _before_alternatives(errors[0]["loc"])
    same = [error for error in errors if _before_alternatives(error["loc"])[: len(place)] == place]
    deepest = max(same, key=lambda error: len(error["loc"]))  # the first of several
    field = field_of(deepest["loc"])
    of_field = [error for error in same if field_of(error["loc"]) == field]
    of_type = [error for error in of_field if not error["type"].endswith("_type")]
    first, *others = dict.fromkeys(error["msg"] for error in of_type[:1] or of_field)
    expected = " or ".join([first, *(message.removeprefix("Input should be ") for message in others)])
    return ApiError(400, f"{field or 'The body'}: {expected}", param=field, code="invalid_value")


def field_of(location: Sequence[int | str]) -> str | None:
    """Return the field at a location of Pydantic's: ("body", "messages", 0, "role") -> messages[0].role."""
    field = ""
    for part in location[1:]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif not _is_alternative(part):
            field += f".{part}" if field else part
    return field or None


def _before_alternatives(location: Sequence[int | str]) -> list[int | str]:
    """Return the part of a location that the errors of all alternatives of a union share."""
    parts = [*location]
    return parts[: next((number for number, part in enumerate(parts) if _is_alternative(part)), len(parts))]


def _is_alternative(part: int | str) -> bool:
    return isinstance(part, str) and (not part.isidentifier() or part in {"str", "int", "float", "bool"})


def add_error_handlers(app: FastAPI) -> None:
    """Make all errors of an app have the form of OpenAI's."""

    async def api_error(request: Request, error: ApiError) -> Response:
        return error.response()

    async def http_error(request: Request, error: HTTPException) -> Response:
        found = ApiError(error.status_code, str(error.detail), headers=error.headers)
        if error.status_code == 404:
            found.message, found.code = f"No such path: {request.url.path[:200]}", "not_found"
        if error.status_code == 400:
            found.message, found.code = "The body is not JSON", "invalid_json"
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            found.message = f"{request.method} is not allowed for {request.url.path[:200]}; use {allowed}"
        return found.response()

    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return invalid(error.errors()).response()

    app.add_exception_handler(ApiError, api_error)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, http_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, validation_error)  # type: ignore[arg-type]

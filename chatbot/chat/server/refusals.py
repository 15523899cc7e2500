"""What a connection answers by itself, without the app."""

import json
from typing import NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

# Of the line and the headers of a request, those after a body in chunks included.
LARGEST_HEAD, MOST_HEADERS = 1 << 16, 200
# Requests that a client may send before the first of them is answered.
MOST_PIPELINED = 16


class Refusal(NamedTuple):
    """An error that ends a connection."""

    status: int
    message: str
    code: str


NO_HTTP = Refusal(400, "The request is not valid HTTP", "invalid_http")
TOO_LARGE = Refusal(
    431, f"The headers have more than {LARGEST_HEAD:,} bytes, or are more than {MOST_HEADERS}", "headers_too_large"
)
TOO_MANY_REQUESTS = Refusal(400, f"At most {MOST_PIPELINED} requests may wait for their answers", "too_many_requests")
TOO_MANY_CONNECTIONS = Refusal(503, "Too many connections are open; try again", "busy")


def response_of(refusal: Refusal) -> bytes:
    """Return the bytes of the response, whose body is an error as those of the API."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}
    body = json.dumps({"error": error}).encode()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[refusal.status] + head + body

"""Signatures of requests: HMAC-SHA256 of the time and the body, by a secret that both sides know.

The signature is the hexadecimal HMAC-SHA256 of the timestamp, a full stop and the body. The timestamp is in seconds
since 1970, so that a request that was recorded is of no use later.
"""

import hashlib
import hmac
import time
from collections.abc import Callable

TIMESTAMP, SIGNATURE = "X-Chatbot-Timestamp", "X-Chatbot-Signature"
# A request that is older, or as much in the future, is refused.
WINDOW = 300.0


def signature_of(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the signature of a request."""
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def signed_headers(secret: bytes, body: bytes) -> dict[str, str]:
    """Return the headers of a request with this body that is sent now."""
    timestamp = str(int(time.time()))
    return {TIMESTAMP: timestamp, SIGNATURE: signature_of(secret, timestamp, body)}


class Verifier:
    """Verifies requests. Each one is accepted once. clock: in seconds since 1970."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._clock = secret, clock
        self._seen: dict[str, float] = {}  # signature -> when it is too old, the oldest first

    def refusal(self, timestamp: str, signature: str, body: bytes) -> str | None:
        """Return why a request is refused, or None for a genuine one. A header that is missing is empty."""
        now = self._clock()
        for name, value in ((TIMESTAMP, timestamp), (SIGNATURE, signature)):
            if not value:
                return f"{name}: the header is missing"
        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
            return f"{TIMESTAMP}: expected the seconds since 1970"
        expected = signature_of(self._secret, timestamp, body)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return f"{SIGNATURE}: not the signature of this timestamp and body"
        if abs(now - int(timestamp)) > WINDOW:
            return f"{TIMESTAMP}: more than {WINDOW:.0f} seconds from now"
        while self._seen and next(iter(self._seen.values())) < now:
            del self._seen[next(iter(self._seen))]
        if expected in self._seen:
            return f"{SIGNATURE}: this request was received before"
        self._seen[expected] = now + 2 * WINDOW
        return None

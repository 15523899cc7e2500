"""Signatures of requests and callbacks: HMAC-SHA256 by a secret that both sides know.

What is signed is "request" or "callback", the time and the body, with a full stop after each of the first two. So the
signature of one is never that of the other. The time is in seconds since 1970, so that a request that was recorded is
of no use later.
"""

import contextlib
import hashlib
import hmac
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from chatbot.errors import UserError

TIMESTAMP, SIGNATURE = "X-Chatbot-Timestamp", "X-Chatbot-Signature"
# A request that is older, or as much in the future, is refused.
WINDOW = 300.0

Kind = Literal["request", "callback"]


def signature_of(secret: bytes, kind: Kind, timestamp: str, body: bytes) -> str:
    """Return the signature of a request or a callback."""
    return hmac.new(secret, f"{kind}.{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def signed_headers(secret: bytes, kind: Kind, body: bytes) -> dict[str, str]:
    """Return the headers of a request or a callback with this body that is sent now."""
    timestamp = str(int(time.time()))
    return {TIMESTAMP: timestamp, SIGNATURE: signature_of(secret, kind, timestamp, body)}


class Verifier:
    """Verifies requests, from any thread. Each one is accepted once.

    seen: the file that remembers the requests of the last minutes, so that none is accepted again after a restart. It
    is made with its folder. clock: in seconds since 1970. Raises UserError for a file that cannot be used.
    """

    def __init__(self, secret: bytes, seen: Path, clock: Callable[[], float] = time.time) -> None:
        self.secret = secret
        self._seen, self._clock = seen, clock
        try:
            seen.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS seen (signature PRIMARY KEY, until REAL) WITHOUT ROWID")
                connection.execute("CREATE INDEX IF NOT EXISTS seen_until ON seen (until)")
                connection.execute("DELETE FROM seen WHERE until < ?", [clock()])
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--seen-file {seen}: {reason}; give a file in a folder that can be written") from error

    def refusal(self, timestamp: str, signature: str, body: bytes) -> str | None:
        """Return why a request is refused, or None for a genuine one. A header that is missing is empty.

        Raises sqlite3.Error if the request cannot be remembered.
        """
        now = self._clock()
        for name, value in ((TIMESTAMP, timestamp), (SIGNATURE, signature)):
            if not value:
                return f"{name}: the header is missing"
        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
            return f"{TIMESTAMP}: expected the seconds since 1970"
        expected = signature_of(self.secret, "request", timestamp, body)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return f"{SIGNATURE}: not the signature of this timestamp and body"
        if abs(now - int(timestamp)) > WINDOW:
            return f"{TIMESTAMP}: more than {WINDOW:.0f} seconds from now"
        with self._opened() as connection:
            connection.execute("DELETE FROM seen WHERE until < ?", [now])
            added = connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", [expected, now + 2 * WINDOW])
            return None if added.rowcount else f"{SIGNATURE}: this request was received before"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, and commit at the end."""
        with contextlib.closing(sqlite3.connect(self._seen)) as connection, connection:
            yield connection

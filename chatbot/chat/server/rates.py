"""The rate at which each client may do something."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from chatbot.chat.server.problems import ApiError
from chatbot.corpus.reading.display import counted

# Clients that are remembered. The one that asked least recently is forgotten, which a full minute would do anyway
# unless as many ask within it.
MOST_CLIENTS = 10_000


class Rates:
    """Limits each client: at most `limit` at once, and as many in each minute after (token bucket).

    limit: 0 for none. clock: returns the time in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self._clock = limit, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # of the limit, and at what time

    def wait(self, client: str, number: int = 1) -> int:
        """Count a number if it is within the limit. Returns 0, or the seconds to wait until it is."""
        if not self.limit:
            return 0
        left = self._left_of(client)
        allowed = left >= number
        self._left[client] = (left - number if allowed else left, self._clock())
        self._left.move_to_end(client)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0 if allowed else self._seconds(number - left)

    def seconds_until(self, client: str) -> int:
        """Return the seconds until a client is within the limit, without counting anything."""
        return self._seconds(1 - self._left_of(client)) if self.limit and self._left_of(client) < 1 else 0

    def count(self, client: str, number: int, what: str) -> None:
        """Count a number. Raises ApiError (429) beyond the limit. what: that there are too many of, in the plural."""
        if wait := self.wait(client, number):
            raise too_many(what, wait)

    def _left_of(self, client: str) -> float:
        now = self._clock()
        left, then = self._left.get(client, (float(self.limit), now))
        return min(float(self.limit), left + (now - then) * self.limit / 60)

    def _seconds(self, number: float) -> int:
        return max(1, math.ceil(number * 60 / self.limit))


def too_many(what: str, wait: int) -> ApiError:
    """Return the error (429) of too many of something in a minute. wait: seconds."""
    message = f"Too many {what} in a minute; wait {counted(wait, 'second')}"
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=wait)

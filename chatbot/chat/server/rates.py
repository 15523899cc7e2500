"""The rate of the requests of each client."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

# Clients that are remembered. The one that asked least recently is forgotten, which a full minute would do anyway
# unless as many ask within it.
MOST_CLIENTS = 10_000


class Rates:
    """Limits the requests of each client: at most `limit` at once, and as many in each minute after (token bucket).

    limit: 0 for none. clock: returns the time in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, and at what time

    def wait(self, client: str) -> int:
        """Count a request. Returns 0 if it is within the limit, otherwise the seconds to wait for the next one."""
        if not self._limit:
            return 0
        now = self._clock()
        left, then = self._left.pop(client, (float(self._limit), now))
        left = min(float(self._limit), left + (now - then) * self._limit / 60)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0 if allowed else max(1, math.ceil((1 - left) * 60 / self._limit))

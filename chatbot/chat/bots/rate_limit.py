"""A limit of messages per minute: a token bucket."""

import math
import time
from collections.abc import Callable


class RateLimit:
    """At most `per_minute` messages at once; then one each 60 / per_minute seconds. clock: in seconds."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._most = per_minute / 60, float(per_minute)
        self._clock = clock
        self._left, self._time = self._most, clock()
        self._refusals = 0

    def wait(self) -> int:
        """Count a message. Returns 0, or for one that is refused, the seconds until the next one is not."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._time) * self._per_second)
        self._time = now
        if self._left >= 1:
            self._left -= 1
            self._refusals = 0
            return 0
        self._refusals += 1
        return max(1, math.ceil((1 - self._left) / self._per_second))

    def is_first_refusal(self) -> bool:
        """Return whether the last message was refused and the one before it was not."""
        return self._refusals == 1

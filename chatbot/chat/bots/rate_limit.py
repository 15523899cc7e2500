"""A limit of messages per minute, of each conversation: token buckets."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

# Conversations with a message in the last minute.
MOST_CONVERSATIONS = 100_000


class RateLimits:
    """At most `per_minute` messages of a conversation at once; then one each 60 / per_minute seconds.

    A conversation is forgotten after a minute without a message, when this changes nothing any more, and never before:
    while there are `most` others, a new one waits. clock: in seconds.
    """

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic, most: int = MOST_CONVERSATIONS
    ) -> None:
        self._per_second, self._full = per_minute / 60, float(per_minute)
        self._clock, self._most = clock, most
        # Messages left, when, and refusals since one was accepted; the conversation with the oldest message first.
        self._buckets: OrderedDict[str, tuple[float, float, int]] = OrderedDict()

    def wait(self, conversation: str) -> int:
        """Count a message. Returns 0, or for one that is refused, the seconds until the next one is not."""
        now = self._clock()
        while self._buckets and (oldest := next(iter(self._buckets.values())))[1] <= now - 60:
            self._buckets.popitem(last=False)
        if conversation not in self._buckets and len(self._buckets) >= self._most:
            return max(1, math.ceil(oldest[1] + 60 - now))
        left, then, refusals = self._buckets.pop(conversation, (self._full, now, 0))
        left = min(self._full, left + (now - then) * self._per_second)
        is_accepted = left >= 1
        self._buckets[conversation] = (left - is_accepted, now, 0 if is_accepted else refusals + 1)
        return 0 if is_accepted else max(1, math.ceil((1 - left) / self._per_second))

    def is_first_refusal(self, conversation: str) -> bool:
        """Return whether the last message was refused and the one before it was not."""
        return conversation not in self._buckets or self._buckets[conversation][2] == 1

"""The questions that wait for the engine."""

import threading
from collections import deque

from chatbot.inference.batching.asked import Asked


class BusyError(Exception):
    """As many questions wait as may, or the engine closes."""


class Waiting:
    """Questions that wait, in the order in which they arrived; of several lanes, whose threads take them.

    most: the number of questions that may wait. characters: of all of them.
    """

    def __init__(self, lanes: int, most: int, characters: int) -> None:
        self._lanes: tuple[deque[Asked], ...] = tuple(deque() for _ in range(lanes))
        self._most, self._characters = most, characters
        self._lock = threading.RLock()
        self._arrived = tuple(threading.Condition(self._lock) for _ in range(lanes))  # or `close` was called
        self._is_closed = False

    def __len__(self) -> int:
        with self._lock:
            self._drop_cancelled()
            return sum(map(len, self._lanes))

    def number(self, lane: int) -> int:
        """Return the number of questions of a lane, those that nobody waits for any more included."""
        return len(self._lanes[lane])

    def put(self, lane: int, asked: Asked) -> None:
        """Add a question. Raises BusyError if there are too many, or after `close`."""
        with self._lock:
            if self._is_closed or not self._has_room(asked):
                self._drop_cancelled()
                if self._is_closed or not self._has_room(asked):
                    raise BusyError
            self._lanes[lane].append(asked)
            self._arrived[lane].notify_all()  # one of several threads may wait for more questions than this

    def take(self, lane: int, replies: int, blocks: bool, wanted: int = 1, patience: float = 0.0) -> list[Asked] | None:
        """Return the next questions of a lane with at most as many replies in all, but at least one if `blocks`.

        blocks: whether to wait for a question. Then None is returned after `close` when none is left. wanted, patience:
        wait until there are so many questions, but at most so many seconds.
        """
        waiting, arrived = self._lanes[lane], self._arrived[lane]
        with self._lock:
            if wanted > 1:
                arrived.wait_for(lambda: self._is_closed or len(waiting) >= wanted, patience)
            while True:
                taken: list[Asked] = []
                while waiting and (waiting[0].question.replies <= replies or (blocks and not taken)):
                    asked = waiting.popleft()
                    if not asked.is_over:
                        taken.append(asked)
                        replies -= asked.question.replies
                if taken or not blocks:
                    return taken
                if self._is_closed:
                    return None
                arrived.wait()

    def close(self) -> None:
        """Take no more questions."""
        with self._lock:
            self._is_closed = True
            for arrived in self._arrived:
                arrived.notify_all()

    def _has_room(self, asked: Asked) -> bool:
        waiting = [other for lane in self._lanes for other in lane]
        if len(waiting) >= self._most:
            return False
        return not waiting or sum(other.characters for other in waiting) + asked.characters <= self._characters

    def _drop_cancelled(self) -> None:
        for lane in self._lanes:
            left = [asked for asked in lane if not asked.is_over]
            lane.clear()
            lane.extend(left)

"""The questions that wait for the engine."""

import threading
from collections import OrderedDict, deque

from chatbot.inference.questions import Request

# All clients together may use this many times what one client may.
SHARES = 4


class BusyError(Exception):
    """As many questions wait as may, or the engine closes."""


class Waiting:
    """Questions that wait; of several lanes, whose threads take them.

    The clients of a lane are served in turn, with one question each. most: the number of questions of a client that may
    wait; of all clients together, four times as many.
    """

    def __init__(self, lanes: int, most: int) -> None:
        self._most = most
        # The questions of each client, the one whose turn is next first.
        self._lanes = tuple(OrderedDict[str, deque[Request]]() for _ in range(lanes))
        self._lock = threading.RLock()
        self._arrived = tuple(threading.Condition(self._lock) for _ in range(lanes))  # or `close` was called
        self._is_closed = False

    def __len__(self) -> int:
        with self._lock:
            self._drop_cancelled()
            return sum(map(self.number, range(len(self._lanes))))

    def number(self, lane: int) -> int:
        """Return the number of questions of a lane, those that nobody waits for any more included."""
        with self._lock:
            return sum(map(len, self._lanes[lane].values()))

    def put(self, lane: int, request: Request) -> None:
        """Add a question. Raises BusyError if there are too many, or after `close`."""
        client = request.question.client
        with self._lock:
            if self._is_full(client):
                self._drop_cancelled()
            if self._is_closed or self._is_full(client):
                raise BusyError
            self._lanes[lane].setdefault(client, deque()).append(request)
            self._arrived[lane].notify_all()  # one of several threads may wait for more questions than this

    def take(
        self, lane: int, replies: int, blocks: bool, wanted: int = 1, patience: float = 0.0
    ) -> list[Request] | None:
        """Return the next questions of a lane with at most as many replies in all, but at least one if `blocks`.

        blocks: whether to wait for a question. Then None is returned after `close` when none is left. wanted, patience:
        wait until there are so many questions, but at most so many seconds.
        """
        arrived = self._arrived[lane]
        with self._lock:
            if wanted > 1:
                arrived.wait_for(lambda: self._is_closed or self.number(lane) >= wanted, patience)
            while True:
                requests = self._requests(lane, replies, blocks)
                if requests or not blocks:
                    return requests
                if self._is_closed:
                    return None
                arrived.wait()

    def _requests(self, lane: int, replies: int, at_least_one: bool) -> list[Request]:
        """Remove and return the next questions with at most as many replies in all."""
        clients, requests = self._lanes[lane], list[Request]()
        while clients:
            client, questions = next(iter(clients.items()))
            if questions[0].is_over:
                questions.popleft()
            elif questions[0].question.replies > replies and (requests or not at_least_one):
                break
            else:
                requests.append(questions.popleft())
                replies -= requests[-1].question.replies
                clients.move_to_end(client)
            if not questions:
                del clients[client]
        return requests

    def close(self) -> None:
        """Take no more questions."""
        with self._lock:
            self._is_closed = True
            for arrived in self._arrived:
                arrived.notify_all()

    def _is_full(self, client: str) -> bool:
        everyone = sum(map(self.number, range(len(self._lanes))))
        return everyone >= SHARES * self._most or sum(len(lane.get(client, ())) for lane in self._lanes) >= self._most

    def _drop_cancelled(self) -> None:
        for clients in self._lanes:
            for client, questions in [*clients.items()]:
                clients[client] = deque(request for request in questions if not request.is_over)
                if not clients[client]:
                    del clients[client]

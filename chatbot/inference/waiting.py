"""The questions that wait for a thread of the engine."""

import threading
from collections import OrderedDict, deque

from chatbot.inference.questions import Request

# All clients together may use this many times what one client may.
SHARES = 4


class BusyError(Exception):
    """As many questions wait as may, or the engine closes."""


class Waiting:
    """Questions that wait. Clients are served in turn, with one question each.

    most: the number of questions of a client that may wait; of all clients together, four times as many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # The questions of each client, the one whose turn is next first.
        self._clients = OrderedDict[str, deque[Request]]()
        self._arrived = threading.Condition()  # or `close` was called
        self._is_closed = False

    def __len__(self) -> int:
        with self._arrived:
            self._drop_cancelled()
            return sum(map(len, self._clients.values()))

    def put(self, request: Request) -> None:
        """Add a question. Raises BusyError if there are too many, or after `close`."""
        client = request.question.client
        with self._arrived:
            everyone = len(self)
            of_client = self._clients.get(client, deque())
            if self._is_closed or everyone >= SHARES * self._most or len(of_client) >= self._most:
                raise BusyError
            of_client.append(request)
            self._clients[client] = of_client
            self._arrived.notify_all()  # one of several threads may wait for more questions than this

    def take(self, replies: int, blocks: bool, enough: int = 1, patience: float = 0.0) -> list[Request] | None:
        """Return the next questions with at most as many replies in all, but at least one if `blocks`.

        blocks: whether to wait for a question. Then None is returned after `close` when none is left. enough, patience:
        wait until there are so many questions, but at most so many seconds.
        """
        with self._arrived:
            if enough > 1:
                self._arrived.wait_for(lambda: self._is_closed or len(self) >= enough, patience)
            while not (requests := self._next(replies, blocks)) and blocks:
                if self._is_closed:
                    return None
                self._arrived.wait()
            return requests

    def close(self) -> None:
        """Take no more questions."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()

    def _next(self, replies: int, at_least_one: bool) -> list[Request]:
        """Remove and return the next questions with at most as many replies in all."""
        self._drop_cancelled()
        requests = list[Request]()
        while self._clients:
            client, questions = next(iter(self._clients.items()))
            if questions[0].question.replies > replies and (requests or not at_least_one):
                break
            requests.append(questions.popleft())
            replies -= requests[-1].question.replies
            self._clients.move_to_end(client)
            if not questions:
                del self._clients[client]
        return requests

    def _drop_cancelled(self) -> None:
        for client, questions in [*self._clients.items()]:
            self._clients[client] = deque(request for request in questions if not request.is_over)
            if not self._clients[client]:
                del self._clients[client]

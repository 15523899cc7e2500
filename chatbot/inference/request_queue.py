"""The request queue of an engine, which serves clients in turn."""

import math
import threading
from collections import OrderedDict, deque

from chatbot.inference.request import Request

# The ratio of the queue's total capacity to the limit for a single client.
QUEUE_FACTOR = 4


class BusyError(Exception):
    """Raised if the queue is full or the engine is closing."""


class RequestQueue:
    """A thread-safe queue of requests. It serves the clients in turn, one question at a time.

    Args:
        max_per_client: The maximum number of waiting questions per client. The capacity of the whole queue is
            QUEUE_FACTOR times this number.
    """

    def __init__(self, max_per_client: int) -> None:
        self._max_per_client = max_per_client
        # The waiting requests of each client, ordered by whose turn is next.
        self._clients = OrderedDict[str, deque[Request]]()
        self._arrived = threading.Condition()  # notified when a question arrives or the queue is closed
        self._is_closed = False

    def __len__(self) -> int:
        with self._arrived:
            self._drop_cancelled()
            return sum(map(len, self._clients.values()))

    def put(self, request: Request) -> None:
        """Add a request. Raises BusyError if the queue is full or closed."""
        client = request.question.client
        with self._arrived:
            total = len(self)
            waiting = self._clients.get(client, deque())
            if self._is_closed or total >= QUEUE_FACTOR * self._max_per_client or len(waiting) >= self._max_per_client:
                raise BusyError
            waiting.append(request)
            self._clients[client] = waiting
            self._arrived.notify_all()  # All threads must check, because they wait for different numbers of questions.

    def take(
        self,
        max_replies: int,
        blocks: bool,
        min_questions: int = 1,
        timeout: float = 0.0,
        max_characters: float = math.inf,
    ) -> list[Request] | None:
        """Remove the next requests from the queue and return them.

        Args:
            max_replies: The maximum number of replies to all returned questions together. If `blocks` is True, the
                first question can exceed this limit.
            blocks: Whether to wait until there is at least one question.
            min_questions: The number of questions to wait for, for at most `timeout` seconds.
            timeout: The maximum time to wait for `min_questions`, in seconds.
            max_characters: The maximum length of all returned questions together, in characters. The first question
                can exceed this limit.

        Returns:
            The requests, or None if `blocks` is True and the queue is closed and empty.
        """
        with self._arrived:
            if min_questions > 1:
                self._arrived.wait_for(lambda: self._is_closed or len(self) >= min_questions, timeout)
            while not (requests := self._next(max_replies, blocks, max_characters)) and blocks:
                if self._is_closed:
                    return None
                self._arrived.wait()
            return requests

    def close(self) -> None:
        """Reject new questions; waiting ones can still be taken."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()

    def _next(self, max_replies: int, exempt_first: bool, max_characters: float) -> list[Request]:
        """Remove and return the next requests within the limits of `take`."""
        self._drop_cancelled()
        requests = list[Request]()
        while self._clients:
            client, questions = next(iter(self._clients.items()))
            question = questions[0].question
            if question.replies > max_replies and (requests or not exempt_first):
                break
            max_characters -= question.characters
            if requests and max_characters < 0:
                break
            requests.append(questions.popleft())
            max_replies -= question.replies
            self._clients.move_to_end(client)
            if not questions:
                del self._clients[client]
        return requests

    def _drop_cancelled(self) -> None:
        for client, questions in [*self._clients.items()]:
            self._clients[client] = deque(request for request in questions if not request.is_over)
            if not self._clients[client]:
                del self._clients[client]

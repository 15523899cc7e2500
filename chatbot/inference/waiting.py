"""The questions that wait for the engine."""

import dataclasses
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from chatbot.inference.questions import Asked

# All clients together may use this many times what one client may use while nobody else waits.
SHARES = 4


class BusyError(Exception):
    """As many questions wait as may, or the engine closes."""


class Waiting:
    """Questions that wait; of several lanes, whose threads take them.

    Clients are served in turn (`Lane`), and leave room for others (`Budget`). most, characters: the number of questions
    of a client that may wait while nobody else's do, and of their characters, histories included.
    """

    def __init__(self, lanes: int, most: int, characters: int) -> None:
        self._number, self._characters = Budget(most), Budget(characters)
        self._lanes = tuple(Lane(self._give_back) for _ in range(lanes))
        self._lock = threading.RLock()
        self._arrived = tuple(threading.Condition(self._lock) for _ in range(lanes))  # or `close` was called
        self._is_closed = False

    def __len__(self) -> int:
        with self._lock:
            self._drop_cancelled()
            return sum(lane.number for lane in self._lanes)

    def number(self, lane: int) -> int:
        """Return the number of questions of a lane, those that nobody waits for any more included."""
        return self._lanes[lane].number

    def put(self, lane: int, asked: Asked) -> None:
        """Add a question. Raises BusyError if there are too many, or after `close`."""
        client = asked.question.client
        with self._lock:
            if self._is_closed or not self._has_room(asked):
                self._drop_cancelled()
                if self._is_closed or not self._has_room(asked):
                    raise BusyError
            self._number.use(client, 1)
            self._characters.use(client, asked.characters)
            self._lanes[lane].add(asked)
            self._arrived[lane].notify_all()  # one of several threads may wait for more questions than this

    def take(self, lane: int, replies: int, blocks: bool, wanted: int = 1, patience: float = 0.0) -> list[Asked] | None:
        """Return the next questions of a lane with at most as many replies in all, but at least one if `blocks`.

        blocks: whether to wait for a question. Then None is returned after `close` when none is left. wanted, patience:
        wait until there are so many questions, but at most so many seconds.
        """
        waiting, arrived = self._lanes[lane], self._arrived[lane]
        with self._lock:
            if wanted > 1:
                arrived.wait_for(lambda: self._is_closed or waiting.number >= wanted, patience)
            while True:
                taken: list[Asked] = []
                while (asked := waiting.next()) and (asked.question.replies <= replies or (blocks and not taken)):
                    taken.append(waiting.take_next())
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
        if not self._number.all:
            return True
        client = asked.question.client
        return self._number.admits(client, 1) and self._characters.admits(client, asked.characters)

    def _give_back(self, asked: Asked) -> None:
        self._number.use(asked.question.client, -1)
        self._characters.use(asked.question.client, -asked.characters)

    def _drop_cancelled(self) -> None:
        for lane in self._lanes:
            lane.drop_cancelled()


class Budget:
    """Something of which clients may use only so much.

    A client may use a part of what is free (Choudhury and Hahne, 1998). most: while nobody else uses any.
    """

    def __init__(self, most: int) -> None:
        self._most, self._used, self.all = most, Counter[str](), 0

    def admits(self, client: str, amount: int) -> bool:
        """Return whether a client may use so much more."""
        free = SHARES * self._most - self.all - amount
        return (SHARES - 1) * (self._used[client] + amount) <= free

    def use(self, client: str, amount: int) -> None:
        """Count what a client uses; a negative amount is given back."""
        self._used[client] += amount
        self.all += amount
        if not self._used[client]:
            del self._used[client]


@dataclasses.dataclass
class _Client:
    """The questions of a client. debt: the turns that are left out for the replies of the last question."""

    questions: deque[Asked] = dataclasses.field(default_factory=deque)
    debt: int = 0


class Lane:
    """The questions of a lane, which are taken from its clients in turn.

    A turn is one question. Each of its replies beyond the first costs the client a later turn, so that the clients get
    equally many replies, while a new one waits for at most one question of each other.

    leave: called with each question that waits no more.
    """

    def __init__(self, leave: Callable[[Asked], None]) -> None:
        self._leave = leave
        self._clients: OrderedDict[str, _Client] = OrderedDict()  # the one whose turn is next first
        self.number = 0  # of questions

    def add(self, asked: Asked) -> None:
        """Add a question. A new client has its turn after all others."""
        self._clients.setdefault(asked.question.client, _Client()).questions.append(asked)
        self.number += 1

    def next(self) -> Asked | None:
        """Return the next question for which somebody waits, None if there is none. It stays in the lane."""
        while self.number:
            name, client = next(iter(self._clients.items()))
            while client.questions and client.questions[0].is_over:
                self._remove(client)
            if client.debt:
                client.debt -= 1
                self._clients.move_to_end(name)
            elif client.questions:
                return client.questions[0]
            else:
                del self._clients[name]
        self._clients.clear()  # without others, nobody waited for a client's replies
        return None

    def take_next(self) -> Asked:
        """Remove the question that `next` has returned, and end the client's turn."""
        name, client = next(iter(self._clients.items()))
        asked = self._remove(client)
        client.debt = asked.question.replies - 1
        self._clients.move_to_end(name)
        return asked

    def drop_cancelled(self) -> None:
        """Remove the questions for which nobody waits."""
        for client in self._clients.values():
            left = deque(asked for asked in client.questions if not asked.is_over)
            for asked in client.questions:
                if asked.is_over:
                    self._leave(asked)
            self.number -= len(client.questions) - len(left)
            client.questions = left

    def _remove(self, client: _Client) -> Asked:
        asked = client.questions.popleft()
        self.number -= 1
        self._leave(asked)
        return asked

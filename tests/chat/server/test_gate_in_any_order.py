"""The gate against a plain account, for all orders of requests, their ends, wrong keys and pauses."""

import asyncio
import dataclasses
from collections import Counter
from typing import Any
from unittest.mock import MagicMock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from chatbot.chat.server.app import ROUTES
from chatbot.chat.server.gate import Gate
from chatbot.chat.server.state import Limits, Metrics, ServerState
from chatbot.chat.service import ClientLeftError, RateLimit

RATE, WRONG_KEYS = 4, 3  # a minute, of a client
MOST, SHARE = 4, 3  # requests at once, of all clients and of one
ENDS: dict[int, Exception | None] = {200: None, 500: RuntimeError("a fault"), 499: ClientLeftError()}


class Bucket:
    """So many requests at once, and as many in each minute after."""

    def __init__(self, most: int) -> None:
        self.most, self.left, self.then = most, float(most), 0.0

    def takes(self, now: float) -> bool:
        self.left = min(self.most, self.left + (now - self.then) * self.most / 60)
        self.then = now
        self.left -= (taken := self.left >= 1)
        return taken


@dataclasses.dataclass(eq=False)
class Asked:
    """A request that is being answered. end: what the app does with it."""

    key: str
    path: str
    task: "asyncio.Task[int]"
    end: "asyncio.Future[Exception | None]"


class Requests(RuleBasedStateMachine):
    """Each request either ends at once, or is open until a rule ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.now = asyncio.new_event_loop(), 0.0
        self.limits = Limits(keys=[b"one", b"two"], rate=RATE, requests=MOST)
        rates = [RateLimit(number, clock=lambda: self.now) for number in (RATE, WRONG_KEYS)]
        self.metrics = Metrics(lambda: 0)
        state = ServerState(MagicMock(), self.limits, self.metrics, rates[0], 60)
        self.gate = Gate(self.app, state, ROUTES)
        self.gate._keys._wrong = rates[1]
        self.coming: list[asyncio.Future[Exception | None]] = []
        self.open: list[Asked] = []
        self.rates: dict[str, Bucket] = {}
        self.statuses = Counter[tuple[str, str]]()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        end = self.loop.create_future()
        self.coming.append(end)
        if error := await end:
            raise error
        await send({"type": "http.response.start", "status": 200})

    async def ask(self, path: str, key: str) -> int:
        """Send a request through the gate, and return the status of its answer; 499 if nobody waits for one."""
        sent: list[Any] = []
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "client": ("192.0.2.1", 1)}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.gate(scope, MagicMock(), send)
        return int(sent[0]["status"]) if sent else 499

    def settle(self) -> None:
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))

    def takes(self, client: str, most: int) -> bool:
        return self.rates.setdefault(client, Bucket(most)).takes(self.now)

    def expected(self, path: str, key: str) -> int:
        """The status of a request that does not stay open, by the account; 0 if it does."""
        if path == "/health":
            return 0
        if key not in ("one", "two"):
            return 401 if self.takes("wrong", WRONG_KEYS) else 429
        if not self.takes(key, RATE):
            return 429
        of_client = sum(asked.key == key and asked.path != "/health" for asked in self.open)
        return 429 if self.active() >= MOST or of_client >= SHARE else 0

    def active(self) -> int:
        return sum(asked.path != "/health" for asked in self.open)

    @rule(
        path=st.sampled_from(["/v1/models", "/v1/models", "/health"]), key=st.sampled_from(["one", "one", "two", "x"])
    )
    def begin(self, path: str, key: str) -> None:
        expected = self.expected(path, key)
        task = self.loop.create_task(self.ask(path, key))
        self.settle()
        if expected:
            assert task.result() == expected
            self.statuses["other", str(expected)] += 1
        else:
            assert not task.done()
            self.open.append(Asked(key, path, task, self.coming[-1]))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), status=st.sampled_from([*ENDS]))
    def end(self, data: st.DataObject, status: int) -> None:
        asked = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        asked.end.set_result(ENDS[status])
        self.settle()
        assert asked.task.result() == status
        self.statuses["other", str(status)] += 1

    @rule(seconds=st.sampled_from([1, 9, 11, 60, 61]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def counts_are_those_of_the_account(self) -> None:
        lines = self.metrics.text().decode().splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("chatbot_requests_total"))
        wanted = {
            f'chatbot_requests_total{{route="{route}",status="{status}"}}': str(float(number))
            for (route, status), number in self.statuses.items()
        }
        assert found == wanted
        assert f"chatbot_active_requests {float(self.active())}" in lines

    def teardown(self) -> None:
        while self.open:
            self.open.pop().end.set_result(None)
        self.settle()
        assert not self.gate._active_of
        self.loop.close()


def test_requests_in_any_order() -> None:
    run_state_machine_as_test(Requests)

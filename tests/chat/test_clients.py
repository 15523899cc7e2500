"""Rate limits, and results that are cancelled when the client has gone."""

import asyncio
from types import SimpleNamespace

import pytest

from chatbot.chat import clients
from chatbot.chat.clients import ClientLeftError, RateLimit, Recent, run_while_connected, stream_replies
from chatbot.inference.request import Piece, Question
from tests.chat.server.fake_models import FakeEngine


def test_limit_recovers_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    limit = RateLimit(3)
    assert [limit.wait("a") for _ in range(5)] == [0, 0, 0, 20, 20]
    now = 19.0
    assert limit.wait("a") == 1
    assert not limit.is_first_refusal("a")
    now = 20.0
    assert [limit.wait("a"), limit.wait("a"), limit.wait("b")] == [0, 20, 0]
    assert limit.is_first_refusal("a")
    now = 1000.0
    assert [limit.wait("a") for _ in range(4)] == [0, 0, 0, 20]
    for number in range(30_000):
        limit.wait(str(number))
    assert len(limit._buckets) == 10_000
    assert RateLimit(0).wait("a") == 0


@pytest.mark.parametrize("leaves", [False, True], ids=["late", "client leaves"])
def test_result_is_cancelled_on_timeout_and_disconnect(leaves: bool) -> None:
    ends = []

    async def receive() -> dict[str, str]:
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def result() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def wait() -> None:
        with pytest.raises(ClientLeftError if leaves else asyncio.TimeoutError):
            await run_while_connected(result(), 60 if leaves else 0.01, receive)
        await asyncio.sleep(0)
        assert ends == ["cancelled"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(wait())


@pytest.mark.parametrize("leaves", [False, True], ids=["closed", "client leaves"])
def test_stream_that_ends_cancels_its_requests(leaves: bool) -> None:
    engine = FakeEngine(lambda question: [Piece(0, "a")])

    async def receive() -> dict[str, str]:
        await asyncio.sleep(0.01 if leaves else 240)
        return {"type": "http.disconnect"}

    async def end() -> None:
        stream = stream_replies(engine.submit, [Question("a"), Question("b")], 240, receive)
        assert [(await anext(stream)).reply for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
        if leaves:
            with pytest.raises(ClientLeftError):
                await anext(stream)
        await stream.aclose()
        assert [request.cancelled.is_set() for request in engine.requests] == [True, True]
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert all(timer.cancelled() for timer in timers)

    asyncio.run(end())


def test_only_the_values_that_were_stored_last_are_cached() -> None:
    """Storing a value again makes it the newest."""
    recent = Recent[str, int](2)
    for number, key in enumerate("abac"):
        recent.put(key, number)
    assert [recent.get(key) for key in "abc"] == [2, None, 3]

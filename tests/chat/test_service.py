"""What the services share: the limit of the rate of each client, and what nobody waits for."""

import asyncio

import pytest

from chatbot.chat.service import ClientLeftError, RateLimit, while_waited_for


def test_limit_recovers_with_time() -> None:
    now = 0.0
    limit = RateLimit(3, clock=lambda: now)
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
def test_what_nobody_waits_for_any_more_is_cancelled(leaves: bool) -> None:
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
            await while_waited_for(result(), 60 if leaves else 0.01, receive)
        await asyncio.sleep(0)
        assert ends == ["cancelled"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(wait())

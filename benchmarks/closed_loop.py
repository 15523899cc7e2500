"""Clients that each ask again as soon as they have their answer."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple

Ask = Callable[[str], Awaitable[None]]  # ends when the answer is complete


class Latencies(NamedTuple):
    """What clients measured. seconds: from the first question to the last answer. latencies: of each answer."""

    seconds: float
    latencies: list[float]

    @property
    def replies_per_s(self) -> float:
        """Answers in a second."""
        return len(self.latencies) / self.seconds

    def percentile_ms(self, share: float) -> float:
        """The least latency that this share of the answers does not exceed, in milliseconds."""
        return 1000 * sorted(self.latencies)[max(0, math.ceil(share * len(self.latencies)) - 1)]


async def closed_loop(
    connect: Callable[[], AbstractAsyncContextManager[Ask]], questions: Sequence[str], clients: int
) -> Latencies:
    """Ask all questions by as many clients at once, which connect before. Raises the first exception of an answer."""
    left, latencies = list(reversed(questions)), list[float]()

    async def client(ask: Ask) -> None:
        while left:
            question, began = left.pop(), time.perf_counter()
            await ask(question)
            latencies.append(time.perf_counter() - began)

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect()) for _ in range(clients)]
        began = time.perf_counter()
        await asyncio.gather(*map(client, connections))
        return Latencies(time.perf_counter() - began, latencies)

"""Preparation of batches ahead of the training loop."""

import collections
import itertools
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# The number of batches that are prepared ahead.
AHEAD = 4


def prefetched(
    items: Iterable[tuple[object, ...]], prepare: Callable[..., T], ahead: int = AHEAD
) -> Generator[T, None, None]:
    """Yield prepare(*item) for each item, in order. A thread calls it ahead of the caller.

    Exceptions of the items and of `prepare` are raised here.
    """
    iterator = iter(items)

    def next_results() -> list[T]:
        """Return the next result, or an empty list at the end."""
        return [prepare(*item) for item in itertools.islice(iterator, 1)]

    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        pending: collections.deque[Future[list[T]]] = collections.deque()
        while True:
            while len(pending) < ahead:
                pending.append(pool.submit(next_results))
            results = pending.popleft().result()
            if not results:
                return
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)

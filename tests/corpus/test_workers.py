"""Worker processes, and a thread that prepares batches ahead: in order, with errors where they are used."""

import itertools
import os
import threading

import pytest

from chatbot.corpus.workers import PREFETCHED_BATCHES, prefetched, worker_pool
from chatbot.errors import UserError


def test_killed_worker_is_a_one_line_error() -> None:
    with pytest.raises(UserError, match="a worker process was killed"), worker_pool() as pool:
        list(pool.in_order(os._exit, [(1,)]))


def test_results_come_in_order_from_another_thread() -> None:
    threads = set()

    def prepare(number: int, text: str) -> str:
        threads.add(threading.get_ident())
        return f"{number}{text}"

    items = zip(range(20), itertools.repeat("x"), strict=False)
    assert list(prefetched(items, prepare)) == [f"{i}x" for i in range(20)]
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


def test_no_more_than_the_given_number_is_prepared_ahead() -> None:
    prepared: list[int] = []
    results = prefetched(((i,) for i in range(50)), prepared.append)
    for _ in range(3):
        next(results)
    results.close()  # waits for what runs, and begins nothing
    assert 3 <= len(prepared) <= 3 + PREFETCHED_BATCHES
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize("of_items", [True, False])
def test_errors_are_raised_at_their_place(of_items: bool) -> None:
    """An error of reading, for example of a shard that was removed, or of preparing."""

    def items() -> object:
        for i in range(5):
            if of_items and i == 3:
                raise UserError("removed")
            yield (i,)

    def prepare(i: int) -> int:
        if not of_items and i == 3:
            raise UserError("removed")
        return i

    results = prefetched(items(), prepare)  # type: ignore[arg-type]
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match="removed"):
        next(results)

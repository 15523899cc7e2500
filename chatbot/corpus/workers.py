"""Worker processes on all cores, with results in order and a bounded number of pending tasks."""

import collections
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

from chatbot.errors import UserError
from chatbot.quiet import no_bars

Result = TypeVar("Result")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def progress_bar(title: str, total: int, unit: str) -> "tqdm[Any]":
    """Return a progress bar, shown after a second and on a terminal only."""
    return tqdm(desc=title, total=total, unit=unit, unit_scale=True, leave=False, delay=1, disable=no_bars())


@contextmanager
def worker_pool() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of one process for each core, started by the first tasks. Raises UserError if one is killed."""
    # Spawned, not forked: this process may have threads, which do not survive a fork.
    pool = ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn"), _start_worker)
    try:
        yield pool
    except BrokenProcessPool:
        raise UserError("a worker process was killed, perhaps out of memory; run the same command again") from None
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(
    function: Callable[..., Result], tasks: Iterable[tuple], pool: ProcessPoolExecutor | None
) -> Iterator[Result]:
    """Yield function(*task) for each task, in the order of the tasks; without a pool, in this process.

    At most two tasks for each core are pending, so that a generator of tasks may be larger than memory.
    """
    if pool is None:
        yield from (function(*task) for task in tasks)
        return
    pending: collections.deque[Future[Result]] = collections.deque()
    for task in tasks:
        pending.append(pool.submit(function, *task))
        if len(pending) > 2 * cores():
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _start_worker() -> None:
    """Make a worker end with its parent, and without a traceback at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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

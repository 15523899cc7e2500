"""Work beside the caller: worker processes, with results in order, and a thread that prepares ahead."""

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

T = TypeVar("T")
Function = Callable[..., Any]
Tasks = Iterable[tuple[Any, ...]]
Expand = Callable[..., Iterable[tuple[Any, ...]]] | None


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def progress_bar(title: str, total: int, unit: str, initial: int = 0) -> "tqdm[Any]":
    """Return a progress bar, shown after a second and on a terminal only."""
    return tqdm(
        desc=title, total=total, unit=unit, initial=initial, unit_scale=True, leave=False, delay=1, disable=no_bars()
    )


class Processes:
    """A process for each core, started by the first tasks. A generator of tasks may be larger than memory."""

    def __init__(self) -> None:
        # Spawned, not forked: this process may have threads, which do not survive a fork.
        self.executor = ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn"), _start_worker)

    def in_order(self, function: Function, tasks: Tasks, serial: bool = False, expand: Expand = None) -> Iterator[Any]:
        """Yield function(*task) for each task, in the order of the tasks. At most two for each core are pending.

        serial: in this process, since there are few. expand: function, run in this process, from a task to the tasks
        to compute in its place.
        """
        if expand:
            tasks = itertools.chain.from_iterable(itertools.starmap(expand, tasks))
        if serial:
            yield from itertools.starmap(function, tasks)
            return
        pending: collections.deque[Future[Any]] = collections.deque()
        for task in tasks:
            pending.append(self.executor.submit(function, *task))
            if len(pending) > 2 * cores():
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def worker_pool(given: Processes | None = None) -> Iterator[Processes]:
    """Yield the given pool, or a new one. Raises UserError if one of its processes is killed."""
    if given:
        yield given
        return
    pool = Processes()
    try:
        yield pool
    except BrokenProcessPool:
        raise UserError("a worker process was killed, perhaps out of memory; run the same command again") from None
    finally:
        pool.executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Make a worker end with its parent, and without a traceback at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()


def end_with_parent() -> None:
    """Let this process, which multiprocessing has started, end when its parent ends."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# The number of batches that are prepared ahead.
AHEAD = 4
_END = object()


def prefetched(items: Iterable[tuple[object, ...]], prepare: Callable[..., T]) -> Generator[T, None, None]:
    """Yield prepare(*item) for each item, in order. A thread calls it ahead of the caller.

    Exceptions of the items and of `prepare` are raised here.
    """
    results = itertools.starmap(prepare, items)
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        pending: collections.deque[Future[Any]] = collections.deque()
        while True:
            while len(pending) < AHEAD:
                pending.append(pool.submit(next, results, _END))
            if (result := pending.popleft().result()) is _END:
                return
            yield result
    finally:
        pool.shutdown(cancel_futures=True)

"""Work on all cores, in order, with a bounded number of tasks under way."""

import collections
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tqdm import tqdm

from chatbot.errors import UserError

Result = TypeVar("Result")


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def progress(what: str, total: int, unit: str) -> "tqdm[Any]":
    """A bar for work of more than a second, on a terminal only."""
    return tqdm(desc=what, total=total, unit=unit, unit_scale=True, leave=False, delay=1, disable=None)


def in_order(function: Callable[..., Result], tasks: Iterable[tuple], workers: int) -> Iterator[Result]:
    """function(*task) of each task, in the order of the tasks, on this many processes; 1 is this one.

    Tasks are taken only as they can be worked on, so they may be a generator over more than memory holds.
    Raises UserError when a worker was killed.
    """
    if workers == 1:
        yield from (function(*task) for task in tasks)
        return
    # Started anew instead of forked: this process may have threads, which do not survive a fork.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker)
    try:
        ahead: collections.deque[Future[Result]] = collections.deque()
        for task in tasks:
            ahead.append(pool.submit(function, *task))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps for want of memory; the same command tries again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """A worker dies with its parent, and says nothing at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

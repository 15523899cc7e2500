"""Parallel execution of tasks in worker processes or on Apache Beam, and prefetching in a thread."""

import collections
import functools
import itertools
import logging
import multiprocessing
import os
import pickle
import shlex
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from chatbot.corpus.cache import temporary_folder
from chatbot.durable import write_file
from chatbot.errors import UserError
from chatbot.quiet import progress_bars_disabled

T = TypeVar("T")
Function = Callable[..., Any]
Tasks = Iterable[tuple[Any, ...]]
Expand = Callable[..., Iterable[tuple[Any, ...]]] | None
RESULT = ".result"  # suffix of files with the results of tasks on Apache Beam


def cores() -> int:
    """Return the number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def progress_bar(title: str, total: int, unit: str, initial: int = 0) -> "tqdm[Any]":
    """Return a progress bar that appears after one second, and only in a terminal."""
    return tqdm(
        desc=title,
        total=total,
        unit=unit,
        initial=initial,
        unit_scale=True,
        leave=False,
        delay=1,
        disable=progress_bars_disabled(),
    )


class Processes:
    """A pool of one worker process per core. Tasks are generated lazily, so they need not fit in memory."""

    def __init__(self) -> None:
        # Processes are spawned, not forked, because forking is unsafe in a process with threads.
        self.executor = ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn"), _start_worker)

    def in_order(self, function: Function, tasks: Tasks, serial: bool = False, expand: Expand = None) -> Iterator[Any]:
        """Yield the result of function(*task) for each task, in the order of the tasks.

        Args:
            function: Function to call for each task.
            tasks: Arguments of each call.
            serial: Whether to run all tasks in this process, which is faster if there are few tasks.
            expand: Function that is called in this process, and returns several tasks to run instead of a task.
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


class BeamPool(Processes):
    """A pool that runs tasks on Apache Beam. The workers of the runner need access to the data files and the cache."""

    def __init__(self, runner: str, options: str, cache: Path) -> None:
        """Create the pool.

        Args:
            runner: Name of the runner.
            options: Flags of the runner in one string.
            cache: Folder for the results of tasks.

        Raises:
            UserError: If Apache Beam is not installed.
        """
        try:
            import apache_beam  # noqa: F401
        except ModuleNotFoundError:
            raise UserError(f"--runner {runner}: Apache Beam is not installed; run `make beam`") from None
        self._runner = runner
        self._options = [f"--runner={runner}", *shlex.split(options)]
        self._cache = cache

    def in_order(self, function: Function, tasks: Tasks, serial: bool = False, expand: Expand = None) -> Iterator[Any]:
        """Yield results as in `Processes.in_order`.

        All tasks must fit in memory, but the additional tasks that `expand` creates need not.

        Raises:
            UserError: If the runner fails, with the last line of its error.
        """
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        # Disable the error log of Beam, because the same error is also raised as an exception.
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        with temporary_folder(self._cache) as folder:
            save = functools.partial(_save_result, function, folder.absolute())
            try:
                with beam.Pipeline(options=PipelineOptions(self._options)) as pipeline:
                    numbered = pipeline | beam.Create(list(enumerate(tasks)))
                    expanded = numbered | beam.FlatMap(functools.partial(_expand_task, expand))
                    _ = expanded | beam.Reshuffle() | beam.Map(save)
            except Exception as error:  # a runner can raise exceptions of any type
                reason = [type(error).__name__, *str(error).strip().splitlines()][-1]
                raise UserError(f"--runner {self._runner}: {reason}") from error
            for path in sorted(folder.glob(f"*{RESULT}")):
                yield pickle.loads(path.read_bytes())  # noqa: S301 - written by _save_result


def _expand_task(expand: Expand, numbered: tuple[int, tuple[Any, ...]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each expanded task with a name for its result file. The names sort in the order of the tasks."""
    number, task = numbered
    for part, expanded in enumerate(expand(*task) if expand else [task]):
        yield f"{number:09}-{part:09}{RESULT}", expanded


def _save_result(function: Function, folder: Path, named: tuple[str, tuple[Any, ...]]) -> None:
    """Run a task and write its result to a file.

    The file is written atomically, because a runner can run a task more than once.
    """
    name, task = named
    write_file(folder / name, pickle.dumps(function(*task)))


@contextmanager
def worker_pool(existing: Processes | None = None) -> Iterator[Processes]:
    """Yield `existing` or, if it is None, a new pool. Raises UserError if a process of the new pool is killed."""
    if existing:
        yield existing
        return
    pool = Processes()
    try:
        yield pool
    except BrokenProcessPool:
        raise UserError("a worker process was killed, perhaps out of memory; run the same command again") from None
    finally:
        pool.executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Prepare a worker process: it exits when its parent exits, and prints no traceback after Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()


def end_with_parent() -> None:
    """Make this process exit as soon as its parent exits. The process must have been started by multiprocessing."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# Maximum number of items that are prepared in advance.
PREFETCHED_BATCHES = 4
_END = object()


def prefetched(items: Iterable[tuple[object, ...]], prepare: Callable[..., T]) -> Generator[T, None, None]:
    """Yield prepare(*item) for each item, in order. A thread computes a few results in advance.

    Exceptions from the thread are raised in the caller.
    """
    results = itertools.starmap(prepare, items)
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        pending: collections.deque[Future[Any]] = collections.deque()
        while True:
            while len(pending) < PREFETCHED_BATCHES:
                pending.append(pool.submit(next, results, _END))
            if (result := pending.popleft().result()) is _END:
                return
            yield result
    finally:
        pool.shutdown(cancel_futures=True)

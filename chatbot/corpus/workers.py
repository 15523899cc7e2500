"""Work beside the caller: worker processes or Apache Beam, with results in order, and a thread that prepares ahead."""

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
from chatbot.quiet import no_bars

T = TypeVar("T")
Function = Callable[..., Any]
Tasks = Iterable[tuple[Any, ...]]
Expand = Callable[..., Iterable[tuple[Any, ...]]] | None
RESULT = ".result"  # ending of a file with the result of a task on Apache Beam


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


class BeamPool(Processes):
    """A runner of Apache Beam in place of processes. Every worker needs access to the files and to the cache."""

    def __init__(self, runner: str, options: str, cache: Path) -> None:
        """options: the runner's flags, as one text. Raises UserError without Apache Beam."""
        try:
            import apache_beam  # noqa: F401
        except ModuleNotFoundError:
            raise UserError(f"--runner {runner}: Apache Beam is not installed; run `make beam`") from None
        self._runner = runner
        self._options = [f"--runner={runner}", *shlex.split(options)]
        self._cache = cache

    def in_order(self, function: Function, tasks: Tasks, serial: bool = False, expand: Expand = None) -> Iterator[Any]:
        """Tasks must fit in memory, what they expand to need not. Results pass through the cache.

        Raises UserError with the last line of the runner's error.
        """
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        # Beam also logs its errors, with the tracebacks of all workers; the exception is enough.
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        with temporary_folder(self._cache) as folder:
            save = functools.partial(_save_result, function, folder.absolute())
            try:
                with beam.Pipeline(options=PipelineOptions(self._options)) as pipeline:
                    numbered = pipeline | beam.Create(list(enumerate(tasks)))
                    expanded = numbered | beam.FlatMap(functools.partial(_expanded, expand))
                    _ = expanded | beam.Reshuffle() | beam.Map(save)
            except Exception as error:  # a runner may raise anything
                reason = [type(error).__name__, *str(error).strip().splitlines()][-1]
                raise UserError(f"--runner {self._runner}: {reason}") from error
            for path in sorted(folder.glob(f"*{RESULT}")):
                yield pickle.loads(path.read_bytes())  # noqa: S301 - written by _save_result


def _expanded(expand: Expand, numbered: tuple[int, tuple[Any, ...]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each task with a name that sorts like the tasks."""
    number, task = numbered
    for part, expanded in enumerate(expand(*task) if expand else [task]):
        yield f"{number:09}-{part:09}{RESULT}", expanded


def _save_result(function: Function, folder: Path, named: tuple[str, tuple[Any, ...]]) -> None:
    """Write a complete file, so that a runner may repeat a task."""
    name, task = named
    write_file(folder / name, pickle.dumps(function(*task)))


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

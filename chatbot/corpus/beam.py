"""Apache Beam in place of worker processes."""

import functools
import logging
import pickle
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatbot.corpus.cache import temporary_folder
from chatbot.corpus.workers import Expand, Function, Processes, Tasks
from chatbot.durable import write_file
from chatbot.errors import UserError

RESULT = ".result"  # ending of a file with the result of a task


class BeamPool(Processes):
    """A runner of Apache Beam in place of processes. Every worker needs access to the files and to the cache."""

    def __init__(self, runner: str, options: str, cache: Path) -> None:
        """options: the runner's flags, as one text. Raises UserError without Apache Beam."""
        try:
            import apache_beam  # noqa: F401
        except ModuleNotFoundError:
            raise UserError(f"--runner {runner}: Apache Beam is not installed; run `make beam`") from None
        self._runner, self._options, self._cache = runner, [f"--runner={runner}", *shlex.split(options)], cache

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

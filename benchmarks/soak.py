"""Checks that memory, open files, threads and traced functions do not grow during a long training run."""

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow.python.eager.context import context  # there is no public API that lists traced functions

from benchmarks.benchmark import Benchmark, Recorded
from benchmarks.processes import Samples
from benchmarks.synthetic import write_corpus
from chatbot.attempts.opening import attempt_lock
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose, setting
from chatbot.training.data import prepare
from chatbot.training.devices.towers import open_towers
from chatbot.training.loop import train
from chatbot.training.run import open_run

# Samples of the warm-up are ignored, because TensorFlow still allocates memory. The other samples are divided into
# PARTS parts, and the median of the first part is compared with that of the last.
WARM_UP = 0.2  # fraction of the samples
PARTS = 4
MAX_GROWTH = 0.02  # maximum relative growth of memory
INTERVAL = 1.0  # seconds between samples


@dataclasses.dataclass(frozen=True)
class SoakBenchmark(Recorded):
    """The flags of `python -m benchmarks soak`."""

    minutes: float = setting(30.0, "duration of the run in minutes", group="measuring", above=0)
    pairs: int = setting(4000, "number of pairs to generate", minimum=2000)
    validate_every: int = setting(50, "number of steps between validations", minimum=1)
    save_every: int = setting(10, "number of steps between checkpoints", minimum=1)
    towers: int = setting(2, "number of towers on the CPU", minimum=1)


class Sample(NamedTuple):
    """The resources that a process uses at a point in time."""

    megabytes: float  # resident memory
    files: int  # number of open files
    threads: int
    functions: int  # number of functions traced by TensorFlow


def sample() -> Sample:
    """Return the current resource usage of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
    return Sample(resident, files, threads, len(context().list_function_names()))


def measure(flags: SoakBenchmark) -> dict[str, Any]:
    """Train in a temporary folder, and compare the resource usage at the start and at the end.

    The benchmark fails if memory changes by more than 2%, or if any other resource changes at all.
    """
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            samples, steps = _train(flags)
        finally:
            os.chdir(before)
    return {"steps": steps, **growth(samples)}


def growth(samples: Sequence[Sample]) -> dict[str, Any]:
    """Compare the resource usage at the start, after the warm-up, with that at the end.

    Returns:
        A dictionary with the relative growth of memory ("memory_growth"), the medians at the start and at the end for
        each resource, and whether the benchmark has failed ("failed").

    Raises:
        UserError: If there are too few samples.
    """
    measured = samples[int(WARM_UP * len(samples)) :]
    size = len(measured) // PARTS
    if size < 1:
        raise UserError("--minutes: too short for a comparison; increase it")
    ends = measured[:size], measured[-size:]
    medians = {
        name: [statistics.median_low(getattr(sample, name) for sample in end) for end in ends]
        for name in Sample._fields
    }
    first, last = medians["megabytes"]
    constant = all(medians[name][0] == medians[name][1] for name in ("files", "threads", "functions"))
    failed = abs(last / first - 1) > MAX_GROWTH or not constant
    return {"memory_growth": last / first - 1, **medians, "failed": failed}


def _train(flags: SoakBenchmark) -> tuple[list[Sample], int]:
    """Train for --minutes in the current directory, and return the samples and the number of steps."""
    write_corpus(Path("pairs.tsv"), flags.pairs)
    settings = compose(
        Settings,
        data=("pairs.tsv",),
        steps=10**9,
        patience=10**9,
        validate_every=flags.validate_every,
        save_every=flags.save_every,
        time_limit="0:01",
        deadline=time.time() + 60 * flags.minutes,
    )
    towers = open_towers([], flags.towers)
    with Samples(sample, INTERVAL) as samples, attempt_lock(settings):
        steps = train(open_run(settings, prepare(settings), towers)).step
    return samples.values, steps


BENCHMARK = Benchmark(
    "soak",
    SoakBenchmark,
    "Train for a long time with many validations and checkpoints, and compare memory at the beginning and the end.",
    measure,
)

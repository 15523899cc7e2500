"""A long run with validations and checkpoints at a high rate: memory, open files, threads and traces stay constant."""

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow.python.eager.context import context  # the public API does not count all functions

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

# The first part of the time, in which graphs are traced and the allocator's memory grows, does not count. The rest is
# divided into parts; the medians of the first and the last one are compared.
WARM_UP = 0.2
PARTS = 4
MOST_GROWTH = 0.02
# Seconds between two samples.
INTERVAL = 1.0


@dataclasses.dataclass(frozen=True)
class SoakBenchmark(Recorded):
    """The flags of python -m benchmarks soak."""

    minutes: float = setting(30.0, "length of the run", group="measuring", above=0)
    pairs: int = setting(4000, "pairs of the synthetic corpus", least=2000)
    validate_every: int = setting(50, "steps between two validations", least=1)
    save_every: int = setting(10, "steps between two checkpoints", least=1)
    towers: int = setting(2, "towers, on the CPU", least=1)


class Sample(NamedTuple):
    """What the process uses at a time."""

    megabytes: float  # resident memory
    files: int
    threads: int
    functions: int  # traced by TensorFlow


def sample() -> Sample:
    """Return what this process uses now."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
    return Sample(resident, files, threads, len(context().list_function_names()))


def measure(flags: SoakBenchmark) -> dict[str, Any]:
    """Train in a folder of its own. It has failed if memory has grown by more than 2%, or anything else at all."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            samples, steps = _trained(flags)
        finally:
            os.chdir(before)
    return {"steps": steps, **growth(samples)}


def growth(samples: Sequence[Sample]) -> dict[str, Any]:
    """Compare the first and the last part of the samples after the warm-up.

    memory_growth: of the medians, as a share. megabytes, files, threads, functions: the medians of both parts. Raises
    UserError if there are too few samples.
    """
    counted = samples[int(WARM_UP * len(samples)) :]
    size = len(counted) // PARTS
    if size < 1:
        raise UserError("--minutes: too short for a comparison; give more")
    ends = counted[:size], counted[-size:]
    medians = {
        name: [statistics.median_low(getattr(sample, name) for sample in end) for end in ends]
        for name in Sample._fields
    }
    first, last = medians["megabytes"]
    constant = all(medians[name][0] == medians[name][1] for name in ("files", "threads", "functions"))
    failed = abs(last / first - 1) > MOST_GROWTH or not constant
    return {"memory_growth": last / first - 1, **medians, "failed": failed}


def _trained(flags: SoakBenchmark) -> tuple[list[Sample], int]:
    """Train for the minutes in the current directory; return the samples, and the number of steps."""
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


soak_benchmark = Benchmark(
    "soak",
    SoakBenchmark,
    "Train for a long time with many validations and checkpoints, and compare the memory at the beginning and end.",
    measure,
)

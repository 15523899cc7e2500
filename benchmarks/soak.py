"""A long run with validations and checkpoints at a high rate: memory, open files, threads and traces stay constant."""

import dataclasses
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow.python.eager.context import context  # the public API does not count all functions

from benchmarks.report import print_json
from benchmarks.synthetic import write_corpus
from chatbot.command_line import CommandLine
from chatbot.config.training import Settings
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.flags import Flags, compose, setting
from chatbot.training.attempt import attempt_lock
from chatbot.training.data import prepare
from chatbot.training.devices.towers import open_towers
from chatbot.training.loop import train
from chatbot.training.run import open_run

# The first part of the time, in which graphs are traced and the allocator's memory grows, does not count. The rest is
# divided into parts; the medians of the first and the last one are compared.
WARM_UP, PARTS = 0.2, 4
MOST_GROWTH = 0.02
# Seconds between two samples.
INTERVAL = 1.0


@dataclasses.dataclass(frozen=True)
class SoakBenchmark(Flags):
    """The flags of python -m benchmarks soak."""

    minutes: float = setting(30.0, "length of the run", group="measuring", above=0)
    pairs: int = setting(4000, "pairs of the synthetic corpus", least=2000)
    validate_every: int = setting(50, "steps between two validations", least=1)
    save_every: int = setting(10, "steps between two checkpoints", least=1)
    towers: int = setting(2, "towers, on the CPU", least=1)
    plot: str | None = setting(None, "also draw a plot", metavar="FILE.png")


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the process uses at a time."""

    minutes: float
    megabytes: float  # resident memory
    files: int
    threads: int
    functions: int  # traced by TensorFlow


def soak_benchmark(arguments: Sequence[str]) -> int:
    """Run, print a verdict, and as the last line one JSON object. The exit code is 1 if something has grown."""
    about = (
        "Train for a long time with many validations and checkpoints, and compare the memory at the beginning and end."
    )
    flags = CommandLine(SoakBenchmark, "benchmarks soak", about).parse(arguments)
    before, plot = Path.cwd(), None if flags.plot is None else Path(flags.plot).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            samples, steps = _trained(flags)
        finally:
            os.chdir(before)
    result = growth(samples)
    if plot is not None:
        _draw(samples, plot)
    flat = abs(result["memory_growth"]) <= MOST_GROWTH
    constant = all(result[name][0] == result[name][1] for name in ("files", "threads", "functions"))
    print(
        f"Verdict: after {counted(flags.minutes, 'minute')} and {counted(steps, 'step')}, memory has "
        f"{'stayed' if flat else 'NOT stayed'} within {MOST_GROWTH:.0%} ({result['memory_growth']:+.2%}); open files, "
        f"threads and traced functions are {'constant' if constant else 'NOT constant'}."
    )
    print_json({**dataclasses.asdict(flags), "steps": steps, **result})
    return 0 if flat and constant else 1


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
    result: dict[str, Any] = {
        name: [statistics.median_low(getattr(sample, name) for sample in end) for end in ends]
        for name in ("megabytes", "files", "threads", "functions")
    }
    first, last = result["megabytes"]
    return {"memory_growth": last / first - 1, **result}


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
    samples: list[Sample] = []
    finished = threading.Event()
    thread = threading.Thread(target=_sample, args=(samples, finished), daemon=True)
    thread.start()
    with attempt_lock(settings):
        steps = train(open_run(settings, prepare(settings), towers)).step
    finished.set()
    thread.join()
    return samples, steps


def _sample(samples: list[Sample], finished: threading.Event) -> None:
    began, pages = time.monotonic(), os.sysconf("SC_PAGE_SIZE")
    while not finished.wait(INTERVAL):
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * pages / 1e6
        minutes = (time.monotonic() - began) / 60
        files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        samples.append(Sample(minutes, resident, files, threads, len(context().list_function_names())))


def _draw(samples: Sequence[Sample], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(4, 1, figsize=(7, 8), sharex=True)
    names = {
        "megabytes": "resident memory, MB",
        "files": "open files",
        "threads": "threads",
        "functions": "traced functions",
    }
    for panel, (name, title) in zip(panels, names.items(), strict=True):
        panel.plot([sample.minutes for sample in samples], [getattr(sample, name) for sample in samples], linewidth=1)
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(file, dpi=100)

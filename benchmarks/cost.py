"""Measures how startup time, step time and memory grow with each model size."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.benchmark import Benchmark, log
from benchmarks.opened_step import OpenedStep, SizeFlags, pairs_of_one_length, plain, towers_of_machine
from benchmarks.processes import Worker, peak_gb
from chatbot.flags import replace, setting

# The values to measure for each size. Meanwhile, all other sizes keep the values of the flags.
SIZES = {
    "batch_size": (16, 32, 64, 128, 256, 512),
    "vocabulary_size": (4_000, 8_000, 16_000, 32_000, 64_000),
    "rnn_size": (128, 256, 512, 1024),
    "max_length": (5, 10, 20, 40, 80),
}


@dataclasses.dataclass(frozen=True)
class CostBenchmark(SizeFlags):
    """The flags of `python -m benchmarks cost`."""

    precision: str = setting("float32", "data type of matrix products", group="model", choices=("float32", "bfloat16"))
    grows: tuple[str, ...] = setting(
        tuple(SIZES), "model sizes to increase, one at a time", group="measuring", choices=tuple(SIZES)
    )
    steps: int = setting(5, "number of timed steps; the median is reported", minimum=1)


def measure(flags: CostBenchmark) -> dict[str, Any]:
    """Measure each value of each size in a separate process."""
    rows = []
    for size, value in ((name, value) for name in flags.grows for value in SIZES[name]):
        with Worker(training_worker, flags, size, value) as worker:
            rows.append({"what": size, "value": value, **worker.ask()})
        log(str(rows[-1]))
    return {"rows": rows, "steepest": max(growth_ratios(rows), key=lambda growth: growth["ratio"], default=None)}


def growth_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the growth of step times with the expected growth.

    The expected growth is linear. For rnn_size, it is quadratic because of the recurrent matrix products.

    Returns:
        For each value of a size except the first, the measured growth from the previous value, divided by the expected
        growth. A ratio above 1 is worse than expected.
    """
    ratios = []
    for small, large in itertools.pairwise(rows):
        if small["what"] == large["what"]:
            power = 2 if small["what"] == "rnn_size" else 1
            ratio = large["step_s"] / small["step_s"] / (large["value"] / small["value"]) ** power
            ratios.append({"what": small["what"], "from": small["value"], "to": large["value"], "ratio": ratio})
    return ratios


def training_worker(flags: CostBenchmark, size: str, value: int) -> Callable[[], dict[str, float]]:
    """Time the startup of training, and return a function that times further steps and returns all results.

    The results are:

    import_s: Seconds to import TensorFlow.
    build_s: Seconds to build the model and its update function.
    first_step_s: Seconds of the first step, including tracing.
    step_s: Median seconds of later steps.
    weights: The number of scalar weights.
    peak_gb: The peak memory of the process.
    """
    times = [time.perf_counter()]
    towers = towers_of_machine(1)
    times.append(time.perf_counter())
    settings = plain(flags.settings)
    vocabulary = value if size == "vocabulary_size" else flags.vocabulary_size
    if size != "vocabulary_size":
        settings = replace(settings, **{size: value})
    pairs = pairs_of_one_length(settings, vocabulary, settings.learning.batch_size)
    times.append(time.perf_counter())
    opened = OpenedStep(settings, pairs, vocabulary, towers, flags.precision)
    times.append(time.perf_counter())
    first = opened.turn(1)["step_s"]

    def answer() -> dict[str, float]:
        opened.turn(1)  # a second warm-up step
        turns = [opened.turn(1) for _ in range(flags.steps)]
        return {
            "import_s": times[1] - times[0],
            "build_s": times[3] - times[2],
            "first_step_s": first,
            "step_s": statistics.median(turn["step_s"] for turn in turns),
            "target_tokens_per_s": statistics.median(turn["target_tokens_per_s"] for turn in turns),
            "traces": opened.update.traces,
            "weights": sum(variable.shape.num_elements() for variable in opened.model.trainable_variables),
            "peak_gb": peak_gb(),
        }

    return answer


BENCHMARK = Benchmark(
    "cost",
    CostBenchmark,
    "Measure how time and memory of a start and of a training step grow with batch, vocabulary, units and length.",
    measure,
)

"""How the time and memory of a start and of a training step grow with one size at a time."""

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

# The values of the size that grows; the others are those of the flags.
SIZES = {
    "batch_size": (16, 32, 64, 128, 256, 512),
    "vocabulary_size": (4_000, 8_000, 16_000, 32_000, 64_000),
    "rnn_size": (128, 256, 512, 1024),
    "max_length": (5, 10, 20, 40, 80),
}


@dataclasses.dataclass(frozen=True)
class CostBenchmark(SizeFlags):
    """The flags of python -m benchmarks cost."""

    precision: str = setting("float32", "precision of matrix products", group="model", choices=("float32", "bfloat16"))
    grows: tuple[str, ...] = setting(
        tuple(SIZES), "what grows, one after another", group="measuring", choices=tuple(SIZES)
    )
    steps: int = setting(5, "timed steps; the result is their median", least=1)


def measure(flags: CostBenchmark) -> dict[str, Any]:
    """Measure each size in a process of its own, which ends before the next one begins."""
    rows = []
    for what, value in ((size, value) for size in flags.grows for value in SIZES[size]):
        with Worker(training_worker, flags, what, value) as worker:
            rows.append({"what": what, "value": value, **worker.ask()})
        log(str(rows[-1]))
    return {"rows": rows, "steepest": max(growth_ratios(rows), key=lambda growth: growth["ratio"], default=None)}


def growth_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the growth of a step's time over the expected growth, for neighbouring sizes; above 1 is worse.

    The expected growth is in proportion to the size, to its square for rnn_size, as in the recurrent products.
    """
    ratios = []
    for small, large in itertools.pairwise(rows):
        if small["what"] == large["what"]:
            power = 2 if small["what"] == "rnn_size" else 1
            ratio = large["step_s"] / small["step_s"] / (large["value"] / small["value"]) ** power
            ratios.append({"what": small["what"], "from": small["value"], "to": large["value"], "ratio": ratio})
    return ratios


def training_worker(flags: CostBenchmark, what: str, value: int) -> Callable[[], dict[str, float]]:
    """Measure a start and the steps after it. The keys of the result:

    import_s, build_s and first_step_s: seconds of the import of TensorFlow, of building the model and its update, and
    of the first step with its tracing. step_s: of a later one. weights: numbers in the model. peak_gb: of the process.
    """
    times = [time.perf_counter()]
    towers = towers_of_machine(1)
    times.append(time.perf_counter())
    settings = plain(flags.settings)
    vocabulary = value if what == "vocabulary_size" else flags.vocabulary_size
    if what != "vocabulary_size":
        settings = replace(settings, **{what: value})
    pairs = pairs_of_one_length(settings, vocabulary, settings.learning.batch_size)
    times.append(time.perf_counter())
    opened = OpenedStep(settings, pairs, vocabulary, towers, flags.precision)
    times.append(time.perf_counter())
    first = opened.turn(1)["step_s"]

    def answer() -> dict[str, float]:
        opened.turn(1)  # a second one, which is not counted either
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


cost_benchmark = Benchmark(
    "cost",
    CostBenchmark,
    "Measure how time and memory of a start and of a training step grow with batch, vocabulary, units and length.",
    measure,
)

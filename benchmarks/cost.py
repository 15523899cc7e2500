"""How the time and memory of a start and of a training step grow with one size at a time, and those of planning."""

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.benchmark import Benchmark, log
from benchmarks.drawing import Curve, draw
from benchmarks.opened_step import OpenedStep, SizeFlags, pairs_of_one_length, plain, towers_of_machine
from benchmarks.processes import Worker, peak_gb
from benchmarks.synthetic import LONGEST, MEDIAN, SPREAD
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import NO_PAIRS, SOURCE, TARGET, Lengths
from chatbot.corpus.shards import Shards, shards_needed
from chatbot.flags import replace, setting
from chatbot.quiet import import_tensorflow

TOWERS, PLANNED = "towers", "planned_pairs"
# The values of the size that grows; the others are those of the flags.
SIZES = {
    "batch_size": (16, 32, 64, 128, 256, 512),
    "vocabulary_size": (4_000, 8_000, 16_000, 32_000, 64_000),
    "rnn_size": (128, 256, 512, 1024),
    "max_length": (5, 10, 20, 40, 80),
    TOWERS: (1, 2, 4, 8),
    PLANNED: (1_000_000, 10_000_000, 100_000_000),
}
# The shards that are generated; the others are links to them. Planning reads each of the links like a file of its own.
DISTINCT_SHARDS = 4


@dataclasses.dataclass(frozen=True)
class CostBenchmark(SizeFlags):
    """The flags of python -m benchmarks cost."""

    precision: str = setting("float32", "precision of matrix products", group="model", choices=("float32", "bfloat16"))
    grows: tuple[str, ...] = setting(
        ("batch_size", "vocabulary_size", "rnn_size", "max_length"),
        "what grows, one after another",
        group="measuring",
        choices=tuple(SIZES),
    )
    steps: int = setting(5, "timed steps; the result is their median", least=1)
    plot: str | None = setting(None, "also draw a plot of the speed", metavar="FILE.png")


def measure(flags: CostBenchmark) -> dict[str, Any]:
    """Measure each size in a process of its own, which ends before the next one begins."""
    rows = []
    for what, value in ((size, value) for size in flags.grows for value in SIZES[size]):
        make = planning_worker if what == PLANNED else training_worker
        with Worker(make, flags, what, value) as worker:
            rows.append({"what": what, "value": value, **worker.ask()})
        log(str(rows[-1]))
    if flags.plot is not None:
        parts = {what: [row for row in rows if row["what"] == what] for what in flags.grows if what != PLANNED}
        curves = [
            Curve(what, *([row[name] for row in part] for name in ("value", "target_tokens_per_s")))
            for what, part in parts.items()
        ]
        draw(curves, Path(flags.plot), "target tokens a second", logarithmic=True)
    return {"rows": rows, "steepest": max(growth_ratios(rows), key=lambda growth: growth["ratio"], default=None)}


def growth_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the growth of a step's time over the expected growth, for neighbouring sizes; above 1 is worse.

    The expected growth is in proportion to the size, to its square for rnn_size, as in the recurrent products, and none
    for towers, which share a batch.
    """
    ratios = []
    for small, large in itertools.pairwise(row for row in rows if "step_s" in row):
        if small["what"] == large["what"]:
            power = {"rnn_size": 2, TOWERS: 0}.get(small["what"], 1)
            ratio = large["step_s"] / small["step_s"] / (large["value"] / small["value"]) ** power
            ratios.append({"what": small["what"], "from": small["value"], "to": large["value"], "ratio": ratio})
    return ratios


def training_worker(flags: CostBenchmark, what: str, value: int) -> Callable[[], dict[str, float]]:
    """Measure a start and the steps after it. The keys of the result:

    import_s, build_s and first_step_s: seconds of the import of TensorFlow, of building the model and its update, and
    of the first step with its tracing. step_s: of a later one. weights: numbers in the model. peak_gb: of the process.
    """
    times = [time.perf_counter()]
    towers = towers_of_machine(value if what == TOWERS else 1)
    times.append(time.perf_counter())
    settings, vocabulary = plain(flags.settings), value if what == "vocabulary_size" else flags.vocabulary_size
    if what not in (TOWERS, "vocabulary_size"):
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


def planning_worker(flags: CostBenchmark, what: str, pairs: int) -> Callable[[], dict[str, float]]:
    """Plan an epoch of about this many pairs, at the default settings.

    first_batch_s: seconds from the shards to the first batch of an epoch, without its ids. resume_s: the same for a run
    that is resumed before the last step of an epoch, the worst case. added_gb: the memory of both beyond that before.
    """
    return lambda: planned(pairs)


def planned(pairs: int) -> dict[str, float]:
    """Return the result of `planning_worker`."""
    import_tensorflow()
    from chatbot.corpus.batches import Batches

    learning, max_length = Settings().learning, Settings().model.max_length
    with tempfile.TemporaryDirectory(prefix="planning-") as folder:
        shards = generated_shards(Path(folder), pairs, max_length)
        before, began = peak_gb(), time.perf_counter()
        batches = Batches(shards, learning.batch_size, learning.seed)
        next(batches.plan(0))
        first = time.perf_counter()
        next(batches.plan(0, batches.steps_per_epoch - 1))
        resumed = time.perf_counter() - first
    counts = {"pairs": batches.pairs, "shards": len(shards)}
    return {**counts, "first_batch_s": first - began, "resume_s": resumed, "added_gb": peak_gb() - before}


def generated_shards(folder: Path, pairs: int, max_length: int | None) -> Shards:
    """Write shards of pairs with the lengths of real chat into a folder. All ids are 0, in files without disk blocks.

    pairs: before those longer than max_length are left out; rounded down to shards of one size.
    """
    rng, number, lengths = np.random.default_rng(1), shards_needed(pairs), NO_PAIRS
    for shard in range(min(DISTINCT_SHARDS, number)):
        sides = np.exp(rng.normal(np.log(MEDIAN), SPREAD, (pairs // number, 2))).astype(np.uint32).clip(1, LONGEST)
        characters = 2 * sides[:, TARGET, None]
        np.concatenate([sides, characters], axis=1, dtype=np.uint32).tofile(folder / f"{shard:05}.lengths")
        with (folder / f"{shard:05}.tokens").open("wb") as tokens:
            tokens.truncate(int(sides.sum()) * np.dtype(np.uint16).itemsize)
        of_shard = Lengths.of(np.stack([sides[:, SOURCE], sides[:, TARGET] + 1]))
        copies = range(shard, number, DISTINCT_SHARDS)
        lengths += Lengths(of_shard.sides, of_shard.counts * len(copies))
        for copy, name in itertools.product(copies[1:], ("tokens", "lengths")):
            (folder / f"{copy:05}.{name}").symlink_to(f"{shard:05}.{name}")
    return Shards(folder, number, "uint16", lengths, max_length)


cost_benchmark = Benchmark(
    "cost",
    CostBenchmark,
    "Measure how time and memory of a start and of a training step grow with batch, vocabulary, units, length and "
    "towers, and those of planning an epoch with its pairs.",
    measure,
)

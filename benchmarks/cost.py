"""How time and memory of a training step grow with batch size, vocabulary, units and length: a table and a plot."""

import dataclasses
import itertools
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import print_json
from benchmarks.worker import Worker, ask_all
from chatbot.command_line import CommandLine
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.flags import Flags, compose, replace, setting
from chatbot.training.devices.towers import open_towers

# One size at a time takes the values in SIZES; the others are those of BASE.
BASE = {"batch_size": 64, "vocabulary_size": 16_000, "rnn_size": 512, "max_length": 20}
SIZES = {
    "batch_size": (16, 32, 64, 128, 256, 512),
    "vocabulary_size": (4_000, 8_000, 16_000, 32_000, 64_000),
    "rnn_size": (128, 256, 512, 1024),
    "max_length": (5, 10, 20, 40, 80),
}
SMALLEST_SIZES = {"batch_size": (16, 32), "vocabulary_size": (4_000,), "rnn_size": (128,), "max_length": (5,)}


@dataclasses.dataclass(frozen=True)
class CostBenchmark(Flags):
    """The flags of python -m benchmarks cost."""

    precision: str = setting("float32", "precision of matrix products", group="model", choices=("float32", "bfloat16"))
    num_layers: int = setting(2, "recurrent layers of each side", least=1)
    embedding_size: int = setting(256, "units of an embedding", least=1)
    steps: int = setting(5, "timed steps; the result is their median", group="measuring", least=1)
    short: bool = setting(False, "measure the smallest sizes only, to check that the benchmark runs")
    plot: str | None = setting(None, "also draw a plot", metavar="FILE.png")


def cost_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print a table and a verdict, and as the last line one JSON object."""
    about = "Measure how time and memory of a training step grow with batch size, vocabulary, units and length."
    flags = CommandLine(CostBenchmark, "benchmarks cost", about).parse(arguments)
    rows = []
    print(f"{'what grows':>16}  {'to':>6}  ms a step  target tokens/s  memory, GB")
    for what, values in (SMALLEST_SIZES if flags.short else SIZES).items():
        for value in values:
            with Worker(_training_worker, flags, {**BASE, what: value}) as worker:
                row = {"what": what, "value": value, **ask_all([worker])[0]}
            rows.append(row)
            print(
                f"{what:>16}  {value:6}  {1e3 * row['step_s']:9.0f}  {row['target_tokens_per_s']:15,.0f}  "
                f"{row['peak_gb']:10.2f}",
                flush=True,
            )
    if flags.plot is not None:
        _draw(rows, Path(flags.plot))
    worst = max(growth_ratios(rows), key=lambda growth: growth["ratio"], default=None)
    if worst:
        print(
            f"Verdict: the steepest growth is {worst['what']} from {worst['from']} to {worst['to']}: "
            f"{worst['ratio']:.2f} times the cost of growth in proportion."
        )
    results = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(flags), "rows": rows, "steepest": worst}
    print_json(results)
    return 0


def growth_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the growth of a step's time over the expected growth, for neighbouring sizes; above 1 is worse.

    The expected growth is in proportion to the size, and to its square for rnn_size, as in the recurrent products.
    """
    ratios = []
    for small, large in itertools.pairwise(rows):
        if small["what"] == large["what"]:
            growth = large["value"] / small["value"]
            expected = growth**2 if small["what"] == "rnn_size" else growth
            ratio = large["step_s"] / small["step_s"] / expected
            ratios.append({"what": small["what"], "from": small["value"], "to": large["value"], "ratio": ratio})
    return ratios


def _training_worker(flags: CostBenchmark, sizes: dict[str, int]) -> Callable[[str], dict[str, float]]:
    """Time training steps on pairs of one length, so that no position is padding."""
    towers = open_towers([], None)
    from chatbot.corpus.batches import Batches
    from chatbot.model.new_model import built_model
    from chatbot.training.update import open_update

    vocabulary = sizes["vocabulary_size"]
    base = compose(
        Settings, num_layers=flags.num_layers, embedding_size=flags.embedding_size, bidirectional=False, keep_prob=1.0
    )
    changes: dict[str, Any] = {**sizes}
    settings = replace(base, **changes)
    rng = np.random.default_rng(1)
    shape = (2, settings.learning.batch_size, settings.model.max_length)
    tokens = rng.integers(len(SPECIALS), vocabulary, shape).tolist()
    pairs = EncodedPairs.question_to_answer(
        Ragged.from_rows(tokens[0]),
        Ragged.from_rows([row[:-1] for row in tokens[1]]),
        np.zeros(settings.learning.batch_size, np.int64),
    )
    step = open_update(
        built_model(settings.model, vocabulary, settings.learning.seed, flags.precision), settings, towers
    )
    step.scatter_state(step.gather_state())

    batch = next(Batches([pairs], settings.learning.batch_size, settings.learning.seed).from_step(0, 1))
    prepared = step.prepare(batch, 0)

    def step_seconds() -> float:
        began = time.perf_counter()
        step(prepared, settings.learning.learning_rate)
        step.finished_steps()
        return time.perf_counter() - began

    def measure(request: str) -> dict[str, float]:
        for _ in range(2):
            step_seconds()
        seconds = statistics.median(step_seconds() for _ in range(flags.steps))
        rate = settings.learning.batch_size * settings.model.max_length / seconds
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return {"step_s": seconds, "target_tokens_per_s": rate, "peak_gb": peak}

    return measure


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw one panel for each size that grows."""
    names = list(dict.fromkeys(row["what"] for row in rows))
    figure, panels = _pyplot().subplots(1, len(names), figsize=(4 * len(names), 3.5), sharey=True)
    for name, panel in zip(names, panels, strict=True):
        series = [row for row in rows if row["what"] == name]
        panel.plot([row["value"] for row in series], [row["target_tokens_per_s"] for row in series], marker="o")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks([row["value"] for row in series], [f"{row['value']:,}" for row in series])
        panel.set_xlabel(name.replace("_", " "))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("target tokens a second")
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    print(f"Drawn: {file}", file=sys.stderr)

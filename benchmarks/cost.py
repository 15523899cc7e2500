"""How the cost of training grows with batch, vocabulary, units and length: a table, and a plot."""

import dataclasses
import itertools
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.apart import Apart, together
from benchmarks.train import rounded
from chatbot.config.training import Settings
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import check_fields, compose, parse_flags, replace, setting
from chatbot.training.devices import open_towers

# Where each growth starts from, and how far it goes.
MIDDLE = {"batch_size": 64, "vocabulary_size": 16_000, "rnn_size": 512, "max_length": 20}
GROWTH = {
    "batch_size": (16, 32, 64, 128, 256, 512),
    "vocabulary_size": (4_000, 8_000, 16_000, 32_000, 64_000),
    "rnn_size": (128, 256, 512, 1024),
    "max_length": (5, 10, 20, 40, 80),
}
SHORT = {"batch_size": (16, 32), "vocabulary_size": (4_000,), "rnn_size": (128,), "max_length": (5,)}


@dataclasses.dataclass(frozen=True)
class CostBenchmark:
    """What python -m benchmarks cost is told."""

    precision: str = setting("float32", "model", "of matrix products", choices=("float32", "bfloat16"))
    num_layers: int = setting(2, "model", "recurrent layers of each side", kind=int, least=1)
    embedding_size: int = setting(256, "model", "units of an embedding", kind=int, least=1)
    steps: int = setting(5, "measuring", "steps, whose median counts", kind=int, least=1)
    short: bool = setting(False, "measuring", "the smallest sizes only, to see that it runs", kind=bool)
    plot: str | None = setting(None, "measuring", "draw it, too (needs matplotlib)", metavar="FILE.png")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.plot is not None:
            _pyplot()


def cost_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print a table and a verdict, and as the last line one JSON object."""
    about = "Measure how training costs grow with batch, vocabulary, units and length."
    told = CostBenchmark(**parse_flags(CostBenchmark, "-m benchmarks cost", about, arguments))
    rows = []
    print(f"{'what grows':>16}  {'to':>6}  ms a step  target tokens/s  memory, GB")
    for what, values in (SHORT if told.short else GROWTH).items():
        for value in values:
            with Apart(_measured, told, {**MIDDLE, what: value}) as process:
                row = {"what": what, "value": value, **together([process])[0]}
            rows.append(row)
            print(
                f"{what:>16}  {value:6}  {1e3 * row['step_s']:9.0f}  {row['target_tokens_per_s']:15,.0f}  "
                f"{row['peak_gb']:10.2f}",
                flush=True,
            )
    if told.plot is not None:
        _draw(rows, Path(told.plot))
    worst = max(cliffs(rows), key=lambda cliff: cliff["ratio"], default=None)
    if worst:
        print(
            f"Verdict: the steepest growth is {worst['what']} from {worst['from']} to {worst['to']}: "
            f"{worst['ratio']:.2f} times the cost that growth in proportion would have."
        )
    found = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(told), "rows": rows, "steepest": worst}
    print(json.dumps(rounded(found)))
    return 0


def cliffs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each two neighbours, the growth of a step's time over that of the product that grows fastest.

    Units count by their square, as the recurrent products do; the rest in proportion.
    """
    found = []
    for one, next_one in itertools.pairwise(rows):
        if one["what"] == next_one["what"]:
            grown = next_one["value"] / one["value"]
            expected = grown**2 if one["what"] == "rnn_size" else grown
            ratio = next_one["step_s"] / one["step_s"] / expected
            found.append({"what": one["what"], "from": one["value"], "to": next_one["value"], "ratio": ratio})
    return found


def _measured(told: CostBenchmark, sizes: dict[str, int]) -> Callable[[str], dict[str, float]]:
    """Trains on pairs of one length, all of whose tokens are real."""
    towers = open_towers([], None)
    import tensorflow as tf

    from chatbot.model.seq2seq import built_model
    from chatbot.training.variable_update.choose import open_update

    vocabulary = sizes["vocabulary_size"]
    base = compose(
        Settings, num_layers=told.num_layers, embedding_size=told.embedding_size, bidirectional=False, keep_prob=1.0
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
        built_model(settings.model, vocabulary, settings.learning.seed, told.precision), settings, towers
    )
    step.scatter_state(step.gather_state())

    from chatbot.corpus.batching.batches import pad_batch

    batch = pad_batch(
        pairs, np.arange(settings.learning.batch_size), settings.model.max_length, settings.model.max_length
    )
    share = tuple(map(tf.constant, batch))

    def timed() -> float:
        began = time.perf_counter()
        step([share], 0, settings.learning.learning_rate)
        step.finished_steps()[-1].gradient_norm.numpy()
        return time.perf_counter() - began

    def measure(question: str) -> dict[str, float]:
        for _ in range(2):
            timed()
        seconds = statistics.median(timed() for _ in range(told.steps))
        rate = settings.learning.batch_size * settings.model.max_length / seconds
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return {"step_s": seconds, "target_tokens_per_s": rate, "peak_gb": peak}

    return measure


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UserError("--plot: matplotlib is missing; pip install matplotlib, or leave --plot out") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """A panel for each that grows."""
    names = list(dict.fromkeys(row["what"] for row in rows))
    figure, panels = _pyplot().subplots(1, len(names), figsize=(4 * len(names), 3.5), sharey=True)
    for name, panel in zip(names, panels, strict=True):
        some = [row for row in rows if row["what"] == name]
        panel.plot([row["value"] for row in some], [row["target_tokens_per_s"] for row in some], marker="o")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks([row["value"] for row in some], [f"{row['value']:,}" for row in some])
        panel.set_xlabel(name.replace("_", " "))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("target tokens a second")
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    print(f"Drawn: {file}", file=sys.stderr)

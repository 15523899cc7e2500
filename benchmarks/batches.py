"""Trains with several batch sizes and scalings of the learning rate for equal epochs, and compares the losses."""

import contextlib
import dataclasses
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.processes import output_of, python
from benchmarks.quality import validations
from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.run import base_batch
from chatbot.config.training import TRAIN, Settings
from chatbot.corpus.batches import Batches
from chatbot.errors import UserError
from chatbot.flags import compose, flag_of, setting
from chatbot.training.data import prepare

# Settings of train.py that the benchmark determines.
OWN = (
    *("attempt", "batch_size", "batch_tokens", "accumulate", "scale_learning_rate"),
    *("steps", "epochs", "validate_every", "patience"),
)


@dataclasses.dataclass(frozen=True)
class BatchesBenchmark(Recorded):
    """The flags of `python -m benchmarks batches`."""

    sizes: tuple[int, ...] = setting((512, 2048), "batch sizes to compare", group="training", minimum=1)
    rules: tuple[str, ...] = setting(
        ("sqrt", "linear"), "values of --scale-learning-rate for each size", choices=("sqrt", "linear", "none")
    )
    epochs: int = setting(4, "number of epochs of each run", minimum=1)


def measure(flags: BatchesBenchmark, training: Sequence[str]) -> dict[str, Any]:
    """Train with the preset's batch size without scaling, and with each combination of size and rule.

    Raises UserError if `training` contains flags that the benchmark determines, or if there are no validation pairs.
    """
    values = TRAIN.values(training)
    if given := [flag_of(name) for name in OWN if name in values]:
        raise UserError(f"{given[0]}: the benchmark determines it; leave it out")
    for name, value in values.items():  # train.py runs in another folder
        if "FILE" in TRAIN.flags[name].shown_value and value not in (AUTO, NONE):
            values[name] = tuple(map(os.path.abspath, value)) if TRAIN.flags[name].many else os.path.abspath(value)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values["cache"] = str(folder / "cache")
        settings = compose(Settings, **values, attempt=folder.name)
        with contextlib.redirect_stdout(sys.stderr):
            data = prepare(settings)
        base = base_batch(data.chosen["preset"], settings.model.architecture)
        for size, rule in [(base, "none"), *itertools.product(flags.sizes, flags.rules)]:
            steps = Batches(data.training, size, settings.learning.seed).steps_per_epoch
            row = {"pairs per step": size, "rule": rule, "steps per epoch": steps}
            run = {"batch_size": size, "scale_learning_rate": rule, "validate_every": steps, "epochs": flags.epochs}
            row |= train({**values, **run, "patience": flags.epochs + 1, "attempt": f"{size}-{rule}"}, folder)
            rows.append({**row, "difference": row["best"] - (rows or [row])[0]["best"]})
            log(str(rows[-1]))
    return {"runs": rows}


def train(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train an attempt with these settings in a folder, and return its time and its best and last validation loss."""
    words = [word for name, value in values.items() for word in TRAIN.flags[name].words(value)]
    began = time.perf_counter()
    output_of(python(ROOT / "train.py", *words, "--report-to", NONE, "--retrieve-pairs", "0"), folder)
    seconds = time.perf_counter() - began
    nats = [nats for nats, _ in validations(folder / attempt_directory(values["attempt"]))]
    return {"seconds": seconds, "best": min(nats), "best epoch": 1 + nats.index(min(nats)), "last": nats[-1]}


BENCHMARK = Benchmark(
    "batches",
    BatchesBenchmark,
    "Train with the batch size of a preset and with others for equal epochs, and compare the validation losses (nats "
    "per character). Flags of train.py follow after --: -- --data pairs.tsv --preset large",
    measure,
    trains=True,
)

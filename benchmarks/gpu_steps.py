"""Measures training steps on a GPU, many models in one process, so that CUDA starts only once.

XLA is measured with a single batch that is repeated, because it compiles the gradient function anew for each shape of a
batch. cuDNN's LSTM cannot be compiled.
"""

import contextlib
import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.benchmark import log
from benchmarks.opened_step import OpenedStep
from benchmarks.processes import Worker
from benchmarks.tokenised import TokenisedPairs
from chatbot.config.training import Settings
from chatbot.training.devices.towers import Tower, choose_gpus, open_towers

NO_TIME = "not run: no time left"
TURNS = 10  # number of turns of a measurement; the first half is a warm-up
# After this time, a measurement has fewer turns, but at least MIN_TURNS.
TURN_SECONDS = 5.0
MIN_TURNS = 4
# The repeated batch has the median number of tokens of this many batches.
COMPARED_BATCHES = 15
Row = dict[str, Any]


class Case(NamedTuple):
    """A row to measure."""

    what: str
    settings: Settings
    with_xla: bool = False  # whether to repeat one batch, without and with XLA


def measure_cases(
    pairs: TokenisedPairs, cases: Sequence[Case], steps: int, seconds: float, environment: Mapping[str, str]
) -> Iterator[Row]:
    """Yield a row for each case. All are measured in one process, which is replaced if it ends.

    Args:
        pairs: The training pairs.
        cases: What to measure.
        steps: The maximum number of steps of a measurement.
        seconds: The time for all cases. A case that has not ended by then is stopped, and further ones are not run.
        environment: The environment variables of the process.
    """
    end = time.monotonic() + seconds
    worker: Worker | None = None
    with contextlib.ExitStack() as processes:
        for case in cases:
            left = end - time.monotonic()
            if left <= 0:
                yield {"what": case.what, "result": NO_TIME}
                continue
            if worker is None:
                with mock.patch.dict(os.environ, environment, clear=True):
                    worker = processes.enter_context(Worker(steps_worker, pairs))
            try:
                row = worker.ask(case, steps, seconds=left)
            except RuntimeError as error:
                processes.close()
                worker = None
                row = {"result": str(error)}
            yield {"what": case.what, **row}


def steps_worker(pairs: TokenisedPairs) -> Callable[[Case, int], Row]:
    """Open the first GPU, or the CPU, and return a function that measures a case and returns its row."""
    towers = open_towers(choose_gpus()[:1], None)

    def measure(case: Case, steps: int) -> Row:
        if not case.with_xla:
            return _measure(case.settings, pairs, towers, steps)
        plain, row = (
            _measure(case.settings, pairs, towers, steps // 2, one_batch=True, xla=xla) for xla in (False, True)
        )
        row["without_xla"] = plain["result"]
        if "rates" in row and "rates" in plain:
            row["speed_up"] = median_rate(row["rates"]) / median_rate(plain["rates"])
        return row

    return measure


def _measure(settings: Settings, pairs: TokenisedPairs, towers: Sequence[Tower], steps: int, **how: bool) -> Row:
    """Train a new model, and return a row with the speed, or with the error."""
    try:
        return _train(settings, pairs, towers, steps, **how)
    except Exception as error:  # The report goes on after every error of TensorFlow, CUDA and XLA.
        log(str(error))
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "{{node" not in line]
        return {"result": f"{type(error).__name__}: {' '.join(lines[-1:])}"[:200]}


def _train(
    settings: Settings,
    pairs: TokenisedPairs,
    towers: Sequence[Tower],
    steps: int,
    one_batch: bool = False,
    xla: bool = False,
) -> Row:
    """Train a new model. The row has the speed, the time until the end of the first step, and the memory peak."""
    import tensorflow as tf

    gc.collect()  # graphs and weights of the previous model
    device = towers[0].device
    tf.config.experimental.reset_memory_stats(device)
    began = time.perf_counter()
    opened = OpenedStep(settings, pairs.encoded(), pairs.size, towers, settings.learning.precision)
    if one_batch:
        batches = sorted(
            itertools.islice(opened.batches.from_step(0, 1), COMPARED_BATCHES), key=lambda x: x.shares[0].weights.sum()
        )
        opened.stream = itertools.repeat(batches[COMPARED_BATCHES // 2])
    if xla:
        (function,) = opened.update.gradient_functions
        compiled = tf.function(function.python_function, autograph=False, jit_compile=True)
        opened.update.gradient_functions = [compiled]
    try:
        opened.turn(1)
        start = time.perf_counter() - began
        rates: list[float] = []
        turns = min(TURNS, steps)
        while len(rates) < turns and (len(rates) < MIN_TURNS or time.perf_counter() - began - start < TURN_SECONDS):
            rates.append(opened.turn(steps // turns)["target_tokens_per_s"])
    finally:
        opened.window.close()
    peak = tf.config.experimental.get_memory_info(device)["peak"]
    return {
        "result": f"{median_rate(rates):,.0f} tokens/s",
        "start_s": start,
        "peak_gib": peak / 2**30,
        "steps": len(rates) * (steps // turns),
        "rates": rates,
    }


def median_rate(rates: Sequence[float]) -> float:
    """Return the median speed of the second half of the turns."""
    return statistics.median(rates[len(rates) // 2 :])

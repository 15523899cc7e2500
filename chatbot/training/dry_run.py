"""--dry-run: what a run would train, in how much memory and time, by a few measured steps. Nothing is written."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import tensorflow as tf

from chatbot.attempts.settings import storable
from chatbot.display import aligned, counted
from chatbot.flags import flags_for
from chatbot.memory import peak_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.metrics import Window
from chatbot.training.replica import part_names, size_of
from chatbot.training.reporting.terminal import print_lines, steps_left, time_left
from chatbot.training.result import TrainingResult
from chatbot.training.run import Run
from chatbot.training.share import Prepared
from chatbot.training.step import Synchronous
from chatbot.training.update import chosen_update

# Batches of an epoch among which the largest one is sought.
PLANNED = 5000
# Consecutive steps that are timed, and the seconds after which no further one begins.
STEPS = 40
MOST_SECONDS = 30.0


def dry_run(run: Run) -> TrainingResult:
    """Print the plan of a run on one machine. Raises UserError as the run would before its first step."""
    batch = largest_batch(run)
    train(run, batch)  # traces the graphs
    growth = peak_growth(run.towers, lambda: train(run, batch))
    seconds = seconds_per_step(run)
    steps, bound = steps_left(run)
    count = f"{bound} {counted(steps, 'step')}".lstrip()
    lines = [
        f"Settings: {flags_for(run.settings, storable(run.settings))}",
        *parameter_table(run),
        *memory_table(run, growth),
        f"Steps: {run.batches.steps_per_epoch:,} an epoch of {counted(run.batches.pairs, 'pair')}; "
        f"{1000 * seconds:.1f} ms a step",
        f"Time: {count}; {f'{time_left(run, seconds)}, without validations' if steps else 'the run is over'}",
        "Nothing was written. Without --dry-run, the same command trains.",
    ]
    print_lines(lines)
    directory = run.settings.run.directory.absolute()
    progress = run.progress
    return TrainingResult(directory, progress.step, "--dry-run", progress.best_step, progress.best_nats)


def largest_batch(run: Run) -> Prepared:
    """Return the batch with the most positions among the first ones of an epoch."""

    def positions(step: int) -> int:
        bucket, rows = plan[step]
        return len(rows) * sum(bucket.shape)

    plan = list(itertools.islice(run.batches.plan(0), PLANNED))
    step = max(range(len(plan)), key=positions)
    return run.train_step.prepare(next(run.batches.from_step(step, run.train_step.num_shares)), step)


def train(run: Run, batch: Prepared) -> None:
    """Train on a batch, and wait until all devices have finished."""
    run.train_step(batch, run.rate)
    run.train_step.finished_steps()


def peak_growth(towers: Sequence[Tower], action: Callable[[], object]) -> list[int] | None:
    """Return the bytes by which each GPU's memory grows at most during an action; None for towers on the CPU."""
    if not all("GPU" in tower.device for tower in towers):
        return None
    devices = [tower.device.removeprefix("/") for tower in towers]
    for device in devices:
        tf.config.experimental.reset_memory_stats(device)
    before = [tf.config.experimental.get_memory_info(device)["current"] for device in devices]
    action()
    after = [tf.config.experimental.get_memory_info(device)["peak"] for device in devices]
    return [max(0, peak - current) for peak, current in zip(after, before, strict=True)]


def seconds_per_step(run: Run) -> float:
    """Return the mean time of consecutive steps. As in a run, only the last one is waited for."""
    with closing(Window(run.batches_ahead(), run.train_step.begin_copies)) as window:
        train(run, window.next_batch())
        started = time.perf_counter()
        count = 0
        while count < STEPS and time.perf_counter() - started < MOST_SECONDS:
            run.train_step(window.next_batch(), run.rate)
            count += 1
        run.train_step.finished_steps()
        return (time.perf_counter() - started) / count


def parameter_table(run: Run) -> list[str]:
    """Return the weights by layer: their part of the model, shapes, and millions of parameters."""
    layers: dict[tuple[str, str], list[Any]] = defaultdict(list)
    variables = run.model.trainable_variables
    for part, variable in zip(part_names(run.model), variables, strict=True):
        layers[part, variable.path.rpartition("/")[0]].append(variable)
    rows = [("part", "layer", "shapes", "millions")]
    for (part, layer), weights in layers.items():
        shapes = " + ".join("x".join(map(str, weight.shape)) for weight in weights)
        rows.append((part, layer, shapes, f"{sum(map(size_of, weights)) / 4e6:.3f}"))
    return [f"Parameters: {sum(map(size_of, variables)) // 4:,}", *aligned(rows, [True, True, True, False], "  ")]


def memory_table(run: Run, growth: Sequence[int] | None) -> list[str]:
    """Return the memory of each tower. growth: in bytes, during a step of the largest batch."""
    parallel = chosen_update(run.settings, run.towers).parallel
    weights = sum(map(size_of, run.model.trainable_variables))
    state = sum(value.nbytes for values in run.train_step.gather_state() for value in values)
    own = {id(variable.value) for variable in run.model.trainable_variables}
    assert isinstance(run.train_step, Synchronous), "a plan is of one machine"
    vectors = sum(size_of(w) for w in run.train_step.replicas[0].weights if id(w) not in own)
    if run.settings.learning.average:
        vectors = 0  # a part of the state
    rows: list[tuple[str, ...]] = [("tower", "weights", "optimizer", "gradients", "activations", "sum", "device")]
    for number, tower in enumerate(run.towers):
        single = parallel.variable_update == "parameter_server"
        holds = not single or (number == 0 and parallel.local_parameter_device != "cpu")
        held = [weights + (vectors if number == 0 else 0), state] if holds else [0, 0]
        grown = [weights, max(0, growth[number] - weights)] if growth else [weights, 0]
        cells = [f"{size / 1e6:,.1f} MB" for size in (*held, *grown, sum([*held, *grown]))]
        if not growth:
            cells[3:] = ["not measured", f"over {cells[4]}"]
        rows.append((tower.name, *cells, "" if tower.left is None else f"{tower.left / 1e6:,.0f} MB"))
    peak = None if growth else peak_memory()
    whole = [] if peak is None else [f"  The whole process so far: at most {peak / 1e6:,.0f} MB"]
    return ["Memory, at the largest batch:", *aligned(rows, [True, *[False] * 6], "  "), *whole]

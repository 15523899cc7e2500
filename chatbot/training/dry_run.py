"""--dry-run: estimates the memory and time of a run by measuring a few steps, without writing any files."""

import dataclasses
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import tensorflow as tf

from chatbot.attempts.settings import stored_values
from chatbot.display import align_columns, duration, pluralize
from chatbot.errors import UserError
from chatbot.flags import flags_for
from chatbot.memory import peak_memory
from chatbot.training.devices.towers import Tower
from chatbot.training.memory import max_tokens
from chatbot.training.metrics import Window
from chatbot.training.replica import part_names, variable_bytes
from chatbot.training.reporting.terminal import print_lines, steps_left, time_left
from chatbot.training.result import TrainingResult
from chatbot.training.run import Run
from chatbot.training.share import Prepared
from chatbot.training.step import Synchronous
from chatbot.training.update import open_update, resolve_update

# The largest batch is searched for among this many batches.
PLANNED = 5000
# Timing, of each number of devices, ends after this many steps or seconds.
STEPS = 40
MAX_SECONDS = 30.0


def dry_run(run: Run) -> TrainingResult:
    """Print the parameters, memory and estimated time of a run on one machine.

    Raises:
        UserError: If the run would fail before its first step.
    """
    batch = largest_batch(run)
    train(run, batch)  # The first step traces the graphs, so it is not measured.
    growth = measure_growth(run.towers, lambda: train(run, batch))
    seconds = seconds_per_step(run)
    steps, bound = steps_left(run)
    count = f"{bound} {pluralize(steps, 'step')}".lstrip()
    lines = [
        f"Settings: {flags_for(run.settings, stored_values(run.settings))}",
        *parameter_table(run),
        *memory_table(run, growth),
        f"Steps: {run.batches.steps_per_epoch:,} per epoch of {pluralize(run.batches.pairs, 'pair')}; "
        f"{1000 * seconds:.1f} ms per step",
        f"Time: {count}; {f'{time_left(run, seconds)}, without validations' if steps else 'the run is over'}",
        f"One epoch: {epoch_times(run, seconds)}",
        "Nothing was written. Without --dry-run, the same command trains.",
    ]
    print_lines(lines)
    directory = run.settings.run.directory.absolute()
    progress = run.progress
    return TrainingResult(directory, progress.step, "--dry-run", progress.best_step, progress.best_nats)


def largest_batch(run: Run) -> Prepared:
    """Return the batch with the most tokens, including padding, among the first PLANNED batches of an epoch."""

    def positions(step: int) -> int:
        bucket, rows = plan[step]
        return len(rows) * sum(bucket.shape)

    plan = list(itertools.islice(run.batches.plan(0), PLANNED))
    step = max(range(len(plan)), key=positions)
    return run.train_step.prepare(next(run.batches.from_step(step, run.train_step.num_shares)), step)


def train(run: Run, batch: Prepared) -> None:
    """Run a training step and wait for its result."""
    run.train_step(batch, run.rate)
    run.train_step.finished_steps()


def measure_growth(towers: Sequence[Tower], action: Callable[[], object]) -> list[int] | None:
    """Measure the peak growth of each GPU's memory usage during an action, in bytes. Returns None on CPUs."""
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
    """Return the mean time per step in seconds. Steps are queued without waiting for results, as in training."""
    with closing(Window(run.batches_ahead(), run.train_step.begin_copies)) as window:
        train(run, window.next_batch())
        started = time.perf_counter()
        count = 0
        while count < STEPS and time.perf_counter() - started < MAX_SECONDS:
            run.train_step(window.next_batch(), run.rate)
            count += 1
        run.train_step.finished_steps()
        return (time.perf_counter() - started) / count


def epoch_times(run: Run, seconds: float) -> str:
    """Measure the time of an epoch with the first 1, 2, 4, ... of the towers, and format it for each number.

    Args:
        run: The run. Afterwards, its model must not be trained on all towers.
        seconds: The time of a step on all towers, in seconds.
    """
    kind = "GPU" if all("GPU" in tower.device and not tower.virtual for tower in run.towers) else "tower"
    epoch = run.batches.steps_per_epoch
    times = []
    for count in itertools.takewhile(len(run.towers).__gt__, (2**i for i in itertools.count())):
        towers = run.towers[:count]
        run.model.loss_size = run.model.loss_size._replace(max_tokens=max_tokens(run.settings, count))
        try:
            fewer = dataclasses.replace(run, towers=towers, train_step=open_update(run.model, run.settings, towers))
            time_of_epoch = duration(epoch * seconds_per_step(fewer))
        except (UserError, tf.errors.ResourceExhaustedError):  # the weights of `run` also take memory
            time_of_epoch = "not measured"
        times.append(f"{time_of_epoch} on {pluralize(count, kind)}")
    times.append(f"{duration(epoch * seconds)} on {pluralize(len(run.towers), kind)}")
    return ", ".join(times) + ("; measured with batches of the same size" if len(times) > 1 else "")


def parameter_table(run: Run) -> list[str]:
    """Format a table of all layers, with the model part, shapes and millions of parameters of each layer."""
    layers: dict[tuple[str, str], list[Any]] = defaultdict(list)
    variables = run.model.trainable_variables
    for part, variable in zip(part_names(run.model), variables, strict=True):
        layers[part, variable.path.rpartition("/")[0]].append(variable)
    rows = [("part", "layer", "shapes", "millions")]
    for (part, layer), weights in layers.items():
        shapes = " + ".join("x".join(map(str, weight.shape)) for weight in weights)
        rows.append((part, layer, shapes, f"{sum(map(variable_bytes, weights)) / 4e6:.3f}"))
    return [
        f"Parameters: {sum(map(variable_bytes, variables)) // 4:,}",
        *align_columns(rows, [True, True, True, False], "  "),
    ]


def memory_table(run: Run, growth: Sequence[int] | None) -> list[str]:
    """Format a table of the memory that each tower needs.

    Args:
        run: The run.
        growth: The result of `measure_growth` for a step on the largest batch.
    """
    parallel = resolve_update(run.settings, run.towers).parallel
    weights = sum(map(variable_bytes, run.model.trainable_variables))
    state = sum(value.nbytes for values in run.train_step.gather_state() for value in values)
    model_weights = {id(variable.value) for variable in run.model.trainable_variables}
    assert isinstance(run.train_step, Synchronous), "--dry-run supports a single machine only"
    copies = sum(variable_bytes(w) for w in run.train_step.replicas[0].weights if id(w) not in model_weights)
    if run.settings.learning.average:
        copies = 0  # The copied weights are already counted in `state`.
    rows: list[tuple[str, ...]] = [("tower", "weights", "optimizer", "gradients", "activations", "sum", "device")]
    for number, tower in enumerate(run.towers):
        is_shared = parallel.variable_update == "parameter_server"
        has_weights = not is_shared or (number == 0 and parallel.local_parameter_device != "cpu")
        permanent = [weights + (copies if number == 0 else 0), state] if has_weights else [0, 0]
        temporary = [weights, max(0, growth[number] - weights)] if growth else [weights, 0]
        cells = [f"{size / 1e6:,.1f} MB" for size in (*permanent, *temporary, sum([*permanent, *temporary]))]
        if not growth:
            cells[3:] = ["not measured", f"over {cells[4]}"]
        rows.append((tower.name, *cells, "" if tower.left is None else f"{tower.left / 1e6:,.0f} MB"))
    peak = None if growth else peak_memory()
    footer = [] if peak is None else [f"  Peak memory of the whole process so far: {peak / 1e6:,.0f} MB"]
    return ["Memory, at the largest batch:", *align_columns(rows, [True, *[False] * 6], "  "), *footer]

"""--dry-run: what a run would train, in how much memory and time, by a few measured steps. Nothing is written."""

import datetime
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from chatbot.config.stored import as_flags, storable
from chatbot.corpus.batches import Bucket
from chatbot.corpus.reading.display import counted
from chatbot.training.attempt import TrainingResult
from chatbot.training.devices.memory import peak_growth, process_memory
from chatbot.training.display import aligned, duration, line_stream, wrapped
from chatbot.training.optimizer import part_names
from chatbot.training.reporting.terminal import steps_left, time_left
from chatbot.training.run import Run
from chatbot.training.share import Prepared
from chatbot.training.update import chosen_update

DRY_RUN = "--dry-run"
WITHOUT = "Without --dry-run, the same command trains"
# Batches of an epoch that are planned to find one of each bucket.
PLANNED = 5000
# Timed steps of each bucket, and the seconds after which no further one begins.
REPEATS, MOST_SECONDS = 3, 30.0
# Consecutive steps that are timed, and the seconds after which no further one begins.
CONSECUTIVE, MOST_CONSECUTIVE = 40, 15.0


def dry_run(run: Run) -> TrainingResult:
    """Print the plan of a run on one machine. Raises UserError as the run would before its first step."""
    batches = one_of_each_bucket(run)
    timed_step(run, batches[-1][1])  # traces the graphs
    growth = peak_growth(run.towers, lambda: timed_step(run, batches[0][1]))
    times = measured_times(run, batches)
    output = line_stream()
    lines = [
        f"Settings: {as_flags(storable(run.settings))}",
        *parameter_table(run, output.columns),
        *memory_table(run, growth, output.columns),
        *step_table(run, times, output.columns),
        *time_table(run, times),
        f"Nothing was written. {WITHOUT}.",
    ]
    output.write("".join(f"{wrapped(line, output.columns)}\n" for line in lines))
    output.flush()
    progress = run.progress
    return TrainingResult(run.settings.run.directory, progress.step, DRY_RUN, progress.best_step, progress.best_nats)


def one_of_each_bucket(run: Run) -> list[tuple[Bucket, Prepared]]:
    """Return the largest batch of each bucket among the first ones of an epoch, those of the largest bucket first."""
    sizes: dict[Bucket, tuple[int, int]] = {}  # the pairs of the largest batch, and minus its step
    for step, (bucket, positions) in enumerate(itertools.islice(run.batches.plan(0), PLANNED)):
        sizes[bucket] = max(sizes.get(bucket, (0, 0)), (len(positions), -step))
    prepared = []
    for bucket in sorted(sizes, key=lambda bucket: -sizes[bucket][0] * sum(bucket.shape)):
        step = -sizes[bucket][1]
        batch = next(run.batches.from_step(step, run.train_step.num_shares))
        prepared.append((bucket, run.train_step.prepare(batch, step)))
    return prepared


def measured_times(run: Run, batches: Sequence[tuple[Bucket, Prepared]]) -> dict[Bucket, float]:
    """Return the median time of a step of each bucket, of at least one and at most REPEATS steps."""
    end = time.perf_counter() + MOST_SECONDS
    times = {}
    for bucket, batch in batches:
        seconds = [timed_step(run, batch)]  # slower: the allocator has not seen this size
        while len(seconds) <= REPEATS and time.perf_counter() < end:
            seconds.append(timed_step(run, batch))
        times[bucket] = statistics.median(seconds[1:] or seconds)
    return times


def consecutive_factor(run: Run, times: dict[Bucket, float]) -> float:
    """Return the time of consecutive steps, as in a run, over that of the same steps by the times of their buckets."""
    epoch, done = divmod(run.progress.step, run.batches.steps_per_epoch)
    expected = 0.0
    with closing(run.batches_ahead()) as batches:
        batch = next(batches)
        started = time.perf_counter()
        for bucket, _ in itertools.islice(run.batches.plan(epoch, done), CONSECUTIVE):
            if bucket not in times or time.perf_counter() > started + MOST_CONSECUTIVE:
                break
            expected += times[bucket]
            run.train_step(batch, run.rate)
            batch = next(batches)
        wait_for_steps(run)
        return (time.perf_counter() - started) / expected if expected else 1.0


def wait_for_steps(run: Run) -> None:
    """Wait until all devices have finished."""
    for result in run.train_step.finished_steps():
        result.gradient_norm.numpy()


def timed_step(run: Run, batch: Prepared) -> float:
    """Train on a batch; return the seconds until all devices have finished."""
    started = time.perf_counter()
    run.train_step(batch, run.rate)
    wait_for_steps(run)
    return time.perf_counter() - started


def parameter_table(run: Run, columns: int | None) -> list[str]:
    """Return the weights by layer: their part of the model, shapes, and millions of parameters."""
    layers: dict[tuple[str, str], list[Any]] = defaultdict(list)
    variables = run.model.trainable_variables
    for part, variable in zip(part_names(run.model), variables, strict=True):
        layers[part, variable.path.rpartition("/")[0]].append(variable)
    rows = [("part", "layer", "shapes", "millions")]
    for (part, layer), weights in layers.items():
        shapes = " + ".join("x".join(map(str, weight.shape)) for weight in weights)
        rows.append((part, layer, shapes, f"{sum(map(parameters, weights)) / 1e6:.3f}"))
    total = sum(map(parameters, variables))
    return [f"Parameters: {total:,}", *aligned(rows, 3, columns)]


def parameters(variable: Any) -> int:
    """Return the number of elements of a variable."""
    return math.prod(variable.shape)


def memory_table(run: Run, growth: Sequence[int] | None, columns: int | None) -> list[str]:
    """Return the memory of each tower. growth: in bytes, during a step of the largest batch."""
    parallel = chosen_update(run.settings, run.towers).parallel
    weights = 4 * sum(map(parameters, run.model.trainable_variables))
    state = sum(value.nbytes for values in run.train_step.gather_state() for value in values)
    rows: list[tuple[str, ...]] = [("tower", "weights", "optimizer", "gradients", "activations", "sum", "device")]
    for number, tower in enumerate(run.towers):
        single = parallel.variable_update == "parameter_server"
        holds = not single or (number == 0 and parallel.local_parameter_device != "cpu")
        held = [weights, state] if holds else [0, 0]
        grown = [weights, max(0, growth[number] - weights)] if growth else [weights, 0]
        cells = [f"{size / 1e6:,.1f} MB" for size in (*held, *grown, sum([*held, *grown]))]
        if not growth:
            cells[3:] = ["not measured", f"over {cells[4]}"]
        rows.append((tower.name, *cells, "" if tower.memory is None else f"{tower.memory / 1e6:,.0f} MB"))
    lines = ["Memory, at the largest batch:", *aligned(rows, 1, columns)]
    with suppress(OSError):
        lines.append(f"  The process had {process_memory('VmHWM') / 1e6:,.0f} MB at the peak.")
    return lines


def step_table(run: Run, times: dict[Bucket, float], columns: int | None) -> list[str]:
    """Return the measured steps, those of the largest batches first."""
    rows: list[tuple[str, ...]] = [("pairs", "question", "reply", "batches", "ms a step")]
    for bucket, seconds in times.items():
        source, target = bucket.shape
        rows.append((*(f"{n:,}" for n in (bucket.batch_size, source, target, bucket.batches)), f"{1000 * seconds:.1f}"))
    epoch = f"Steps: {run.batches.steps_per_epoch:,} an epoch of {counted(run.batches.pairs, 'pair')}"
    return [f"{epoch}; pairs of a batch, and the lengths that they are padded to:", *aligned(rows, 0, columns)]


def time_table(run: Run, times: dict[Bucket, float]) -> list[str]:
    """Return the whole time of the run, with the parts of validation and checkpoints."""
    mean = sum(seconds * bucket.batches for bucket, seconds in times.items()) / sum(bucket.batches for bucket in times)
    seconds_per_step = mean * consecutive_factor(run, times)
    data, calendar = run.data, run.calendar
    left = steps_left(run.progress, calendar, run.settings.learning.patience if data.validation_decides else None)
    total, validations = left.steps * seconds_per_step, 0
    lines = [f"  training        {duration(total)}, {1000 * seconds_per_step:.1f} ms a step among others"]
    if data.validation is not None and calendar.validate_every is not None:
        validations = math.ceil(left.steps / calendar.validate_every)
        each = run.validator.seconds(data.validation)
        name = f"  {counted(validations, 'validation')}"
        lines.append(f"{name:<18}{duration(validations * each)}, {each:.1f} s each")
        total += validations * each
    started = time.perf_counter()
    run.train_step.gather_state()
    each = time.perf_counter() - started
    saves = math.ceil(left.steps / calendar.save_every)
    if validations and calendar.validate_every:  # each is saved, too
        saves += validations - left.steps // math.lcm(calendar.save_every, calendar.validate_every)
    name = f"  {counted(saves, 'checkpoint')}"
    lines.append(f"{name:<18}{duration(saves * each)}, {each:.2f} s each until it is copied")
    total += saves * each
    end = time_left(left, total / max(left.steps, 1), run.seconds_left, datetime.datetime.now())
    count = f"{left.bound} {counted(left.steps, 'step')}".lstrip()
    return [f"Time: {count}; {end or 'the run is over'}", *lines]

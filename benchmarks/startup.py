"""Time and memory until the first step of a run, for each number of towers."""

import time
from collections.abc import Callable

from benchmarks.resident_memory import peak_gb
from benchmarks.scaling_flags import ScalingBenchmark
from benchmarks.worker import Worker, ask_all
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import choose_gpus, open_towers


def measure_startup(flags: ScalingBenchmark) -> list[dict[str, float]]:
    """Print a table of the start, with a row for each number of towers, and return its rows.

    Each start is in a new process, which ends before the next one begins. More towers than GPUs are left out, unless
    there is at most one GPU. The keys of a row: number, towers; import_s, build_s and first_step_s, seconds of the
    import of TensorFlow, of building the model and its update, and of the first step with its tracing; startup_s, their
    sum; second_step_s; traces, of the step; weights, numbers in the model; peak_gb, memory of the process in GB.
    """
    gpus = len(choose_gpus(None, None, find_gpus()))
    rows = []
    print("   towers  import, s  build, s  first step, s  second step, s  traces  peak, GB")
    for number in flags.tower_numbers:
        if 1 < gpus < number:
            break
        with Worker(_starting_worker, flags, number) as worker:
            row = ask_all([worker])[0]
        rows.append(row)
        print(
            f"{row['number']:9.0f}  {row['import_s']:9.1f}  {row['build_s']:8.1f}  {row['first_step_s']:13.1f}  "
            f"{row['second_step_s']:14.2f}  {row['traces']:6.0f}  {row['peak_gb']:8.2f}",
            flush=True,
        )
    return rows


def _starting_worker(flags: ScalingBenchmark, number: int) -> Callable[[str], dict[str, float]]:
    """Start a run with this many towers and train for two steps. Every request gets the row of the start."""
    times = [time.perf_counter()]
    gpus = choose_gpus(None, number, find_gpus())
    towers = open_towers(gpus, number if len(gpus) < 2 else None)
    from chatbot.corpus.batches import Batches
    from chatbot.model.new_model import built_model
    from chatbot.training.update import open_update

    times.append(time.perf_counter())
    model = built_model(flags.settings.model, flags.vocabulary_size, flags.settings.learning.seed)
    step = open_update(model, flags.settings, towers)
    step.scatter_state(step.gather_state())
    batches = Batches([flags.pairs()], flags.batch_size, seed=1).from_step(0, step.num_shares)
    times.append(time.perf_counter())
    for number_of_step in range(2):
        step(step.prepare(next(batches), number_of_step), 1e-3)
        step.finished_steps()  # waits for the step
        times.append(time.perf_counter())
    opened, imported, built, first, second = times
    row = {
        "number": number,
        "import_s": imported - opened,
        "build_s": built - imported,
        "first_step_s": first - built,
        "startup_s": first - opened,
        "second_step_s": second - first,
        "traces": step.traces,
        "weights": sum(variable.shape.num_elements() for variable in model.trainable_variables),
        "peak_gb": peak_gb(),
    }
    return lambda _: row

"""Scaling with towers and processes, measured side by side, and a prediction for more GPUs."""

import contextlib
import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import log, print_json
from benchmarks.ring import LINKS, exposed_seconds, plan, ring_bytes
from benchmarks.scaling_flags import ScalingBenchmark
from benchmarks.startup import measure_startup
from benchmarks.worker import Worker, ask_all
from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.quiet import import_tensorflow
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import choose_gpus, open_towers
from chatbot.training.machines.cluster import WORKER, Cluster, free_addresses

# Steps before the measurement, which trace the graph and touch the memory.
WARM_UP_STEPS = 2
EXCHANGE = "exchange"  # a request to a worker
START_SECONDS = 60.0  # for a process to start


def scaling_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print tables and a verdict, and as the last line one JSON object."""
    about = "Measure how training scales with towers and processes on this machine, and predict it for more GPUs."
    flags = CommandLine(ScalingBenchmark, "benchmarks scaling", about).parse(arguments)
    results: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(flags)}
    verdicts = []
    if flags.towers:
        log("Start of towers ...")
        results["startup"] = measure_startup(flags)
        log("Towers ...")
        results["towers"] = _measure_towers(flags)
        most = results["towers"][-1]
        verdicts.append(f"a step of {most['number']:.0f} towers takes {most['relative_step']:.2f} times that of 1")
    if flags.processes:
        log("Processes ...")
        results |= _measure_processes(flags)
        verdicts.append(
            f"2 processes train {results['processes'][-1]['speed_up']:.2f} times the tokens of 1; "
            f"the limit of this machine is {results['limit']:.2f}, the prediction {results['predicted_speed_up']:.2f}"
        )
    if flags.plan:
        step = flags.step_ms / 1e3 if flags.step_ms else results.get("step_s")
        if step is None:
            raise UserError("--plan: no step was measured; leave out --no-processes, or give --step-ms")
        links = [LINKS[flags.link]] if flags.link else list(LINKS.values())
        results["plan"] = plan(step, *_gradient_bytes(flags), links)
    results["verdict"] = "; ".join(verdicts)
    print(f"Verdict: {results['verdict'] or 'nothing was measured'}.")
    print_json(results)
    return 0


def _measure_towers(flags: ScalingBenchmark) -> list[dict[str, float]]:
    """Return a row for each number of towers, all with the same global batch."""
    with Worker(_towers_worker, flags) as worker:
        rounds = [ask_all([worker])[0] for _ in range(flags.rounds)]
    rows = [_median(turns) for turns in zip(*rounds, strict=True)]
    gpus = len(choose_gpus(None, None, find_gpus()))
    for row in rows:
        row["relative_step"] = row["step_s"] / rows[0]["step_s"]
        row["speed_up"] = rows[0]["step_s"] / row["step_s"]
        row["efficiency"] = row["speed_up"] / tower_devices(int(row["number"]), gpus)
    _print_table("towers", rows)
    return rows


def tower_devices(towers: int, gpus: int) -> int:
    """Return the number of devices of the towers: a GPU for each, or one device without GPUs or with a single GPU."""
    return min(towers, gpus) if gpus > 1 else 1


def _towers_worker(flags: ScalingBenchmark) -> Callable[[str], list[dict[str, float]]]:
    gpus = choose_gpus(None, None, find_gpus())
    towers = open_towers(gpus, flags.tower_numbers[-1] if len(gpus) < 2 else None)
    from chatbot.training.update import open_update

    turns = [
        _make_turn(flags, lambda model, n=n: open_update(model, flags.settings, towers[:n]))
        for n in flags.tower_numbers
        if n <= len(towers)
    ]
    return lambda _: [turn() for turn in turns]


def _make_turn(
    flags: ScalingBenchmark, open_step: Callable[..., Any], machine: int = 0, machines: int = 1
) -> Callable[[], dict[str, float]]:
    """Return a function that trains for one turn and returns its row. The global batch grows with the machines only."""
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.workers import prefetched
    from chatbot.model.new_model import built_model
    from chatbot.training.loop import Window

    step = open_step(built_model(flags.settings.model, flags.vocabulary_size, flags.settings.learning.seed))
    step.scatter_state(step.gather_state())
    batches = Batches([flags.pairs()], flags.batch_size * machines, seed=1)
    numbered = zip(batches.from_step(0, step.num_shares, machine, machines), itertools.count())
    window = Window(prefetched(numbered, step.prepare), step.begin_copies)

    def turn(steps: int = flags.steps) -> dict[str, float]:
        window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            step(window.next_batch(), 1e-3)
        record = window.record(0, 1e-3, step.finished_steps())
        seconds = (time.perf_counter() - began) / steps
        names = ("examples_per_s", "target_tokens_per_s", "input_wait")
        return {"number": len(record["tower_losses"]), "step_s": seconds, **{name: record[name] for name in names}}

    turn(WARM_UP_STEPS)
    return turn


def _measure_processes(flags: ScalingBenchmark) -> dict[str, Any]:
    """Measure one process on one core, two with an exchange of gradients, and two without: the machine's limit."""
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("scaling: two processes need two cores and this machine has one; add --no-processes")
    addresses = tuple(free_addresses(2))
    one: list[dict[str, float]] = []
    two: list[dict[str, float]] = []
    two_alone: list[dict[str, float]] = []
    exchanges: list[tuple[float, float]] = []
    sent = []
    with contextlib.ExitStack() as stack:
        alone = [stack.enter_context(Worker(_process_worker, flags, core, None)) for core in (0, 1)]
        clusters = [Cluster(addresses, WORKER, core) for core in (0, 1)]
        pair = [stack.enter_context(Worker(_process_worker, flags, core, clusters[core])) for core in (0, 1)]
        for workers in (alone, pair):
            ask_all(workers)  # waits until all of them are ready
        for _ in range(flags.rounds):
            one += ask_all(alone[:1])
            two_alone.append(_joined(ask_all(alone)))
            before = _loopback_bytes()
            two.append(_joined(ask_all(pair)))
            sent.append((_loopback_bytes() - before) / flags.steps / 2)
            exchanges.append(max(ask_all(pair, EXCHANGE)))
    rows = [_median(turns) for turns in (one, two, two_alone)]
    for row in rows:
        row["speed_up"] = row["target_tokens_per_s"] / rows[0]["target_tokens_per_s"]
        row["efficiency"] = row["speed_up"] / row["number"]
    _print_table("processes", rows[:2])
    size, last = _gradient_bytes(flags)
    exchange, busy = (statistics.median(times) for times in zip(*exchanges, strict=True))
    step, step_of_two = rows[0]["step_s"], rows[2]["step_s"]
    # On one core, only the part of an exchange that waits can overlap with the computation.
    exposed = min(exchange, max(busy, exposed_seconds(step, exchange * (1 - last / size), exchange * last / size)))
    results = {
        "processes": rows[:2],
        "limit": rows[2]["speed_up"],
        "step_s": step,
        "gradient_bytes": size,
        "last_stage_bytes": last,
        "least_bytes": ring_bytes(size, 2),
        "sent_bytes": statistics.median(sent),
        "exchange_s": exchange,
        "exchange_cpu_s": busy,
        "predicted_speed_up": 2 * step / (step_of_two + exchange),
        "predicted_overlapped_speed_up": 2 * step / (step_of_two + exposed),
    }
    print(
        f"Two processes without an exchange: {results['limit']:.2f} times one, the limit of this machine.\n"
        f"Each process sends {results['sent_bytes'] / 1e6:.1f} MB a step over loopback; a ring sends at least "
        f"{results['least_bytes'] / 1e6:.1f} MB.\n"
        "Gradients are dense. The embedding is also the projection, so the softmax gives every row of it a gradient, "
        "and slices would be larger.\n"
        f"An exchange by itself takes {exchange * 1e3:.0f} ms, of which the process computes for {busy * 1e3:.0f} ms. "
        f"The predicted speed-up is {results['predicted_speed_up']:.2f} with the exchange after the backward pass, and "
        f"{results['predicted_overlapped_speed_up']:.2f} with exchanges during it."
    )
    return results


def _process_worker(flags: ScalingBenchmark, core: int, cluster: Cluster | None) -> Callable[[str], Any]:
    """Train in a process pinned to a core. EXCHANGE sums gradients of the same size, without any training."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    towers = open_towers([], None)
    import tensorflow as tf

    from chatbot.training.machines.meeting import meet
    from chatbot.training.machines.peers import Peers
    from chatbot.training.machines.team import ALONE, join
    from chatbot.training.update import open_update

    team = ALONE
    if cluster is not None:
        meet(cluster, {}, START_SECONDS)
        team = join(cluster, Peers(cluster.others, lambda name: None), towers)

    def open_step(model: Any) -> Any:
        return open_update(model, flags.settings, towers, team)

    turn = _make_turn(flags, open_step, team.machine, team.machines)
    if cluster is None:
        return lambda _: turn()
    zeros = [tf.zeros(variable.shape) for variable in _model(flags).trainable_variables]
    exchange = tf.function(lambda: team.exchange([zeros]))
    exchange()

    def exchange_seconds() -> tuple[float, float]:
        """Return the time of an exchange, and the processor time of this process meanwhile."""
        began, busy = time.perf_counter(), time.process_time()
        exchange()
        return time.perf_counter() - began, time.process_time() - busy

    return lambda request: exchange_seconds() if request == EXCHANGE else turn()


def _model(flags: ScalingBenchmark) -> Any:
    import_tensorflow()
    from chatbot.model.new_model import built_model

    return built_model(flags.settings.model, flags.vocabulary_size, flags.settings.learning.seed)


def _gradient_bytes(flags: ScalingBenchmark) -> tuple[int, int]:
    """Return the bytes of all gradients, and of the encoder's, the last stage of the backward pass.

    The embedding counts as a part of the projection, the first stage; the lookup's gradient of it is not counted again.
    """
    model = _model(flags)
    total, last = (
        4 * sum(variable.shape.num_elements() for variable in part.trainable_variables)
        for part in (model, model.encoder)
    )
    return total, last


def _joined(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Combine the rows of several processes: the sum of their rates and the time of the slowest step."""
    row = {name: sum(result[name] for result in results) for name in ("examples_per_s", "target_tokens_per_s")}
    if results[0]["number"] > 1:  # each process of a team reports the rates of the whole team
        row = {name: value / len(results) for name, value in row.items()}
    slowest = {name: max(result[name] for result in results) for name in ("step_s", "input_wait")}
    return {"number": len(results), **slowest, **row}


def _median(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _print_table(what: str, rows: Sequence[dict[str, float]]) -> None:
    print(f"{what:>9}  ms a step  examples/s  target tokens/s  speed-up  efficiency  input wait")
    for row in rows:
        print(
            f"{row['number']:9.0f}  {1e3 * row['step_s']:9.0f}  {row['examples_per_s']:10.0f}  "
            f"{row['target_tokens_per_s']:15,.0f}  {row['speed_up']:8.2f}  {row['efficiency']:10.0%}  "
            f"{row['input_wait']:10.1%}"
        )


def _loopback_bytes() -> int:
    """Return the bytes sent over the loopback interface since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))

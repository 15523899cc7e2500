"""Scaling with towers and processes, measured side by side, and a prediction for more GPUs."""

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, log
from benchmarks.opened_step import OpenedStep, TurnFlags, pairs_of_one_length, towers_of_machine
from benchmarks.processes import Worker, ask_all, spread
from benchmarks.ring import LINKS, exposed_seconds, plan, ring_bytes
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace, setting
from chatbot.quiet import import_tensorflow
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import choose_gpus, open_towers
from chatbot.training.machines.cluster import WORKER, Cluster, free_addresses

# Steps before the measurement, which trace the graph and touch the memory.
WARM_UP_STEPS = 2
EXCHANGE = "exchange"  # a request to a worker
START_SECONDS = 60.0  # for a process to start


@dataclasses.dataclass(frozen=True)
class ScalingBenchmark(TurnFlags):
    """The flags of python -m benchmarks scaling."""

    num_layers: int = setting(1, "layers of each side", group="model", least=1)
    batch_size: int = setting(256, "pairs in a step of towers, and in a step of one process", least=2)
    steps: int = setting(3, "steps in a turn", group="measuring", least=1)
    towers: int = setting(4, "measure 1, 2, 4, ... towers up to this number; 0: none", least=0)
    processes: bool = setting(True, "measure 1 and 2 processes, each pinned to a core")
    plan: bool = setting(False, "predict the speed-up of 2 to 1,024 GPUs from the measured step", group="plan")
    link: str | None = setting(None, "the slowest link between the GPUs; default: all", choices=tuple(LINKS))
    step_ms: float | None = setting(None, "milliseconds of a step of one GPU, if measured elsewhere", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.towers > self.batch_size:
            raise UserError(
                f"--towers {self.towers}: more than the {self.batch_size} pairs of a step; give a larger --batch-size"
            )

    @property
    def settings(self) -> Settings:
        """The settings of the model, with the learning rate of all measurements."""
        return replace(super().settings, learning_rate=0.001)

    @property
    def tower_numbers(self) -> list[int]:
        """The measured numbers of towers: the powers of two up to --towers."""
        return [2**i for i in range(self.towers.bit_length())]


def measure(flags: ScalingBenchmark) -> dict[str, Any]:
    """Measure the towers and the processes, and plan."""
    results: dict[str, Any] = {}
    if flags.towers:
        results["towers"] = _measure_towers(flags)
    if flags.processes:
        results |= _measure_processes(flags)
    if flags.plan:
        step = flags.step_ms / 1e3 if flags.step_ms else results.get("step_s")
        if step is None:
            raise UserError("--plan: no step was measured; leave out --no-processes, or give --step-ms")
        results["plan"] = plan(step, *_gradient_bytes(flags), [flags.link] if flags.link else [*LINKS])
    return results


def _measure_towers(flags: ScalingBenchmark) -> list[dict[str, Any]]:
    """Return a row for each number of towers, all with the same global batch."""
    gpus = len(choose_gpus(None, None, find_gpus()))
    with Worker(_towers_worker, flags, gpus) as worker:
        rounds = [worker.ask() for _ in range(flags.rounds)]
    rows = [_row(turns) for turns in zip(*rounds, strict=True)]
    for row in rows:
        row["speed_up"] = rows[0]["step_s"]["median"] / row["step_s"]["median"]
        row["efficiency"] = row["speed_up"] / tower_devices(row["number"], gpus)
        log(str(row))
    return rows


def tower_devices(towers: int, gpus: int) -> int:
    """Return the number of devices of the towers: a GPU for each, or one device without GPUs or with a single GPU."""
    return min(towers, gpus) if gpus > 1 else 1


def _towers_worker(flags: ScalingBenchmark, gpus: int) -> Callable[[], list[dict[str, float]]]:
    towers = towers_of_machine(None if gpus > 1 else flags.tower_numbers[-1])
    numbers = [number for number in flags.tower_numbers if number <= len(towers)]
    turns = [_turn(flags, towers[:number]) for number in numbers]
    return lambda: [turn() for turn in turns]


def _turn(flags: ScalingBenchmark, towers: Sequence[Any], team: Any = None) -> Callable[[], dict[str, float]]:
    """Return a function that trains for one turn and returns its row. The global batch grows with the machines only."""
    pairs = pairs_of_one_length(flags.settings, flags.vocabulary_size, 4 * flags.batch_size)
    opened = OpenedStep(flags.settings, pairs, flags.vocabulary_size, towers, team=team)
    opened.turn(WARM_UP_STEPS)
    names = ("step_s", "examples_per_s", "target_tokens_per_s", "input_wait")

    def turn() -> dict[str, float]:
        record = opened.turn(flags.steps)
        return {"number": len(record["tower_losses"]), **{name: record[name] for name in names}}

    return turn


def _measure_processes(flags: ScalingBenchmark) -> dict[str, Any]:
    """Measure one process on one core, two with an exchange of gradients, and two without: the machine's limit."""
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("scaling: two processes need two cores and this machine has one; add --no-processes")
    addresses = tuple(free_addresses(2))
    turns: dict[str, list[dict[str, float]]] = {"one": [], "two": [], "two without an exchange": []}
    exchanges, sent = [], []
    with contextlib.ExitStack() as stack:
        alone = [stack.enter_context(Worker(_process_worker, flags, core, None)) for core in (0, 1)]
        clusters = [Cluster(addresses, WORKER, core) for core in (0, 1)]
        pair = [stack.enter_context(Worker(_process_worker, flags, core, clusters[core])) for core in (0, 1)]
        for workers in (alone, pair):
            ask_all(workers)  # waits until all of them are ready
        for number in range(flags.rounds):
            turns["one"] += ask_all(alone[:1])
            turns["two without an exchange"].append(joined(ask_all(alone)))
            before = _loopback_bytes()
            turns["two"].append(joined(ask_all(pair)))
            sent.append((_loopback_bytes() - before) / flags.steps / 2)
            exchanges.append(max(ask_all(pair, EXCHANGE)))
            log(f"round {number + 1}: {', '.join(f'{name} {row[-1]}' for name, row in turns.items())}")
    rows: dict[str, dict[str, Any]] = {name: _row(of_name) for name, of_name in turns.items()}
    rates = {name: [row["target_tokens_per_s"] for row in of_name] for name, of_name in turns.items()}
    for name, row in rows.items():
        row["speed_up"] = statistics.median(rates[name]) / statistics.median(rates["one"])
        row["efficiency"] = row["speed_up"] / row["number"]
    size, last = _gradient_bytes(flags)
    exchange, busy = (statistics.median(times) for times in zip(*exchanges, strict=True))
    step, step_of_two = (rows[name]["step_s"]["median"] for name in ("one", "two without an exchange"))
    # On one core, only the part of an exchange that waits can overlap with the computation.
    exposed = min(exchange, max(busy, exposed_seconds(step, exchange * (1 - last / size), exchange * last / size)))
    return {
        "processes": rows,
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


def _process_worker(flags: ScalingBenchmark, core: int, cluster: Cluster | None) -> Callable[..., Any]:
    """Train in a process pinned to a core. EXCHANGE sums gradients of the same size, without any training."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    towers = open_towers([], None)
    import tensorflow as tf

    from chatbot.training.machines.meeting import meet
    from chatbot.training.machines.peers import Peers
    from chatbot.training.machines.team import join

    if cluster is None:
        return _turn(flags, towers)
    meet(cluster, {}, START_SECONDS)
    team = join(cluster, Peers(cluster.others, lambda name: None), towers)
    turn = _turn(flags, towers, team)
    zeros = [tf.zeros(variable.shape) for variable in _model(flags).trainable_variables]
    exchange = tf.function(lambda: team.exchange([zeros]))
    exchange()

    def exchange_seconds() -> tuple[float, float]:
        """Return the time of an exchange, and the processor time of this process meanwhile."""
        began, busy = time.perf_counter(), time.process_time()
        exchange()
        return time.perf_counter() - began, time.process_time() - busy

    return lambda request=None: exchange_seconds() if request == EXCHANGE else turn()


def _model(flags: ScalingBenchmark) -> Any:
    import_tensorflow()
    from chatbot.model.new_model import built_model

    return built_model(flags.settings.model, flags.vocabulary_size, flags.settings.learning.seed)


def _gradient_bytes(flags: ScalingBenchmark) -> tuple[int, int]:
    """Return the bytes of all gradients, and of the encoder's, the last stage of the backward pass.

    The embedding counts as a part of the projection, the first stage; the lookup's gradient of it is not counted again.
    """
    model = _model(flags)
    whole, encoder = (
        4 * sum(variable.shape.num_elements() for variable in part.trainable_variables)
        for part in (model, model.encoder)
    )
    return whole, encoder


def joined(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the rows of several processes: the sum of their rates and the time of the slowest step.

    Each process of a team, which counts the towers of all of them, reports the rates of the whole team.
    """
    parts = len(results) if results[0]["number"] > 1 else 1
    rates = ("examples_per_s", "target_tokens_per_s")
    row = {name: sum(result[name] for result in results) / parts for name in rates}
    return {
        "number": len(results),
        **row,
        **{n: max(result[n] for result in results) for n in ("step_s", "input_wait")},
    }


def _row(turns: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    spreads = {name: spread([turn[name] for turn in turns]) for name in turns[0] if name != "number"}
    return {"number": int(turns[0]["number"]), **spreads}


def _loopback_bytes() -> int:
    """Return the bytes sent over the loopback interface since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


scaling_benchmark = Benchmark(
    "scaling",
    ScalingBenchmark,
    "Measure how training scales with towers and processes on this machine, and predict it for more GPUs.",
    measure,
)

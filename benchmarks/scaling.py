"""Measures how training speed scales with the number of towers (model replicas) and processes."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.benchmark import Benchmark, log
from benchmarks.opened_step import OpenedStep, TurnFlags, pairs_of_one_length, towers_of_machine
from benchmarks.processes import Worker, ask_all, spread
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace, setting
from chatbot.training.devices.towers import choose_gpus, open_towers
from chatbot.training.machines.cluster import WORKER, Cluster, free_addresses

# Number of steps before a measurement starts. They are slow because TensorFlow traces graphs and allocates memory.
WARM_UP_STEPS = 2
START_SECONDS = 600.0  # timeout for the start of a process


@dataclasses.dataclass(frozen=True)
class ScalingBenchmark(TurnFlags):
    """The flags of `python -m benchmarks scaling`."""

    num_layers: int = setting(1, "number of layers in the encoder and in the decoder", group="model", minimum=1)
    batch_size: int = setting(256, "number of pairs per step, over all towers or in one process", minimum=2)
    steps: int = setting(3, "number of training steps per turn", group="measuring", minimum=1)
    towers: int = setting(4, "measure 1, 2, 4, ... towers, up to this number; 0 skips these measurements", minimum=0)
    processes: bool = setting(True, "measure 1 and 2 processes, each pinned to a core")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.towers > self.batch_size:
            raise UserError(
                f"--towers {self.towers}: more than the {self.batch_size} pairs of a step; give a larger --batch-size"
            )

    @property
    def settings(self) -> Settings:
        """The settings of the model, with the same learning rate for all measurements."""
        return replace(super().settings, learning_rate=0.001)

    @property
    def tower_numbers(self) -> list[int]:
        """The numbers of towers to measure: the powers of two up to --towers."""
        return [2**i for i in range(self.towers.bit_length())]


def measure(flags: ScalingBenchmark) -> dict[str, Any]:
    """Measure the scaling with towers and with processes."""
    results: dict[str, Any] = {}
    if flags.towers:
        results["towers"] = _measure_towers(flags)
    if flags.processes:
        results["processes"] = _measure_processes(flags)
    return results


def _measure_towers(flags: ScalingBenchmark) -> list[dict[str, Any]]:
    """Return a row for each number of towers, all with the same global batch size."""
    gpus = len(choose_gpus())
    with Worker(_towers_worker, flags, gpus) as worker:
        rounds = [worker.ask() for _ in range(flags.rounds)]
    rows = [_row(turns) for turns in zip(*rounds, strict=True)]
    for row in rows:
        row["speed_up"] = rows[0]["step_s"]["median"] / row["step_s"]["median"]
        row["efficiency"] = row["speed_up"] / tower_devices(row["number"], gpus)
        log(str(row))
    return rows


def tower_devices(towers: int, gpus: int) -> int:
    """Return the number of devices that the towers use: one per tower if there are several GPUs, otherwise one."""
    return min(towers, gpus) if gpus > 1 else 1


def _towers_worker(flags: ScalingBenchmark, gpus: int) -> Callable[[], list[dict[str, float]]]:
    towers = towers_of_machine(None if gpus > 1 else flags.tower_numbers[-1])
    numbers = [number for number in flags.tower_numbers if number <= len(towers)]
    turns = [_turn(flags, towers[:number]) for number in numbers]
    return lambda: [turn() for turn in turns]


def _turn(flags: ScalingBenchmark, towers: Sequence[Any], team: Any = None) -> Callable[[], dict[str, float]]:
    """Return a function that trains for some steps and returns the results as a table row.

    With several machines, each machine uses the batch size of the flags.
    """
    pairs = pairs_of_one_length(flags.settings, flags.vocabulary_size, 4 * flags.batch_size)
    opened = OpenedStep(flags.settings, pairs, flags.vocabulary_size, towers, team=team)
    opened.turn(WARM_UP_STEPS)
    names = ("step_s", "examples_per_s", "target_tokens_per_s", "input_wait")

    def turn() -> dict[str, float]:
        record = opened.turn(flags.steps)
        return {"number": len(record["tower_losses"]), **{name: record[name] for name in names}}

    return turn


def _measure_processes(flags: ScalingBenchmark) -> dict[str, dict[str, Any]]:
    """Measure one process, two processes that exchange gradients, and two independent processes.

    Each process runs on one core. The speed of the independent processes is an upper bound for the others.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("scaling: two processes need two cores, but this machine has one; add --no-processes")
    addresses = tuple(free_addresses(2))
    turns: dict[str, list[dict[str, float]]] = {"one": [], "two": [], "two without an exchange": []}
    with contextlib.ExitStack() as stack:
        alone = [stack.enter_context(Worker(_process_worker, flags, core, None)) for core in (0, 1)]
        clusters = [Cluster(addresses, WORKER, core) for core in (0, 1)]
        pair = [stack.enter_context(Worker(_process_worker, flags, core, clusters[core])) for core in (0, 1)]
        for workers in (alone, pair):
            ask_all(workers)  # waits until all workers are ready
        for number in range(flags.rounds):
            turns["one"] += ask_all(alone[:1])
            turns["two without an exchange"].append(join_rows(ask_all(alone)))
            turns["two"].append(join_rows(ask_all(pair)))
            log(f"round {number + 1}: {', '.join(f'{name} {row[-1]}' for name, row in turns.items())}")
    rows: dict[str, dict[str, Any]] = {name: _row(results) for name, results in turns.items()}
    for row in rows.values():
        row["speed_up"] = row["target_tokens_per_s"]["median"] / rows["one"]["target_tokens_per_s"]["median"]
        row["efficiency"] = row["speed_up"] / row["number"]
    return rows


def _process_worker(flags: ScalingBenchmark, core: int, cluster: Cluster | None) -> Callable[[], dict[str, float]]:
    """Pin this process to a core, and return a function that trains for some steps; see `_turn`."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    towers = open_towers([], None)
    from chatbot.training.machines.meeting import meet
    from chatbot.training.machines.peers import Peers
    from chatbot.training.machines.team import join

    if cluster is None:
        return _turn(flags, towers)
    meet(cluster, {}, START_SECONDS)
    return _turn(flags, towers, join(cluster, Peers(cluster.others, lambda name: None), towers))


def join_rows(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the results of several processes into one row.

    Speeds are added, and times are those of the slowest process. The results of processes that train together are not
    added, because each of them reports the speed of all.
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


BENCHMARK = Benchmark(
    "scaling",
    ScalingBenchmark,
    "Measure how training scales with towers and processes on this machine.",
    measure,
)

"""Scaling with towers and processes, measured side by side."""

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
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import choose_gpus, open_towers
from chatbot.training.machines.cluster import WORKER, Cluster, free_addresses

# Steps before the measurement, which trace the graph and touch the memory.
WARM_UP_STEPS = 2
START_SECONDS = 600.0  # for a process to start; it only ends what hangs


@dataclasses.dataclass(frozen=True)
class ScalingBenchmark(TurnFlags):
    """The flags of python -m benchmarks scaling."""

    num_layers: int = setting(1, "layers of each side", group="model", least=1)
    batch_size: int = setting(256, "pairs in a step of towers, and in a step of one process", least=2)
    steps: int = setting(3, "steps in a turn", group="measuring", least=1)
    towers: int = setting(4, "measure 1, 2, 4, ... towers up to this number; 0: none", least=0)
    processes: bool = setting(True, "measure 1 and 2 processes, each pinned to a core")

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
    """Measure the towers and the processes."""
    results: dict[str, Any] = {}
    if flags.towers:
        results["towers"] = _measure_towers(flags)
    if flags.processes:
        results["processes"] = _measure_processes(flags)
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


def _measure_processes(flags: ScalingBenchmark) -> dict[str, dict[str, Any]]:
    """Measure one process on one core, two with an exchange of gradients, and two without: the machine's limit."""
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("scaling: two processes need two cores and this machine has one; add --no-processes")
    addresses = tuple(free_addresses(2))
    turns: dict[str, list[dict[str, float]]] = {"one": [], "two": [], "two without an exchange": []}
    with contextlib.ExitStack() as stack:
        alone = [stack.enter_context(Worker(_process_worker, flags, core, None)) for core in (0, 1)]
        clusters = [Cluster(addresses, WORKER, core) for core in (0, 1)]
        pair = [stack.enter_context(Worker(_process_worker, flags, core, clusters[core])) for core in (0, 1)]
        for workers in (alone, pair):
            ask_all(workers)  # waits until all of them are ready
        for number in range(flags.rounds):
            turns["one"] += ask_all(alone[:1])
            turns["two without an exchange"].append(joined(ask_all(alone)))
            turns["two"].append(joined(ask_all(pair)))
            log(f"round {number + 1}: {', '.join(f'{name} {row[-1]}' for name, row in turns.items())}")
    rows: dict[str, dict[str, Any]] = {name: _row(of_name) for name, of_name in turns.items()}
    for row in rows.values():
        row["speed_up"] = row["target_tokens_per_s"]["median"] / rows["one"]["target_tokens_per_s"]["median"]
        row["efficiency"] = row["speed_up"] / row["number"]
    return rows


def _process_worker(flags: ScalingBenchmark, core: int, cluster: Cluster | None) -> Callable[[], dict[str, float]]:
    """Train in a process pinned to a core."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    towers = open_towers([], None)
    from chatbot.training.machines.meeting import meet
    from chatbot.training.machines.peers import Peers
    from chatbot.training.machines.team import join

    if cluster is None:
        return _turn(flags, towers)
    meet(cluster, {}, START_SECONDS)
    return _turn(flags, towers, join(cluster, Peers(cluster.others, lambda name: None), towers))


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


scaling_benchmark = Benchmark(
    "scaling",
    ScalingBenchmark,
    "Measure how training scales with towers and processes on this machine.",
    measure,
)

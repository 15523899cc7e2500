"""What more towers and more processes are worth, measured side by side; and a plan for machines not at hand."""

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.apart import Apart, together
from benchmarks.ring import LINKS, plan, ring_bytes
from chatbot.config.training import Settings
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import check_fields, compose, parse_flags, setting
from chatbot.quiet import import_tensorflow
from chatbot.training.devices import choose_gpus, find_gpus, open_towers
from chatbot.training.machines.cluster import WORKER, Cluster, free_addresses

TOWERS = (1, 2, 4)
# Steps before anything is timed: tracing, and the first touch of memory.
WARM_UP = 2
EXCHANGE = "exchange"


@dataclasses.dataclass(frozen=True)
class ScalingBenchmark:
    """What python -m benchmarks scaling is told."""

    rnn_size: int = setting(512, "model", "units of each recurrent layer", kind=int, least=2)
    embedding_size: int = setting(256, "model", "units of a token's embedding", kind=int, least=1)
    vocabulary_size: int = setting(16_000, "model", "tokens", kind=int, least=len(SPECIALS) + 1)
    max_length: int = setting(20, "model", "tokens of every question and reply", kind=int, least=2)
    batch_size: int = setting(
        256, "model", "pairs in a step of towers, and in a step of one process", kind=int, least=4
    )
    rounds: int = setting(
        5, "measuring", "rounds, whose median counts; in each every row has its turn", kind=int, least=1
    )
    steps: int = setting(3, "measuring", "steps in a turn", kind=int, least=1)
    towers: bool = setting(True, "measuring", "measure 1, 2 and 4 towers", kind=bool)
    processes: bool = setting(True, "measuring", "measure 1 and 2 processes, each pinned to a core", kind=bool)
    plan: bool = setting(False, "plan", "predict the speed-up of 2 to 1,024 GPUs from the measured step", kind=bool)
    link: str | None = setting(None, "plan", "the slowest link between them; default: all", choices=tuple(LINKS))
    step_ms: float | None = setting(
        None, "plan", "milliseconds of a step of one GPU, where that was measured elsewhere", kind=float, above=0
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def settings(self) -> Settings:
        """Of the model that is trained."""
        return compose(
            Settings,
            rnn_size=self.rnn_size,
            embedding_size=self.embedding_size,
            max_length=self.max_length,
            batch_size=self.batch_size,
        )

    def pairs(self) -> EncodedPairs:
        """Pairs of one length, so that all batches have one shape and all tokens are real."""
        rng, count = np.random.default_rng(1), 4 * self.batch_size
        rows = rng.integers(len(SPECIALS), self.vocabulary_size, (2, count, self.max_length)).tolist()
        sources, targets = Ragged.from_rows(rows[0]), Ragged.from_rows([row[:-1] for row in rows[1]])
        return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def scaling_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print tables and a verdict, and as the last line one JSON object."""
    about = "Measure what more towers and more processes are worth on this machine, and plan for larger ones."
    told = ScalingBenchmark(**parse_flags(ScalingBenchmark, "-m benchmarks scaling", about, arguments))
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(told)}
    verdicts = []
    if told.towers:
        _say("Towers ...")
        found["towers"] = _measured_towers(told)
        most = found["towers"][-1]
        verdicts.append(f"a step of {most['number']:.0f} towers takes {most['relative_step']:.2f} times that of 1")
    if told.processes:
        _say("Processes ...")
        found |= _measured_processes(told)
        verdicts.append(
            f"2 processes train {found['processes'][-1]['speed_up']:.2f} times the tokens of 1, where "
            f"{found['limit']:.2f} is this machine's limit and {found['predicted_speed_up']:.2f} was predicted"
        )
    if told.plan:
        step = told.step_ms / 1e3 if told.step_ms else found.get("step_s")
        if step is None:
            raise UserError("--plan: no step was measured; leave out --no-processes, or give --step-ms")
        links = [LINKS[told.link]] if told.link else list(LINKS.values())
        found["plan"] = plan(step, _gradient_bytes(told), links)
    found["verdict"] = "; ".join(verdicts)
    print(f"Verdict: {found['verdict'] or 'nothing was measured'}.")
    print(json.dumps(_rounded(found)))
    return 0


def _measured_towers(told: ScalingBenchmark) -> list[dict[str, float]]:
    """Rows for 1, 2 and 4 towers that share the same batches."""
    with Apart(_towers, told) as process:
        rounds = [together([process])[0] for _ in range(told.rounds)]
    rows = [_median(turns) for turns in zip(*rounds, strict=True)]
    for row in rows:
        row["relative_step"] = row["step_s"] / rows[0]["step_s"]
        # On CPUs the towers share the cores that one tower has alone.
        row["speed_up"] = rows[0]["step_s"] / row["step_s"]
    _print_table("towers", rows)
    return rows


def _towers(told: ScalingBenchmark) -> Callable[[str], list[dict[str, float]]]:
    gpus = choose_gpus(None, None, find_gpus())
    towers = open_towers(gpus, max(TOWERS) if len(gpus) < 2 else None)
    from chatbot.training.variable_update.choose import open_update

    turns = [
        _turns(told, lambda model, n=n: open_update(model, told.settings, towers[:n]))
        for n in TOWERS
        if n <= len(towers)
    ]
    return lambda _: [turn() for turn in turns]


def _turns(
    told: ScalingBenchmark, open_step: Callable[..., Any], machine: int = 0, machines: int = 1
) -> Callable[[], dict[str, float]]:
    """What trains for a turn and says how that went. The batch grows with the machines, not with the towers."""
    from chatbot.corpus.batching.batches import Batches
    from chatbot.model.seq2seq import built_model
    from chatbot.training.window import Window

    step = open_step(built_model(told.settings.model, told.vocabulary_size, told.settings.learning.seed))
    step.scatter_state(step.gather_state())
    batches = Batches([told.pairs()], told.batch_size * machines, seed=1)
    window = Window(batches.prefetched(0, step.num_shares, machine, machines))

    def turn(steps: int = told.steps) -> dict[str, float]:
        window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            step(window.next_shares(), 0, 1e-3)
        record = window.record(0, 1e-3, step.finished_steps())
        seconds = (time.perf_counter() - began) / steps
        names = ("examples_per_s", "target_tokens_per_s", "input_wait")
        return {"number": len(record["tower_losses"]), "step_s": seconds, **{name: record[name] for name in names}}

    turn(WARM_UP)
    return turn


def _measured_processes(told: ScalingBenchmark) -> dict[str, Any]:
    """One process on one core; two that meet; and, as the machine's own limit, two that do not."""
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("scaling: two processes need two cores, and there is one; give --no-processes")
    addresses = tuple(free_addresses(2))
    one: list[dict[str, float]] = []
    two, apart = [], []
    exchanges, sent = [], []
    with contextlib.ExitStack() as stack:
        alone = [stack.enter_context(Apart(_process, told, core, None)) for core in (0, 1)]
        pair = [stack.enter_context(Apart(_process, told, core, Cluster(addresses, WORKER, core))) for core in (0, 1)]
        for every in (alone, pair):
            together(every)  # until all of them are ready
        for _ in range(told.rounds):
            one += together(alone[:1])
            apart.append(_joined(together(alone)))
            before = _loopback_bytes()
            two.append(_joined(together(pair)))
            sent.append((_loopback_bytes() - before) / told.steps / 2)
            exchanges.append(max(together(pair, EXCHANGE)))
    rows = [_median(some) for some in (one, two, apart)]
    for row in rows:
        row["speed_up"] = row["target_tokens_per_s"] / rows[0]["target_tokens_per_s"]
        row["efficiency"] = row["speed_up"] / row["number"]
    _print_table("processes", rows[:2])
    size, exchange = _gradient_bytes(told), statistics.median(exchanges)
    found = {
        "processes": rows[:2],
        "limit": rows[2]["speed_up"],
        "step_s": rows[0]["step_s"],
        "gradient_bytes": size,
        "least_bytes": ring_bytes(size, 2),
        "sent_bytes": statistics.median(sent),
        "exchange_s": exchange,
        "predicted_speed_up": 2 * rows[0]["step_s"] / (rows[2]["step_s"] + exchange),
    }
    print(
        f"Two processes that do not meet: {found['limit']:.2f} times one, the machine's own limit.\n"
        f"Each process sends {found['sent_bytes'] / 1e6:.1f} MB a step over loopback; the least a ring can do is "
        f"{found['least_bytes'] / 1e6:.1f} MB.\n"
        "Gradients are dense. The embedding is also the projection, so the softmax gives every row of it a gradient, "
        "and slices would be more.\n"
        f"An exchange by itself takes {exchange * 1e3:.0f} ms, so the speed-up is predicted to be "
        f"{found['predicted_speed_up']:.2f}."
    )
    return found


def _process(told: ScalingBenchmark, core: int, cluster: Cluster | None) -> Callable[[str], Any]:
    """Trains in this process, pinned to a core; asked for an exchange, it sums as many bytes and does nothing else."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    towers = open_towers([], None)
    import tensorflow as tf

    from chatbot.training.machines.ring import join
    from chatbot.training.machines.team import ALONE
    from chatbot.training.machines.watch import Watch
    from chatbot.training.variable_update.choose import open_update

    team = ALONE
    if cluster is not None:
        watch = Watch(cluster.others, limit=600)
        watch.start()
        team = join(cluster, watch)
    turn = _turns(told, lambda model: open_update(model, told.settings, towers, team), team.machine, team.machines)
    if cluster is None:
        return lambda _: turn()
    nothing = [tf.zeros(shape) for shape in _shapes(told)]
    exchange = tf.function(lambda: team.exchange([nothing]))
    exchange()

    def timed_exchange() -> float:
        began = time.perf_counter()
        exchange()
        return time.perf_counter() - began

    return lambda question: timed_exchange() if question == EXCHANGE else turn()


def _shapes(told: ScalingBenchmark) -> list[tuple[int, ...]]:
    """Of all weights."""
    import_tensorflow()
    from chatbot.model.seq2seq import built_model

    model = built_model(told.settings.model, told.vocabulary_size, told.settings.learning.seed)
    return [tuple(variable.shape) for variable in model.trainable_variables]


def _gradient_bytes(told: ScalingBenchmark) -> int:
    return 4 * sum(int(np.prod(shape)) for shape in _shapes(told))


def _joined(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Several processes as one row: their examples and tokens add up; the slowest step counts."""
    row = {name: sum(result[name] for result in results) for name in ("examples_per_s", "target_tokens_per_s")}
    if results[0]["number"] > 1:  # each of a team reports what all of them did
        row = {name: value / len(results) for name, value in row.items()}
    slowest = {name: max(result[name] for result in results) for name in ("step_s", "input_wait")}
    return {"number": len(results), **slowest, **row}


def _median(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _print_table(what: str, rows: Sequence[dict[str, float]]) -> None:
    print(f"{what:>9}  ms a step  examples/s  target tokens/s  speed-up  efficiency  input wait")
    for row in rows:
        row.setdefault("efficiency", row["speed_up"])
        print(
            f"{row['number']:9.0f}  {1e3 * row['step_s']:9.0f}  {row['examples_per_s']:10.0f}  "
            f"{row['target_tokens_per_s']:15,.0f}  {row['speed_up']:8.2f}  {row['efficiency']:10.0%}  "
            f"{row['input_wait']:10.1%}"
        )


def _loopback_bytes() -> int:
    """What has been sent over loopback since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, 4) if isinstance(value, float) else value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

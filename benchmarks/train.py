"""Training speed of this project in each precision, in turns, and where the time of a step goes."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.benchmark import Benchmark
from benchmarks.opened_step import OpenedStep, TurnFlags, plain
from benchmarks.processes import Worker, in_turns
from benchmarks.tokenised import TokenisedPairs, read_tokenised
from chatbot.config.training import Settings
from chatbot.flags import setting
from chatbot.training.devices.towers import open_towers

FLOAT32, BFLOAT16 = "float32", "bfloat16"
# Batches over which the parts of a step are averaged.
PROFILED_BATCHES = 6
PROFILE = "profile"  # a request to the worker


@dataclasses.dataclass(frozen=True)
class TrainBenchmark(TurnFlags):
    """The flags of python -m benchmarks train."""

    data: str = setting(..., "question-answer pairs, such as LCCC's", group="data", metavar="FILE")

    @property
    def settings(self) -> Settings:
        """The settings of the model, as in the systems of `compare`."""
        return plain(super().settings)


def measure(flags: TrainBenchmark) -> dict[str, Any]:
    """Measure both precisions, and then the parts of a step in the faster one."""
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    results: dict[str, Any] = {"pairs": len(pairs.pairs), "vocabulary": pairs.size}
    with (
        Worker(training_worker, flags.settings, flags.steps, pairs, FLOAT32) as float32,
        Worker(training_worker, flags.settings, flags.steps, pairs, BFLOAT16) as bfloat16,
    ):
        workers = {FLOAT32: float32, BFLOAT16: bfloat16}
        rates = in_turns({name: worker.ask for name, worker in workers.items()}, flags.rounds)
        best = max(rates, key=lambda name: rates[name]["median"])
        return {**results, "target_tokens_per_s": rates, "precision": best, **workers[best].ask(PROFILE)}


def training_worker(settings: Settings, steps: int, pairs: TokenisedPairs, precision: str) -> Callable[..., Any]:
    """Train as train.py does. A request trains for one turn and gives its rate; PROFILE gives the parts of a step."""
    towers = open_towers([], None)
    opened = OpenedStep(settings, pairs.encoded(), pairs.size, towers, precision)
    opened.turn(opened.batches.steps_per_epoch)  # traces every shape and touches the memory

    def answer(request: str = "") -> Any:
        if request == PROFILE:
            return profile(opened, settings, pairs.size, steps, precision)
        return opened.turn(steps)["target_tokens_per_s"]

    return answer


def profile(opened: OpenedStep, settings: Settings, vocabulary: int, steps: int, precision: str) -> dict[str, Any]:
    """Measure the time of a step, of its parts and of their products: means over the same batches.

    of_limit: the time that the products need alone, over that of the step. The rest is overhead, below 0 where parts
    overlap in the step.
    """
    from benchmarks.limit import seconds_of_parts, seconds_of_products, seconds_of_update

    update, window, rate = opened.update, opened.window, settings.learning.learning_rate
    profiled = [window.next_batch() for _ in range(PROFILED_BATCHES)]
    shares = [update.preparation.tensors(update.preparation.copied(batch)[0][0]) for batch in profiled]
    parts = _means([seconds_of_parts(opened.model, share) for share in shares])
    products = _means([seconds_of_products(settings, vocabulary, b.batch.shares[0], precision) for b in profiled])
    times = []
    for batch in profiled * 2:
        began = time.perf_counter()
        update(batch, rate)
        update.finished_steps()
        times.append(time.perf_counter() - began)
    whole = statistics.mean(times[PROFILED_BATCHES:])
    parts["optimizer"] = seconds_of_update(opened.model, settings)
    parts["input"] = opened.turn(steps)["input_wait"] * whole
    parts["overhead"] = whole - sum(parts.values())
    rows = {
        name: {"seconds": seconds, "share": seconds / whole, "products_s": products.get(name)}
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
    }
    return {"step_s": whole, "of_limit": sum(products.values()) / whole, "parts": rows}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(row[name] for row in rows) for name in rows[0]}


train_benchmark = Benchmark(
    "train", TrainBenchmark, "Measure training speed on this machine, and where the time of a step goes.", measure
)

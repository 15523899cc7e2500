"""Training speed of this project in each precision, in turns, and where the time of a step goes."""

import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.model_flags import ModelFlags
from benchmarks.report import log, print_json
from benchmarks.tokenised import TokenisedPairs, read_tokenised
from benchmarks.worker import Worker, ask_all
from chatbot.command_line import CommandLine
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.flags import replace, setting
from chatbot.training.devices.towers import open_towers

FLOAT32, BFLOAT16 = "float32", "bfloat16"
# Batches over which the parts of a step are averaged.
PROFILED_BATCHES = 6
PROFILE = "profile"  # a request to the worker


@dataclasses.dataclass(frozen=True)
class TrainBenchmark(ModelFlags):
    """The flags of python -m benchmarks train."""

    data: str = setting(..., "question-answer pairs, such as LCCC's", group="data", metavar="FILE")
    num_layers: int = setting(2, "recurrent layers of each side", group="model", least=1)

    @property
    def settings(self) -> Settings:
        """The settings of the model: one direction and no dropout, as in the systems of `compare`."""
        return replace(
            super().settings, num_layers=self.num_layers, bidirectional=False, keep_prob=1.0, learning_rate=0.001
        )


def train_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print tables and a verdict, and as the last line one JSON object."""
    about = "Measure training speed on this machine, and where the time of a step goes."
    flags = CommandLine(TrainBenchmark, "benchmarks train", about).parse(arguments)
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    results: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(flags)}
    results |= {"pairs": len(pairs.pairs), "vocabulary": len(pairs.vocabulary) + len(SPECIALS)}
    with (
        Worker(training_worker, flags, pairs, FLOAT32) as float32,
        Worker(training_worker, flags, pairs, BFLOAT16) as bfloat16,
    ):
        systems = {FLOAT32: lambda: ask_all([float32])[0], BFLOAT16: lambda: ask_all([bfloat16])[0]}
        rates = measure_in_turns(systems, flags.rounds)
        results["target_tokens_per_s"] = {name: statistics.median(values) for name, values in rates.items()}
        best = max(systems, key=lambda name: results["target_tokens_per_s"][name])
        results["precision"] = best
        results |= ask_all([float32 if best == FLOAT32 else bfloat16], PROFILE)[0]
    print_rates(rates)
    print(
        f"Verdict: {results['target_tokens_per_s'][best]:,.0f} target tokens/s in {best}; {results['of_limit']:.0%} of "
        "the limit that the matrix products alone set."
    )
    print_json(results)
    return 0


def measure_in_turns(systems: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure every system once in each round. Returns the rates by system, in order of the rounds."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, measure in systems.items():
            rates[name].append(measure())
            log(f"round {number + 1}, {name}: {rates[name][-1]:,.1f}")
    return rates


def print_rates(rates: dict[str, list[float]]) -> None:
    """Print the median rate of each system, and its lowest and highest."""
    print(f"{'system':>19}  target tokens/s  lowest and highest round")
    for name, values in rates.items():
        print(f"{name:>19}  {statistics.median(values):15,.0f}  {min(values):,.0f} to {max(values):,.0f}")


def training_worker(flags: TrainBenchmark, pairs: TokenisedPairs, precision: str) -> Callable[[str], Any]:
    """Train as train.py does. A request trains for one turn and gives its rate; PROFILE gives the parts of a step."""
    towers = open_towers([], None)
    from benchmarks.limit import products_of, seconds_of, seconds_of_parts, seconds_of_update, table
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.workers import prefetched
    from chatbot.model.new_model import built_model
    from chatbot.training.loop import Window
    from chatbot.training.update import open_update

    settings, vocabulary = flags.settings, len(pairs.vocabulary) + len(SPECIALS)
    model = built_model(settings.model, vocabulary, settings.learning.seed, precision)
    step = open_update(model, settings, towers)
    step.scatter_state(step.gather_state())
    batches = Batches([pairs.encoded()], settings.learning.batch_size, settings.learning.seed)
    window = Window(
        prefetched(zip(batches.from_step(0, step.num_shares), itertools.count()), step.prepare), step.begin_copies
    )

    def turn(steps: int) -> dict[str, float]:
        window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            step(window.next_batch(), settings.learning.learning_rate)
        record = window.record(0, settings.learning.learning_rate, step.finished_steps())
        return {**record, "step_s": (time.perf_counter() - began) / steps}

    def profile() -> dict[str, Any]:
        """Measure the time of a step, of its parts and of their products: means over the same batches."""
        parts: dict[str, float] = {}
        of_products: dict[str, float] = {}
        profiled = [window.next_batch() for _ in range(PROFILED_BATCHES)]
        for batch in profiled:
            for name, seconds in seconds_of_parts(
                model, step.preparation.tensors(step.preparation.copied(batch)[0][0])
            ).items():
                parts[name] = parts.get(name, 0.0) + seconds / PROFILED_BATCHES
            products = products_of(settings, vocabulary, batch.batch.shares[0])
            for name in {product.part for product in products}:
                alone = seconds_of([p for p in products if p.part == name], precision)
                of_products[name] = of_products.get(name, 0.0) + alone / PROFILED_BATCHES
        times = []
        for batch in profiled * 2:
            began = time.perf_counter()
            step(batch, settings.learning.learning_rate)
            step.finished_steps()
            times.append(time.perf_counter() - began)
        whole = statistics.mean(times[PROFILED_BATCHES:])
        parts["optimizer"] = seconds_of_update(model, settings)
        parts["input"] = turn(flags.steps)["input_wait"] * whole
        parts["overhead"] = whole - sum(parts.values())  # below 0 where parts overlap in the step
        rows = [
            (name, seconds, of_products.get(name, 0.0)) for name, seconds in sorted(parts.items(), key=lambda p: -p[1])
        ]
        print(f"A step in {precision}, {1e3 * whole:.1f} ms:\n{table(rows)}", flush=True)
        return {
            "step_s": whole,
            "limit_s": sum(of_products.values()),
            "of_limit": sum(of_products.values()) / whole,
            "parts_s": parts,
            "products_s": of_products,
        }

    turn(batches.steps_per_epoch)  # traces every shape and touches the memory
    return lambda request: profile() if request == PROFILE else turn(flags.steps)["target_tokens_per_s"]

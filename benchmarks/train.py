"""Measures the training speed of this project in each precision."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.benchmark import Benchmark
from benchmarks.opened_step import OpenedStep, TurnFlags, plain
from benchmarks.processes import Worker, in_turns
from benchmarks.tokenised import TokenisedPairs, read_tokenised
from chatbot.config.training import Settings
from chatbot.flags import setting
from chatbot.training.devices.towers import open_towers

FLOAT32 = "float32"
BFLOAT16 = "bfloat16"


@dataclasses.dataclass(frozen=True)
class TrainBenchmark(TurnFlags):
    """The flags of `python -m benchmarks train`."""

    data: str = setting(..., "file of question-answer pairs, such as the LCCC corpus", group="data", metavar="FILE")

    @property
    def settings(self) -> Settings:
        """The settings of the model, restricted to features that all systems in `compare` support."""
        return plain(super().settings)


def measure(flags: TrainBenchmark) -> dict[str, Any]:
    """Measure the training speed in both precisions, in alternation."""
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    with training_workers(flags, pairs) as workers:
        turns = in_turns({name: worker.ask for name, worker in workers.items()}, flags.rounds)
    sizes = {"pairs": len(pairs.pairs), "vocabulary": pairs.size}
    return {**sizes, "target_tokens_per_s": turns.rates, "not_measured": turns.failures}


@contextlib.contextmanager
def training_workers(flags: TrainBenchmark, pairs: TokenisedPairs) -> Iterator[dict[str, Worker]]:
    """Start a worker process for each precision, and yield the workers by precision."""
    with contextlib.ExitStack() as stack:
        yield {
            precision: stack.enter_context(Worker(training_worker, flags.settings, flags.steps, pairs, precision))
            for precision in (BFLOAT16, FLOAT32)
        }


def training_worker(settings: Settings, steps: int, pairs: TokenisedPairs, precision: str) -> Callable[[], float]:
    """Prepare training, and return a function that trains for `steps` steps and returns target tokens per second."""
    towers = open_towers([], None)
    opened = OpenedStep(settings, pairs.encoded(), pairs.size, towers, precision)
    opened.turn(opened.batches.steps_per_epoch)  # a warm-up, so that TensorFlow traces the graphs of all shapes
    return lambda: float(opened.turn(steps)["target_tokens_per_s"])


BENCHMARK = Benchmark("train", TrainBenchmark, "Measure training speed on this machine.", measure)

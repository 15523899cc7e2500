"""Training speed of this project in each precision, in turns."""

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
    """The flags of python -m benchmarks train."""

    data: str = setting(..., "question-answer pairs, such as LCCC's", group="data", metavar="FILE")

    @property
    def settings(self) -> Settings:
        """The settings of the model, as in the systems of `compare`."""
        return plain(super().settings)


def measure(flags: TrainBenchmark) -> dict[str, Any]:
    """Measure both precisions."""
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    with training_workers(flags, pairs) as workers:
        turns = in_turns({name: worker.ask for name, worker in workers.items()}, flags.rounds)
    sizes = {"pairs": len(pairs.pairs), "vocabulary": pairs.size}
    return {**sizes, "target_tokens_per_s": turns.rates, "not_measured": turns.failures}


@contextlib.contextmanager
def training_workers(flags: TrainBenchmark, pairs: TokenisedPairs) -> Iterator[dict[str, Worker]]:
    """Open a `training_worker` for each precision."""
    with contextlib.ExitStack() as stack:
        yield {
            precision: stack.enter_context(Worker(training_worker, flags.settings, flags.steps, pairs, precision))
            for precision in (BFLOAT16, FLOAT32)
        }


def training_worker(settings: Settings, steps: int, pairs: TokenisedPairs, precision: str) -> Callable[[], float]:
    """Train as train.py does. A request trains for one turn and gives its rate."""
    towers = open_towers([], None)
    opened = OpenedStep(settings, pairs.encoded(), pairs.size, towers, precision)
    opened.turn(opened.batches.steps_per_epoch)  # traces every shape and touches the memory
    return lambda: float(opened.turn(steps)["target_tokens_per_s"])


train_benchmark = Benchmark("train", TrainBenchmark, "Measure training speed on this machine.", measure)

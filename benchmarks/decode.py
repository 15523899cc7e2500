"""Measures how many replies per second a model generates, and how long a command takes to answer one question."""

import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Benchmark
from benchmarks.opened_step import OpenedStep
from benchmarks.processes import Worker, in_turns, output_of, python, run
from benchmarks.tokenised import TokenisedPairs, read_tokenised
from benchmarks.train import TrainBenchmark
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.flags import setting
from chatbot.training.devices.towers import open_towers

BEAM_SIZES = (5, 1)
BATCH_SIZES = (1, 64)
ATTEMPT = "cold"  # name of the attempt for timing chat.py


@dataclasses.dataclass(frozen=True)
class DecodeBenchmark(TrainBenchmark):
    """The flags of `python -m benchmarks decode`."""

    questions: int = setting(256, "number of questions per round", group="measuring", minimum=1)
    cold: bool = setting(True, "measure the total time of python chat.py QUESTION")


def measure(flags: DecodeBenchmark) -> dict[str, Any]:
    """Measure the replies per second of each search, and the time of a cold start."""
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    questions = dataclasses.replace(pairs, pairs=pairs.pairs[: flags.questions])
    results: dict[str, Any] = cold_start(flags) if flags.cold else {}
    with Worker(_replying_worker, flags, pairs, questions) as worker:
        searches = {f"beam {b}, batches of {n}": (b, n) for b in BEAM_SIZES for n in BATCH_SIZES}
        turns = {name: functools.partial(worker.ask, *search) for name, search in searches.items()}
        measured = in_turns(turns, flags.rounds)
    return {**results, "replies_per_s": measured.rates, "not_measured": measured.failures}


def cold_start(flags: DecodeBenchmark) -> dict[str, float]:
    """Return the median duration in seconds of importing TensorFlow and of running chat.py with a question."""
    sizes = ("rnn_size", "num_layers", "embedding_size", "vocabulary_size", "max_length")
    words = [word for name in sizes for word in (f"--{name.replace('_', '-')}", getattr(flags, name))]
    with tempfile.TemporaryDirectory() as folder:
        data = ["--data", Path(flags.data).resolve(), "--attempt", ATTEMPT, "--steps", 1]
        output_of(python(ROOT / "train.py", *data, *words), Path(folder))
        commands = {
            "import_s": python("-c", "import tensorflow"),
            "cold_reply_s": python(ROOT / "chat.py", "你好", "--attempt", ATTEMPT),
        }
        times = [[run(command, Path(folder)).seconds for command in commands.values()] for _ in range(flags.rounds)]
    seconds = {name: statistics.median(column) for name, column in zip(commands, zip(*times, strict=True), strict=True)}
    return {**seconds, "cold_ratio": seconds["cold_reply_s"] / seconds["import_s"]}


def _replying_worker(flags: DecodeBenchmark, pairs: TokenisedPairs, questions: TokenisedPairs) -> Callable[..., float]:
    """Train for --steps steps, and return a function that measures replies per second.

    The returned function replies in the same way as chat.py, with the given beam size and batch size.
    """
    towers = open_towers([], None)
    from chatbot.inference.replier import Replier
    from chatbot.inference.tensorflow_model import TensorFlowModel
    from chatbot.training.new_model import start_from_frequencies

    training = pairs.encoded()
    vocabulary = Vocabulary([*pairs.vocabulary, *BYTES])
    opened = OpenedStep(flags.settings, training, len(vocabulary), towers)
    start_from_frequencies(opened.model, [training])
    opened.turn(flags.steps)
    opened.update.gather_state()
    model = TensorFlowModel(opened.model)
    settings = flags.settings.model
    repliers = {size: Replier(model, vocabulary, settings, DecodingSettings(beam_size=size)) for size in BEAM_SIZES}
    sources = questions.encoded().sources
    rows = [sources.row(i).tolist() for i in range(len(sources))]

    def turn(beam_size: int, batch_size: int) -> float:
        reply = repliers[beam_size].replies
        reply(rows[:batch_size])  # warm-up, including tracing
        began = time.perf_counter()
        for start in range(0, len(rows), batch_size):
            reply(rows[start : start + batch_size])
        return len(rows) / (time.perf_counter() - began)

    return turn


BENCHMARK = Benchmark(
    "decode",
    DecodeBenchmark,
    "Measure replies per second on this machine, with models trained for --steps steps.",
    measure,
)

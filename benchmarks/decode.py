"""Replies per second of this project and of OpenNMT-py, and the time from the start of chat.py to its first reply."""

import dataclasses
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import environment, environments_flag
from benchmarks.peers.systems import WARM_UP_STEPS, OpenNMT
from benchmarks.report import print_json
from benchmarks.tokenised import TokenisedPairs, read_tokenised
from benchmarks.train import TrainBenchmark, measure_in_turns
from benchmarks.worker import Worker, ask_all
from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.flags import setting
from chatbot.training.devices.towers import open_towers

ROOT = Path(__file__).parents[1]
BEAM_SIZES, BATCH_SIZES = (5, 1), (1, 64)
# The attempt for timing the start of chat.py.
ATTEMPT = "cold"


@dataclasses.dataclass(frozen=True)
class DecodeBenchmark(TrainBenchmark):
    """The flags of python -m benchmarks decode."""

    questions: int = setting(256, "questions in a turn", group="measuring", least=1)
    cold: bool = setting(True, "time python chat.py from its start to its first reply")
    opennmt: bool = setting(False, "also measure onmt_translate of OpenNMT-py, in turns", group="peers")
    environments: str | None = environments_flag()


def decode_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print a table and a verdict, and as the last line one JSON object."""
    about = (
        "Measure replies a second on this machine, with --opennmt also those of OpenNMT-py; models of --steps steps."
    )
    flags = CommandLine(DecodeBenchmark, "benchmarks decode", about).parse(arguments)
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    questions = dataclasses.replace(pairs, pairs=pairs.pairs[: flags.questions])
    results: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(flags)}
    verdicts = []
    if flags.cold:
        results |= cold_start(flags)
        print(
            f"First reply of chat.py: {results['cold_reply_s']:.2f} s; import tensorflow: {results['import_s']:.2f} s",
            flush=True,
        )
        verdicts.append(f"chat.py replies after {results['cold_ratio']:.2f} times the time of import tensorflow")
    with tempfile.TemporaryDirectory() as folder:
        peer = None
        if flags.opennmt:
            peer = OpenNMT(environment("opennmt", flags.environments), Path(folder), results["cores"])
        systems: dict[str, Callable[[], float]] = {}
        last_step = WARM_UP_STEPS + flags.steps  # of the peer
        with Worker(_replying_worker, flags, pairs, questions) as worker:
            for beam_size in BEAM_SIZES:
                for batch_size in BATCH_SIZES:
                    name = f"beam {beam_size}, batches of {batch_size}"
                    systems[name] = functools.partial(_replies_per_second, worker, beam_size, batch_size)
                    if peer is not None:
                        systems[f"OpenNMT-py, {name}"] = functools.partial(
                            peer.translate, last_step, "questions", beam_size, batch_size, flags.max_length
                        )
            if peer is not None:
                pairs.write(Path(folder), "train")
                questions.write(Path(folder), "questions")
                peer.rate(flags.settings, "train", flags.steps)
            rates = measure_in_turns(systems, flags.rounds)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{'search':>24}  replies/s" + ("  OpenNMT-py  ratio" if peer else ""))
    ratios = {}
    for name, own in medians.items():
        other = medians.get(f"OpenNMT-py, {name}")
        if other is not None:
            ratios[name] = own / other
            print(f"{name:>24}  {own:9.1f}  {other:10.1f}  {own / other:5.2f}")
        elif peer is None:
            print(f"{name:>24}  {own:9.1f}")
    verdicts += [f"{ratio:.2f} times OpenNMT-py's replies at {name}" for name, ratio in ratios.items()]
    print(f"Verdict: {'; '.join(verdicts) or 'measured'}.")
    print_json({**results, "replies_per_s": medians, "ratios": ratios})
    return 0


def _replies_per_second(worker: Worker, beam_size: int, batch_size: int) -> float:
    return float(ask_all([worker], f"{beam_size} {batch_size}")[0])


def cold_start(flags: DecodeBenchmark) -> dict[str, float]:
    """Return the median seconds of import tensorflow, and of python chat.py from its start to its first reply."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [
            word
            for name in ("rnn_size", "num_layers", "embedding_size", "vocabulary_size", "max_length")
            for word in (f"--{name.replace('_', '-')}", str(getattr(flags, name)))
        ]
        train = [ROOT / "train.py", "--data", Path(flags.data).resolve(), "--attempt", ATTEMPT, "--steps", 1, *sizes]
        _timed(train, folder)
        imports, replies = [], []
        for _ in range(flags.rounds):
            imports.append(_timed(["-c", "import tensorflow"], folder))
            replies.append(_timed([ROOT / "chat.py", "--attempt", ATTEMPT], folder, "你好"))
    seconds = {"import_s": statistics.median(imports), "cold_reply_s": statistics.median(replies)}
    return {**seconds, "cold_ratio": seconds["cold_reply_s"] / seconds["import_s"]}


def _timed(command: Sequence[object], folder: str, question: str = "") -> float:
    """Return the seconds until the command replies to the question; without a question, until it ends."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if question:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            process.stdout.readline()
            seconds = time.perf_counter() - began
        process.communicate()
    return seconds if question else time.perf_counter() - began


def _replying_worker(
    flags: DecodeBenchmark, pairs: TokenisedPairs, questions: TokenisedPairs
) -> Callable[[str], float]:
    """Train for --steps steps, then replies as chat.py does. A request is "BEAM_SIZE BATCH_SIZE"."""
    towers = open_towers([], None)
    from chatbot.corpus.batches import Batches
    from chatbot.inference.replier import Replier
    from chatbot.inference.responder import TensorFlowModel
    from chatbot.model.new_model import built_model, start_from_frequencies
    from chatbot.training.update import open_update

    settings, training = flags.settings, pairs.encoded()
    vocabulary = Vocabulary([*pairs.vocabulary, *BYTES])
    model = built_model(settings.model, len(vocabulary), settings.learning.seed)
    start_from_frequencies(model, [training])
    step = open_update(model, settings, towers)
    step.scatter_state(step.gather_state())
    batches = Batches([training], settings.learning.batch_size, settings.learning.seed).from_step(0, step.num_shares)
    for _ in range(flags.steps):
        step(step.prepare(next(batches), 0), settings.learning.learning_rate)
    step.gather_state()
    repliers = {
        beam_size: Replier(TensorFlowModel(model), vocabulary, settings.model, DecodingSettings(beam_size=beam_size))
        for beam_size in BEAM_SIZES
    }
    sources = questions.encoded().sources
    rows = [sources.row(i).tolist() for i in range(len(sources))]

    def turn(request: str) -> float:
        beam_size, batch_size = map(int, request.split())
        reply = repliers[beam_size].replies
        reply(rows[:batch_size])  # traces and warms up
        began = time.perf_counter()
        for start in range(0, len(rows), batch_size):
            reply(rows[start : start + batch_size])
        return len(rows) / (time.perf_counter() - began)

    return turn

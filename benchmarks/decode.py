"""Replies a second, side by side with OpenNMT-py; and how long a cold chat takes to its first reply."""

import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.apart import Apart, together
from benchmarks.same_words import SameWords, words_of
from benchmarks.train import TrainBenchmark, in_turn, rounded
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.flags import parse_flags, setting
from chatbot.training.devices import open_towers

ROOT = Path(__file__).parents[1]
BEAMS, BATCHES = (5, 1), (1, 64)
# Of the attempt that a cold chat is timed with.
ATTEMPT = "cold"


@dataclasses.dataclass(frozen=True)
class DecodeBenchmark(TrainBenchmark):
    """What python -m benchmarks decode is told."""

    questions: int = setting(256, "measuring", "questions of a turn", kind=int, least=1)
    cold: bool = setting(True, "measuring", "time python chat.py from its start to its first reply", kind=bool)


def decode_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print a table and a verdict, and as the last line one JSON object."""
    about = "Measure replies a second on this machine, if asked for beside OpenNMT-py; models of --steps steps."
    told = DecodeBenchmark(**parse_flags(DecodeBenchmark, "-m benchmarks decode", about, arguments))
    words = words_of(told.data, told.max_length, told.vocabulary_size)
    asked = dataclasses.replace(words, pairs=words.pairs[: told.questions])
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(told)}
    verdicts = []
    if told.cold:
        found |= cold_start(told)
        print(f"A cold chat: {found['cold_reply_s']:.2f} s; import tensorflow: {found['import_s']:.2f} s", flush=True)
        verdicts.append(f"a cold chat replies after {found['cold_ratio']:.2f} times what import tensorflow takes")
    with tempfile.TemporaryDirectory() as folder:
        peers = told.found_peers(Path(folder))
        systems: dict[str, Callable[[], float]] = {}
        with Apart(_ours, told, words, asked) as process:
            for beam_size in BEAMS:
                for batch_size in BATCHES:
                    name = f"beam {beam_size}, batches of {batch_size}"
                    systems[name] = functools.partial(_replies, process, beam_size, batch_size)
                    if peers is not None:
                        systems[f"OpenNMT-py, {name}"] = functools.partial(
                            peers.translate, told.steps, "asked.src", beam_size, batch_size, told.max_length
                        )
            if peers is not None:
                words.write(Path(folder), "train")
                words.write(Path(folder), "valid")
                asked.write(Path(folder), "asked")
                peers.prepare_opennmt()
                peers.train_opennmt(told.steps)
            rates = in_turn(systems, told.rounds)
    medians = {name: statistics.median(some) for name, some in rates.items()}
    print(f"{'search':>24}  replies/s" + ("  OpenNMT-py  ratio" if peers else ""))
    ratios = {}
    for name, own in medians.items():
        other = medians.get(f"OpenNMT-py, {name}")
        if other is not None:
            ratios[name] = own / other
            print(f"{name:>24}  {own:9.1f}  {other:10.1f}  {own / other:5.2f}")
        elif peers is None:
            print(f"{name:>24}  {own:9.1f}")
    verdicts += [f"{ratio:.2f} times OpenNMT-py's replies at {name}" for name, ratio in ratios.items()]
    print(f"Verdict: {'; '.join(verdicts) or 'measured'}.")
    print(json.dumps(rounded({**found, "replies_per_s": medians, "ratios": ratios})))
    return 0


def _replies(process: Apart, beam_size: int, batch_size: int) -> float:
    return float(together([process], f"{beam_size} {batch_size}")[0])


def cold_start(told: DecodeBenchmark) -> dict[str, float]:
    """Seconds of import tensorflow alone, and of python chat.py from its start to its first reply, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [
            word
            for name in ("rnn_size", "num_layers", "embedding_size", "vocabulary_size", "max_length")
            for word in (f"--{name.replace('_', '-')}", str(getattr(told, name)))
        ]
        train = [ROOT / "train.py", "--data", Path(told.data).resolve(), "--attempt", ATTEMPT, "--steps", 1, *sizes]
        _timed(train, folder)
        imports, replies = [], []
        for _ in range(told.rounds):
            imports.append(_timed(["-c", "import tensorflow"], folder))
            replies.append(_timed([ROOT / "chat.py", "--attempt", ATTEMPT], folder, "你好"))
    seconds = {"import_s": statistics.median(imports), "cold_reply_s": statistics.median(replies)}
    return {**seconds, "cold_ratio": seconds["cold_reply_s"] / seconds["import_s"]}


def _timed(command: Sequence[object], folder: str, question: str = "") -> float:
    """Seconds until the command answers a question with a line, or until it ends where it is asked nothing."""
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


def _ours(told: DecodeBenchmark, words: SameWords, asked: SameWords) -> Callable[[str], float]:
    """Trains for so many steps; then replies, as chat.py does, by the beam and in the batches asked for."""
    towers = open_towers([], None)
    from chatbot.corpus.batching.batches import Batches
    from chatbot.inference.replier import Replier
    from chatbot.model.seq2seq import built_model, start_from_frequencies
    from chatbot.training.variable_update.choose import open_update

    settings, pairs = told.settings, words.encoded()
    vocabulary = Vocabulary(words.vocabulary)
    model = built_model(settings.model, len(vocabulary), settings.learning.seed)
    start_from_frequencies(model, [pairs])
    step = open_update(model, settings, towers)
    step.scatter_state(step.gather_state())
    batches = Batches([pairs], settings.learning.batch_size, settings.learning.seed).prefetched(0, step.num_shares)
    for _ in range(told.steps):
        step(next(batches), 0, settings.learning.learning_rate)
    step.gather_state()
    repliers = {beam_size: Replier(model, vocabulary, settings.model, beam_size) for beam_size in BEAMS}
    sources = asked.encoded().sources
    questions = [sources.row(i).tolist() for i in range(len(sources))]

    def turn(question: str) -> float:
        beam_size, batch_size = map(int, question.split())
        reply = repliers[beam_size].replies
        reply(questions[:batch_size])  # traced, and warm
        began = time.perf_counter()
        for at in range(0, len(questions), batch_size):
            reply(questions[at : at + batch_size])
        return len(questions) / (time.perf_counter() - began)

    return turn

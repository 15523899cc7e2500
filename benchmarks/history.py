"""The held-out likelihood of the first and of the later turns of conversations, by the number of turns of history."""

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import log, print_json
from chatbot.command_line import CommandLine
from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.dataset import encode
from chatbot.corpus.files import CorpusFiles, corpus_files, tokenise
from chatbot.corpus.reading.conversation import NEW
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.selection import Selection
from chatbot.corpus.workers import worker_pool
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

TRAIN = Path(__file__).parents[1] / "train.py"
# One of as many conversations is held out.
HELD_OUT = 10


@dataclasses.dataclass(frozen=True)
class HistoryBenchmark(Flags):
    """The flags of python -m benchmarks history."""

    data: str = setting(..., "conversations, one JSON list of utterances on each line", group="data", metavar="FILE")
    history: tuple[int, ...] = setting(
        (0, 1, 2, 4), "turns before the question; one run for each", group="training", least=0
    )
    rnn_size: int = setting(256, "units of each recurrent layer", least=2)
    max_length: int = setting(50, "longest source and longest reply in tokens", least=2)
    steps: int | None = setting(None, "end each run after this many steps; default: by validation", least=1)
    preset: str = setting("auto", "--preset of each run", metavar="NAME")
    seed: int = setting(1, "seed of each run", least=0)


def history_benchmark(arguments: Sequence[str]) -> int:
    """Train once for each number of turns, print a table, and as the last line one JSON object.

    All runs learn and score the same turns: whole conversations are held out, and no rule drops pairs.
    """
    about = "Measure the held-out nats per character of first and of later turns, by the number of turns of history."
    flags = CommandLine(HistoryBenchmark, "benchmarks history", about).parse(arguments)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        training, held_out = _split(flags.data, work)
        for turns in flags.history:
            began = time.perf_counter()
            _train(flags, turns, training, held_out, work)
            run = {"history": turns, **_measure(work / "checkpoints" / f"history-{turns}", held_out)}
            runs.append({**run, "seconds": time.perf_counter() - began})
            log(str(runs[-1]))
    print("history  first turns  later turns  all turns   (nats per character)")
    for run in runs:
        print("{history:7}  {first:11.4f}  {later:11.4f}  {all:9.4f}".format(**run))
    print_json({**dataclasses.asdict(flags), "runs": runs})
    return 0


def _split(data: str, work: Path) -> tuple[Path, Path]:
    """Write the conversations to a file to train on and a file of held-out ones. Raises UserError for too few."""
    lines = Path(data).read_bytes().splitlines(keepends=True)
    if len(lines) < HELD_OUT:
        raise UserError(f"{data}: {counted(len(lines), 'conversation')}; at least {HELD_OUT} are needed")
    training, held_out = work / "training.jsonl", work / "held_out.jsonl"
    held_out.write_bytes(b"".join(lines[HELD_OUT - 1 :: HELD_OUT]))
    training.write_bytes(b"".join(line for number, line in enumerate(lines, 1) if number % HELD_OUT))
    return training, held_out


def _train(flags: HistoryBenchmark, turns: int, training: Path, held_out: Path, work: Path) -> None:
    command = [sys.executable, str(TRAIN), "--data", str(training), "--validation", str(held_out)]
    command += ["--clean", "control", "--preset", flags.preset]
    command += ["--attempt", f"history-{turns}", "--history", str(turns), "--rnn-size", str(flags.rnn_size)]
    command += ["--max-length", str(flags.max_length), "--seed", str(flags.seed)]
    command += [] if flags.steps is None else ["--steps", str(flags.steps)]
    completed = subprocess.run(command, cwd=work, stdout=sys.stderr, check=False)
    if completed.returncode:
        raise UserError(f"--history {turns}: training failed; the lines above say why")


def _measure(attempt: Path, held_out: Path) -> dict[str, Any]:
    """Return the nats per character of the best checkpoint, the number of scored pairs, and the checkpoint's step."""
    from chatbot.evaluation.likelihood import Scorer
    from chatbot.model.saved import load_trained

    trained = load_trained(attempt)
    turns, max_length = trained.settings.encoding.history, trained.settings.model.max_length
    settings = CorpusSettings(clean=trained.settings.corpus.clean, cache=str(attempt.parents[1] / "cache"))
    files = corpus_files(find_sources([str(held_out)]), settings)
    (pairs,) = encode(files, Selection(), trained.vocabulary, turns, max_length).shards
    is_first = _links(files) == NEW
    score = Scorer(trained.model)
    parts = {"first": is_first, "later": ~is_first, "all": np.ones(len(pairs), np.bool_)}
    nats = {name: score([pairs.select(np.flatnonzero(part))]).nats_per_character for name, part in parts.items()}
    return {**nats, "first_pairs": int(is_first.sum()), "later_pairs": int((~is_first).sum()), "step": trained.step}


def _links(files: CorpusFiles) -> Any:
    """Return the links of all usable pairs, [pairs], which a single shard has in the same order."""
    with worker_pool() as pool:
        tokenised = tokenise(files, pool)
    return np.concatenate([load_chunk(chunk.path).links for chunk in tokenised.chunks])

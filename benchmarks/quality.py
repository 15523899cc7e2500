"""Held-out likelihood and replies of this project, beside models that only count, on one file of pairs."""

import dataclasses
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.count_models import measure_count_models
from benchmarks.report import print_json
from chatbot.command_line import CommandLine
from chatbot.config.attempts import CONFIG, attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.run import PRESETS
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.evaluation.report import COLUMNS, table
from chatbot.flags import Flags, setting

ROOT = Path(__file__).parents[1]
SEED = 7
# The rows of the table of replies, and the measures in each.
ROWS = ("chat", "beam_5", "references", "random")
MEASURES = tuple(measure for _, measure, *_ in COLUMNS)


@dataclasses.dataclass(frozen=True)
class QualityBenchmark(Flags):
    """The flags of python -m benchmarks quality."""

    data: str = setting(..., "question-answer pairs, one on each line", group="data", metavar="FILE")
    held_out: int = setting(2000, "pairs that are held out", least=1)
    runs: tuple[str, ...] = setting(
        (AUTO,), "values of --preset; one run for each", group="training", choices=(AUTO, *PRESETS, NONE)
    )


def quality_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print tables, and as the last line one JSON object. Arguments after `--` are flags of train.py."""
    about = (
        "Hold pairs out of a file, and measure their likelihood by models that only count and by a trained one, and "
        "the trained one's replies. What follows -- are flags of train.py: --data pairs.tsv -- --rnn-size 512"
    )
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, training_flags = arguments[:end], [*arguments[end + 1 :]]
    flags = CommandLine(QualityBenchmark, "benchmarks quality", about).parse(own)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        training, held_out = split(flags.data, flags.held_out, work)
        counted = measure_count_models(training, held_out, work / "cache")
        print("Nats per character of held-out replies, rare characters in bytes:")
        print(*(f"{nats:.4f}  {name}" for name, nats in counted.items()), sep="\n", flush=True)
        runs = []
        for preset in flags.runs:
            runs.append(_run_of(preset, training, held_out, training_flags, work))
            print("{nats_per_character:.4f}  --preset {preset}, step {step:,}, {seconds:.0f} s".format(**runs[-1]))
            print(*table({name: runs[-1][name] for name in ROWS}), sep="\n", flush=True)
    print_json({**dataclasses.asdict(flags), "flags": training_flags, "count_models": counted, "results": runs})
    return 0


def split(data: str, held_out: int, folder: Path) -> tuple[Path, Path]:
    """Write the lines of a file, shuffled, to a file to train on and a file of held-out ones.

    Raises UserError for a file that cannot be read and for too few lines.
    """
    try:
        lines = Path(data).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise UserError(f"{data}: cannot be read as UTF-8; give a file with one pair on each line") from None
    if len(lines) <= held_out:
        raise UserError(
            f"--held-out {held_out}: {data} has {counted(len(lines), 'line')}, and training needs the others"
        )
    random.Random(SEED).shuffle(lines)
    suffix = Path(data).suffix
    paths = folder / f"train{suffix}", folder / f"held_out{suffix}"
    for path, part in zip(paths, (lines[held_out:], lines[:held_out]), strict=True):
        path.write_text("\n".join(part) + "\n", encoding="utf-8")
    return paths


def _run_of(preset: str, training: Path, held_out: Path, flags: list[str], work: Path) -> dict[str, Any]:
    """Train and measure an attempt.

    Returns the preset, the seconds of train.py, the best validation and its step, and the measures of the replies by
    the chat's default decoding and by beam search, of the references and of random replies.
    """
    attempt = f"quality-{preset}"
    command = [sys.executable, str(ROOT / "train.py"), "--data", str(training), "--validation", str(held_out)]
    began = time.perf_counter()
    _run([*command, "--attempt", attempt, "--preset", preset, *flags], work, sys.stderr)
    seconds = time.perf_counter() - began
    directory = work / attempt_directory(attempt)
    nats, step = best_validation(directory)
    chosen = json.loads((directory / CONFIG).read_text(encoding="utf-8"))["preset"]
    run = {"preset": chosen, "seconds": seconds, "nats_per_character": nats, "step": step}

    chat = _evaluate(attempt, held_out, [], work)
    beam = _evaluate(attempt, held_out, ["--beam-size", "5"], work)
    rows = chat, beam, beam["references"], beam["random"]
    replies = {name: {measure: row[measure] for measure in MEASURES} for name, row in zip(ROWS, rows, strict=True)}
    return {**run, **replies}


def best_validation(directory: Path) -> tuple[float, int]:
    """Return the fewest nats per character of an attempt's validations, and their step. Raises UserError for none."""
    metrics, measure = directory / "metrics.jsonl", "validation.nats_per_character"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    validations = [(record[measure], record["step"]) for record in map(json.loads, lines) if measure in record]
    if not validations:
        raise UserError(f"{directory.name}: nothing was validated; train longer, or lower --validate-every")
    return min(validations)


def _evaluate(attempt: str, held_out: Path, decoding: list[str], work: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "chatbot.evaluation", "--attempt", attempt, "--data", str(held_out), *decoding]
    measures: dict[str, Any] = json.loads(_run(command, work, subprocess.PIPE).splitlines()[-1])
    return measures


def _run(command: list[str], work: Path, stdout: Any) -> str:
    """Run a command of this project in a folder, and return its output if it is a pipe. Raises UserError."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(command, cwd=work, stdout=stdout, env=environment, text=True, check=False)
    if completed.returncode:
        raise UserError(f"{shlex.join(command[1:])}: failed; the lines above say why")
    return completed.stdout or ""

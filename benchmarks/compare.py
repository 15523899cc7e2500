"""Compares this project with the same model in PyTorch by training speed and held-out quality.

Speed is the number of target tokens per second, without padding. Both systems train on the same tokenised pairs without
dropout. Their speeds are measured in alternation.

Quality is the lowest validation loss in nats per character that a system reaches within a given time. PyTorch uses the
character tokens of this project, so no token is unknown. This project is trained once with the same tokens, model and
learning rate, and once with its defaults.
"""

import dataclasses
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Benchmark, log
from benchmarks.opened_step import architecture_flag, plain, with_architecture
from benchmarks.peers.pytorch import Best, PyTorch, environment
from benchmarks.processes import Turns, in_turns, output_of, python
from benchmarks.quality import best_validation, split
from benchmarks.tokenised import character_corpora, read_tokenised, spelled
from benchmarks.train import FLOAT32, TrainBenchmark, training_workers
from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import NONE
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flags_for, replace, setting

OURS = "this project"
PYTORCH = "PyTorch"
# File names of the tokenised pairs.
WORDS = "words"
CHARACTERS = "characters"
HELD_OUT = "held_out"
KEEP_PROB = 0.7  # the value of --keep-prob for comparing quality


@dataclasses.dataclass(frozen=True)
class CompareBenchmark(TrainBenchmark):
    """The flags of `python -m benchmarks compare`."""

    architecture: str = architecture_flag()
    rounds: int = setting(3, "number of rounds per system; the median speed is reported", group="measuring", minimum=1)
    held_out: int = setting(2000, "number of pairs to hold out", minimum=1)
    quality_seconds: int = setting(
        240, "seconds of training per system for the quality comparison; 0 skips the comparison", minimum=0
    )
    validate_every: int = setting(100, "number of steps between validations", minimum=1)
    environments: str | None = setting(
        None,
        "folder of the virtual environment for PyTorch, created if missing",
        unset="duida/peers in the user's cache",
        group="peers",
        metavar="FOLDER",
    )

    @property
    def settings(self) -> Settings:
        """The settings of the model, restricted to the features of the PyTorch model."""
        return plain(with_architecture(super().settings, self.architecture))


def measure(flags: CompareBenchmark) -> dict[str, Any]:
    """Compare the speed, then the quality."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        files = split(flags.data, flags.held_out, work)
        pytorch = PyTorch(environment(flags.environments), work, cores)
        rates, failures = compare_speed(flags, files[0], pytorch)
        results: dict[str, Any] = {"target_tokens_per_s": rates, "not_measured": failures, "ratios": ratios(rates)}
        if flags.quality_seconds:
            quality, unfinished = compare_quality(flags, files, pytorch, best_precision(rates, PYTORCH))
            results |= {"quality": quality, "not_measured": failures | unfinished}
    return results


def compare_speed(flags: CompareBenchmark, training: Path, pytorch: PyTorch) -> Turns:
    """Measure the target tokens per second of each system in each precision that the machine supports."""
    pairs = read_tokenised(str(training), flags.max_length, flags.vocabulary_size)
    settings = flags.settings
    pairs.write(pytorch.work, WORDS)
    systems: dict[str, Callable[[], float]] = {}
    with training_workers(flags, pairs) as workers:
        for precision, worker in workers.items():
            systems[f"{OURS}, {precision}"] = worker.ask
            systems[f"{PYTORCH}, {precision}"] = partial(pytorch.rate, settings, WORDS, flags.steps, precision)
        return in_turns(systems, flags.rounds)


def best_precision(rates: Mapping[str, Mapping[str, float]], system: str) -> str:
    """Return the precision in which a system is fastest. Raises UserError if no precision works."""
    medians = {name.removeprefix(f"{system}, "): rates[name]["median"] for name in rates if name.startswith(system)}
    if not medians:
        raise UserError(f"{system}: no precision works on this machine; see the reasons above")
    return max(medians, key=lambda precision: medians[precision])


def ratios(rates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the speed of this project divided by the speed of PyTorch.

    The first ratio compares the fastest precision of each system. If both systems support float32, a second ratio
    compares them in float32. Raises UserError if no precision works for a system.
    """
    precisions = {"pytorch_best": [best_precision(rates, system) for system in (OURS, PYTORCH)]}
    if {f"{OURS}, {FLOAT32}", f"{PYTORCH}, {FLOAT32}"} <= rates.keys():
        precisions["pytorch_float32"] = [FLOAT32, FLOAT32]
    return {
        name: rates[f"{OURS}, {ours}"]["median"] / rates[f"{PYTORCH}, {theirs}"]["median"]
        for name, (ours, theirs) in precisions.items()
    }


def compare_quality(
    flags: CompareBenchmark, files: tuple[Path, Path], pytorch: PyTorch, precision: str
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Train each system for the same time and measure its best validation loss.

    Args:
        flags: The flags of the benchmark.
        files: The files with training and held-out pairs.
        pytorch: The PyTorch environment.
        precision: The precision for PyTorch.

    Returns:
        The nats per character, the step and the seconds of each system, and an error message for each system that
        failed.
    """
    work = pytorch.work
    seconds = flags.quality_seconds
    every = flags.validate_every
    settings = replace(flags.settings, max_length=ModelSettings.max_length, keep_prob=KEEP_PROB)
    corpus, held_out = character_corpora(*files, work / "cache")
    training = (shard.within(settings.model.max_length) for shard in corpus.shards)
    spelled(training, corpus.vocabulary).write(work, CHARACTERS)
    spelled(held_out.shards, corpus.vocabulary).write(work, HELD_OUT)
    characters = sum(int(shard.characters.sum()) for shard in held_out.shards)

    def train_ours(settings: Settings) -> Best:
        settings = replace(settings, data=(str(files[0]),), validation=str(files[1]), validate_every=every)
        words = [*shlex.split(flags_for(settings)), "--batch-size", settings.learning.batch_size]
        output_of(python(ROOT / "train.py", *words), work, seconds=seconds)
        nats, step = best_validation(work / attempt_directory(settings.run.attempt))
        return Best(nats * characters, step)

    same = replace(settings, attempt="same", tokenizer="char", preset=NONE, both_directions="off")
    defaults = replace(Settings(), attempt="defaults", architecture=flags.architecture)
    systems: dict[str, Callable[[], Best]] = {
        f"{OURS}, defaults": partial(train_ours, defaults),
        f"{OURS}, the same model": partial(train_ours, same),
        PYTORCH: partial(pytorch.best, settings, CHARACTERS, HELD_OUT, seconds, every, precision),
    }
    results = {}
    failures = {}
    for name, train in systems.items():
        log(f"{name}: training for {seconds} s")
        began = time.perf_counter()
        try:
            best = train()
        except UserError as error:
            failures[name] = str(error)
            log(str(error))
            continue
        results[name] = {"nats_per_character": best.nats / characters, "step": best.step}
        results[name]["seconds"] = time.perf_counter() - began
        log(str(results[name]))
    return results, failures


BENCHMARK = Benchmark(
    "compare",
    CompareBenchmark,
    "Compare training speed and held-out likelihood after equal times with PyTorch, which is first installed in an "
    "environment of its own.",
    measure,
)

"""This project beside the same model in PyTorch: training speed in turns, and held-out quality.

Speed: real target tokens a second, end symbols included, on the same words of the same pairs, without dropout. Quality:
nats per character of whole held-out replies, end symbols included, by the best validation within the same time for each
system, from the start of its process. PyTorch gets characters of this project's tokenizer, rare ones in bytes, so that
no token is unknown; this project runs once with the same tokens, model and learning rate, and once with its defaults.
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
from benchmarks.peers.pytorch import Best, PyTorch, environment, environments_flag
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
# Names of texts.
WORDS = "words"
CHARACTERS = "characters"
HELD_OUT = "held_out"
# In training for quality.
KEEP_PROB = 0.7


@dataclasses.dataclass(frozen=True)
class CompareBenchmark(TrainBenchmark):
    """The flags of python -m benchmarks compare."""

    architecture: str = architecture_flag()
    rounds: int = setting(3, "turns of each system; the speed is their median", group="measuring", least=1)
    held_out: int = setting(2000, "pairs that are held out", least=1)
    quality_seconds: int = setting(240, "seconds of training of each system for its quality; 0: leave it out", least=0)
    validate_every: int = setting(100, "steps between two validations", least=1)
    environments: str | None = environments_flag()

    @property
    def settings(self) -> Settings:
        """The settings of the model, as PyTorch has them."""
        return plain(with_architecture(super().settings, self.architecture))


def measure(flags: CompareBenchmark) -> dict[str, Any]:
    """Measure the speed, and then the quality."""
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
    """Measure the real target tokens a second of each system, in the precisions that work on this machine."""
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
    """Return the precision in which a system is fastest. Raises UserError if none works."""
    medians = {name.removeprefix(f"{system}, "): rates[name]["median"] for name in rates if name.startswith(system)}
    if not medians:
        raise UserError(f"{system}: no precision works on this machine; the reasons are printed above")
    return max(medians, key=lambda precision: medians[precision])


def ratios(rates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return this project's rate over PyTorch's: at the best precision of both, and in float32 if both have it.

    Raises UserError if a system has no precision.
    """
    precisions = {"pytorch_best": [best_precision(rates, system) for system in (OURS, PYTORCH)]}
    if {f"{OURS}, {FLOAT32}", f"{PYTORCH}, {FLOAT32}"} <= rates.keys():
        precisions["pytorch_float32"] = [FLOAT32, FLOAT32]
    return {
        name: rates[f"{OURS}, {ours}"]["median"] / rates[f"{PYTORCH}, {peers}"]["median"]
        for name, (ours, peers) in precisions.items()
    }


def compare_quality(
    flags: CompareBenchmark, files: tuple[Path, Path], pytorch: PyTorch, precision: str
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return the nats per character of each system's best validation, its step, and the seconds of the run.

    precision: PyTorch's. Also returns, by system, why it has no validation.
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

    def ours(settings: Settings) -> Best:
        settings = replace(settings, data=(str(files[0]),), validation=str(files[1]), validate_every=every)
        output_of(python(ROOT / "train.py", *shlex.split(flags_for(settings))), work, seconds=seconds)
        nats, step = best_validation(work / attempt_directory(settings.run.attempt))
        return Best(nats * characters, step)

    same = replace(settings, attempt="same", tokenizer="char", preset=NONE, both_directions="off")
    defaults = replace(Settings(), attempt="defaults", architecture=flags.architecture)
    systems: dict[str, Callable[[], Best]] = {
        f"{OURS}, defaults": partial(ours, defaults),
        f"{OURS}, the same model": partial(ours, same),
        PYTORCH: partial(pytorch.best, settings, CHARACTERS, HELD_OUT, seconds, every, precision),
    }
    results = {}
    failures = {}
    for name, train in systems.items():
        log(f"{name}: trains for {seconds} s")
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


compare_benchmark = Benchmark(
    "compare",
    CompareBenchmark,
    "Compare this project with PyTorch, which is installed first, in an environment of its own: training speed in "
    "turns, and the likelihood of held-out replies after equal times.",
    measure,
)

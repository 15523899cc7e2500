"""Measures the speed of reading training data: encoding a corpus, loading it from the cache, and preparing batches."""

import dataclasses
import functools
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.processes import Samples, Worker, memory_gb, output_of, python
from benchmarks.synthetic import write_corpus
from chatbot.attempts.curves import read_records
from chatbot.attempts.files import METRICS
from chatbot.config.attempts import attempt_directory
from chatbot.config.training import Settings
from chatbot.corpus.batches import GlobalBatch
from chatbot.flags import compose, setting
from chatbot.quiet import import_tensorflow

# Maximum number of pairs for timing jieba alone, whose speed does not depend on the number of pairs.
JIEBA_PAIRS = 1_100_000
TRAINING_STEPS = 300
WARM_UP_STEPS = 100
# Number of pairs for each measurement of the input pipeline.
INPUT_PAIRS = 200_000
# Estimated training speed of an A100 with the default model. A pair with ten tokens on each side needs 0.44 GFLOP, so
# this speed is 5.5 TFLOP/s.
GPU_PAIRS_PER_S = 12_500


@dataclasses.dataclass(frozen=True)
class CorpusBenchmark(Recorded):
    """The flags of `python -m benchmarks corpus`."""

    pairs: int = setting(1_100_000, "number of pairs to generate", group="corpus", minimum=1)
    training: bool = setting(True, "train for 300 steps and measure the fraction of time spent waiting for input")


def measure(flags: CorpusBenchmark) -> dict[str, Any]:
    """Run all measurements. Each runs in a new process, so that its memory is measured separately."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(temporary)
        file = folder / "pairs.tsv"
        write_corpus(file, flags.pairs)
        results: dict[str, Any] = {"pairs": flags.pairs, "bytes": file.stat().st_size}
        for stage in (bare_loop, encoding, second_start, input_rates, *[input_wait] * flags.training):
            log(f"{stage.__name__.replace('_', ' ')} ...")
            with Worker(functools.partial, stage, str(file), folder) as worker:
                results |= worker.ask()
        return {**results, "speedup": results["pairs_per_s"] / results["bare_pairs_per_s"]}


def bare_loop(file: str, folder: Path) -> dict[str, Any]:
    """Time the reference, which is a loop that calls jieba.lcut for each text and discards the words."""
    import jieba

    jieba.initialize()
    with Path(file).open(encoding="utf-8") as lines:
        texts = [text for line in itertools.islice(lines, JIEBA_PAIRS) for text in line.rstrip("\n").split("\t")]
    began = time.perf_counter()
    for text in texts:
        jieba.lcut(text)
    return {"bare_pairs_per_s": len(texts) / 2 / (time.perf_counter() - began)}


def _settings(file: str, folder: Path) -> Settings:
    return compose(Settings, data=(file,), cache=str(folder / "cache"))


def encoding(file: str, folder: Path) -> dict[str, Any]:
    """Time the encoding of a text file into token ids on disk.

    Encoding includes reading, cleaning, word segmentation and building the vocabulary. The result "encode_peak_gb"
    includes the memory of worker processes.
    """
    from chatbot.corpus.dataset import training_set, validation_set

    shutil.rmtree(folder / "cache", ignore_errors=True)
    settings = _settings(file, folder)
    began = time.perf_counter()
    with Samples(memory_gb) as memory:
        corpus = training_set(settings.corpus, settings.encoding)
        validation_set(settings.corpus, settings.encoding, corpus.vocabulary)
    seconds = time.perf_counter() - began
    pairs = corpus.reports[0].pairs
    return {"encode_seconds": seconds, "pairs_per_s": pairs / seconds, "encode_peak_gb": max(memory.values)}


def second_start(file: str, folder: Path) -> dict[str, Any]:
    """Time a start from the cache, up to the first batch. The import of TensorFlow is not included."""
    import_tensorflow()
    from chatbot.corpus.batches import Batches
    from chatbot.training.data import prepare

    os.chdir(folder)
    began = time.perf_counter()
    settings = _settings(file, folder)
    next(Batches(prepare(settings).training, settings.learning.batch_size, settings.learning.seed).from_step(0, 1))
    return {"second_start_seconds": time.perf_counter() - began}


def input_rates(file: str, folder: Path) -> dict[str, Any]:
    """Measure how many pairs per second the input pipeline prepares on one CPU core, and how many GPUs this can feed.

    Returns:
        A row for each number of towers (model replicas) and each batch size per tower, with these values:

        planned_and_padded_per_s: Pairs per second for creating padded batches.
        prefetched_per_s: Pairs per second for the whole pipeline, including the transfer to the consumer.
        gpus_fed: The number of GPUs that can train at this speed.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import_tensorflow()
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.dataset import training_set
    from chatbot.corpus.workers import prefetched
    from chatbot.training.new_model import build_model
    from chatbot.training.share import Preparation

    settings = _settings(file, folder)
    shards = training_set(settings.corpus, settings.encoding).shards
    shards = dataclasses.replace(shards, max_length=settings.model.max_length)
    seed = settings.learning.seed
    small = dataclasses.replace(settings.model, rnn_size=2, embedding_size=1)  # sizes do not affect the input
    model = build_model(small, settings.encoding.vocabulary_size, seed)
    rows = []
    for towers, batch_size in itertools.product((1, 8), (64, 256, 1024)):
        batches = Batches(shards, towers * batch_size, seed)
        steps = max(3, min(INPUT_PAIRS // (towers * batch_size), batches.steps_per_epoch - 1))
        alone = _pairs_per_s(batches.from_step(0, towers), steps)
        prepare = Preparation(model, seed, ["/CPU:0"] * towers)
        prepared = prefetched(zip(batches.from_step(0, towers), itertools.count()), prepare)
        ready = _pairs_per_s((each.batch for each in prepared), steps)
        rates = {"planned_and_padded_per_s": alone, "prefetched_per_s": ready}
        rows.append({"towers": towers, "batch_size": batch_size, **rates, "gpus_fed": ready / GPU_PAIRS_PER_S})
    return {"input": rows}


def _pairs_per_s(batches: Iterator[GlobalBatch], steps: int) -> float:
    """Return the pairs per second over this number of batches, not counting the first batch."""
    next(batches)
    began = time.perf_counter()
    pairs = sum(batch.pairs for batch in itertools.islice(batches, steps))
    return pairs / (time.perf_counter() - began)


def input_wait(file: str, folder: Path) -> dict[str, Any]:
    """Run train.py with default sizes and return the median fraction of time spent waiting for input."""
    data = ["--data", file, "--cache", folder / "cache", "--attempt", "input"]
    steps = ["--steps", TRAINING_STEPS, "--save-every", TRAINING_STEPS]
    output_of(python(ROOT / "train.py", *data, *steps), folder)
    records = read_records(folder / attempt_directory("input") / METRICS)
    records = [record for record in records if record["step"] > WARM_UP_STEPS]
    return {name: statistics.median(r[name] for r in records) for name in ("input_wait", "examples_per_s")}


BENCHMARK = Benchmark(
    "corpus",
    CorpusBenchmark,
    "Measure every stage from a file of pairs to batches on a synthetic corpus.",
    measure,
)

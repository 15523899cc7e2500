"""Speed and memory of encoding, of a second start and of the input of a step, and the time that steps wait for it."""

import dataclasses
import functools
import itertools
import json
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
from chatbot.config.training import Settings
from chatbot.corpus.batches import GlobalBatch
from chatbot.flags import compose, setting
from chatbot.quiet import import_tensorflow

# The jieba loop is timed on at most this many pairs: its rate does not change with more.
JIEBA_PAIRS = 1_100_000
TRAINING_STEPS = 300
WARM_UP_STEPS = 100
# Pairs of a measurement of the input.
INPUT_PAIRS = 200_000
# An estimate of what one GPU of A100's class trains at rnn_size 512. With the default model, a pair of ten tokens on
# each side takes 0.44 GFLOP: six for each weight and token, where a token passes half of the 3.2 million recurrent
# weights and a target token also the 4.1 million of the projection. 12,500 pairs a second are then 5.5 TFLOP/s, and
# 250,000 tokens a second; NVIDIA gives 83,000 for its GNMT v2, whose tokens take 17 times the work (one A100, TF32).
GPU_PAIRS_PER_S = 12_500


@dataclasses.dataclass(frozen=True)
class CorpusBenchmark(Recorded):
    """The flags of python -m benchmarks corpus."""

    pairs: int = setting(1_100_000, "pairs of the generated corpus", group="corpus", least=1)
    training: bool = setting(True, "train for 300 steps and measure the share of the time that steps wait for input")


def measure(flags: CorpusBenchmark) -> dict[str, Any]:
    """Run all measurements, each in a new process, so that its memory is that of this measurement alone."""
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
    """Time the reference: jieba.lcut over all texts in one process, with texts in memory; words are discarded."""
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
    """Time the whole encoding, from the file to shards on disk: reading, cleaning, jieba, vocabulary, ids.

    Both the training pairs and the held-out pairs are encoded. encode_peak_gb: of this process and its workers.
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
    """Measure the time from the settings to the first batch with a filled cache, without the import of TensorFlow."""
    import_tensorflow()
    from chatbot.corpus.batches import Batches
    from chatbot.training.data import prepare

    os.chdir(folder)
    began = time.perf_counter()
    settings = _settings(file, folder)
    next(Batches(prepare(settings).training, settings.learning.batch_size, settings.learning.seed).from_step(0, 1))
    return {"second_start_seconds": time.perf_counter() - began}


def input_rates(file: str, folder: Path) -> dict[str, Any]:
    """Measure how many pairs a second the input thread makes on one core, and how many GPUs it feeds.

    A row for each number of towers and of pairs in a share: planned_and_padded_per_s, pairs a second of `from_step`;
    prefetched_per_s, those of batches with all that a step needs, whose consumer has the same core; gpus_fed, the
    latter by GPU_PAIRS_PER_S.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import_tensorflow()
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.dataset import training_set
    from chatbot.corpus.workers import prefetched
    from chatbot.training.new_model import built_model
    from chatbot.training.share import Preparation

    settings = _settings(file, folder)
    shards = training_set(settings.corpus, settings.encoding).shards
    shards = dataclasses.replace(shards, max_length=settings.model.max_length)
    seed = settings.learning.seed
    small = dataclasses.replace(settings.model, rnn_size=2, embedding_size=1)  # only its layout of batches matters
    model = built_model(small, settings.encoding.vocabulary_size, seed)
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
    """Return the pairs a second of this many batches, after a first one."""
    next(batches)
    began = time.perf_counter()
    pairs = sum(batch.pairs for batch in itertools.islice(batches, steps))
    return pairs / (time.perf_counter() - began)


def input_wait(file: str, folder: Path) -> dict[str, Any]:
    """Run train.py at default sizes and read the share of the time that steps waited for their batch."""
    data = ["--data", file, "--cache", folder / "cache", "--attempt", "input"]
    steps = ["--steps", TRAINING_STEPS, "--save-every", TRAINING_STEPS]
    output_of(python(ROOT / "train.py", *data, *steps), folder)
    lines = (folder / "checkpoints/input/metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["step"] > WARM_UP_STEPS]
    return {name: statistics.median(r[name] for r in records) for name in ("input_wait", "examples_per_s")}


corpus_benchmark = Benchmark(
    "corpus",
    CorpusBenchmark,
    "Measure every stage from a file of pairs to batches on a synthetic corpus.",
    measure,
)

"""Speed and memory of encoding, of a second start and of batching, and the time that steps wait for input."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.planning import measure_planning
from benchmarks.report import log, print_json
from benchmarks.synthetic import write_corpus
from chatbot.command_line import CommandLine
from chatbot.corpus.batches import GlobalBatch
from chatbot.corpus.workers import cores
from chatbot.flags import Flags, compose, setting

# The jieba loop is timed on at most this many pairs: its rate does not change with more.
JIEBA_PAIRS = 1_100_000
TRAINING_STEPS, WARM_UP_STEPS = 300, 100
# Pairs of a measurement of the input.
INPUT_PAIRS = 200_000
# An estimate of what one GPU of A100's class trains at rnn_size 512. With the default model, a pair of ten tokens on
# each side takes 0.44 GFLOP: six for each weight and token, where a token passes half of the 3.2 million recurrent
# weights and a target token also the 4.1 million of the projection. 12,500 pairs a second are then 5.5 TFLOP/s, and
# 250,000 tokens a second; NVIDIA gives 83,000 for its GNMT v2, whose tokens take 17 times the work (one A100, TF32).
GPU_PAIRS_PER_S = 12_500
ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class CorpusBenchmark(Flags):
    """The flags of python -m benchmarks corpus."""

    pairs: int = setting(1_100_000, "pairs of the generated corpus", group="corpus", least=1)
    data: str | None = setting(None, "pairs to measure padding on, at --max-length 20", metavar="FILE")
    folder: str | None = setting(
        None, "folder that keeps the corpus and the cache; default: a temporary folder", metavar="FOLDER"
    )
    plan_pairs: int = setting(100_000_000, "pairs of generated lengths for which batches are planned; 0: none", least=0)
    training: bool = setting(True, "train for 300 steps and measure the share of the time that steps wait for input")


def corpus_benchmark(arguments: Sequence[str]) -> int:
    """Run all measurements, each in a new process, and print one JSON object."""
    about = "Measure every stage from a file of pairs to batches on a synthetic corpus."
    flags = CommandLine(CorpusBenchmark, "benchmarks corpus", about).parse(arguments)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(flags.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{flags.pairs}.tsv"
        if not file.exists():
            log(f"Writing {flags.pairs:,} pairs ...")
            write_corpus(file, flags.pairs)
        results: dict[str, Any] = {"pairs": flags.pairs, "bytes": file.stat().st_size, "cores": cores()}
        log("A bare loop of jieba.lcut ...")
        results |= _in_own_process(_measure_jieba, file)
        log("The first encode ...")
        results |= _in_own_process(_measure_encoding, file, folder)
        results["speedup"] = results["pairs_per_s"] / results["bare_pairs_per_s"]
        log("The second start ...")
        results |= _in_own_process(_measure_second_start, file, folder)
        log("An epoch's batches ...")
        results |= _in_own_process(_measure_batching, file, folder)
        results |= _in_own_process(_measure_input, file, folder)
        if flags.plan_pairs:
            log("Batches of many pairs ...")
            results |= _in_own_process(measure_planning, flags.plan_pairs)
        if flags.training:
            log("Training ...")
            results |= _measure_input_wait(file, folder)
        if flags.data is not None:
            results |= _in_own_process(_measure_padding, Path(flags.data), folder)
    print_json(results)
    return 0


def _in_own_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call measure(*arguments) in a new process, so that its peak memory is that of this measurement alone."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def _peak_gb(workers: int = 0) -> float:
    """Return the peak memory of this process plus `workers` times that of its largest child, in GB."""
    own, largest_child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + workers * largest_child) * 1024 / 1e9


def _measure_jieba(file: Path) -> dict[str, Any]:
    """Time the reference: jieba.lcut over all texts in one process, with texts in memory; words are discarded."""
    import jieba

    jieba.initialize()
    with file.open(encoding="utf-8") as lines:
        texts = [text for line in itertools.islice(lines, JIEBA_PAIRS) for text in line.rstrip("\n").split("\t")]
    began = time.perf_counter()
    for text in texts:
        jieba.lcut(text)
    seconds = time.perf_counter() - began
    return {"bare_seconds": seconds, "bare_pairs_per_s": len(texts) / 2 / seconds}


def _settings(file: Path, folder: Path, **changes: Any) -> Any:
    from chatbot.config.training import Settings

    return compose(Settings, data=(str(file),), cache=str(folder / "cache"), **changes)


def _measure_encoding(file: Path, folder: Path) -> dict[str, Any]:
    """Time the whole encoding, from the file to shards on disk: reading, cleaning, jieba, vocabulary, ids.

    Both the training pairs and the held-out pairs are encoded.
    """
    import shutil

    from chatbot.corpus.dataset import training_set, validation_set

    shutil.rmtree(folder / "cache", ignore_errors=True)
    settings = _settings(file, folder)
    began = time.perf_counter()
    corpus = training_set(settings.corpus, settings.encoding)
    validation_set(settings.corpus, settings.encoding, corpus.vocabulary)
    seconds = time.perf_counter() - began
    return {
        "encode_seconds": seconds,
        "pairs_per_s": corpus.reports[0].pairs / seconds,
        "encode_peak_gb": _peak_gb(cores()),
    }


def _measure_second_start(file: Path, folder: Path) -> dict[str, Any]:
    """Measure the time from the settings to the first batch with a filled cache, without the import of TensorFlow."""
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    from chatbot.corpus.batches import Batches
    from chatbot.training.data import prepare

    began = time.perf_counter()
    settings = _settings(file, folder)
    os.chdir(folder)
    data = prepare(settings)
    next(Batches(data.training, settings.learning.batch_size, settings.learning.seed).from_step(0, 1))
    return {"second_start_seconds": time.perf_counter() - began}


def _measure_batching(file: Path, folder: Path) -> dict[str, Any]:
    """Measure the rate and the memory of one epoch's batches without a consumer."""
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    before = _peak_gb()
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.dataset import training_set

    settings = _settings(file, folder)
    shards = dataclasses.replace(
        training_set(settings.corpus, settings.encoding).shards, max_length=settings.model.max_length
    )
    batches = Batches(shards, settings.learning.batch_size, settings.learning.seed)
    began = time.perf_counter()
    for _ in itertools.islice(batches.from_step(0, 1), batches.steps_per_epoch):
        pass
    return {
        "batches_per_s": batches.steps_per_epoch / (time.perf_counter() - began),
        "epoch_peak_gb": _peak_gb(),
        "tensorflow_alone_gb": before,
    }


def _measure_input(file: Path, folder: Path) -> dict[str, Any]:
    """Measure how many pairs a second the input thread makes on one core, and how many GPUs it feeds.

    A row for each number of towers and of pairs in a share: planned_and_padded_per_s, pairs a second of `from_step`;
    prefetched_per_s, those of batches with all that a step needs, whose consumer has the same core; gpus_fed, the
    latter by GPU_PAIRS_PER_S.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.dataset import training_set
    from chatbot.corpus.workers import prefetched
    from chatbot.model.new_model import built_model
    from chatbot.training.share import Preparation

    settings = _settings(file, folder)
    shards = dataclasses.replace(
        training_set(settings.corpus, settings.encoding).shards, max_length=settings.model.max_length
    )
    small = dataclasses.replace(settings.model, rnn_size=2, embedding_size=1)  # only its layout of batches matters
    model = built_model(small, settings.encoding.vocabulary_size, settings.learning.seed)
    rows = []
    for towers, batch_size in itertools.product((1, 8), (64, 256, 1024)):
        batches = Batches(shards, towers * batch_size, settings.learning.seed)
        steps = max(3, min(INPUT_PAIRS // (towers * batch_size), batches.steps_per_epoch - 1))
        alone = _pairs_per_s(batches.from_step(0, towers), steps)
        prepare = Preparation(model, settings.learning.seed, ["/CPU:0"] * towers)
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


def _measure_input_wait(file: Path, folder: Path) -> dict[str, Any]:
    """Run train.py at default sizes and read the share of the time that steps waited for their batch."""
    command = [sys.executable, str(ROOT / "train.py"), "--data", str(file), "--cache", str(folder / "cache")]
    options = ["--steps", str(TRAINING_STEPS), "--save-every", str(TRAINING_STEPS), "--attempt", "input"]
    with tempfile.TemporaryDirectory(prefix="training-") as work:
        subprocess.run([*command, *options], cwd=work, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = Path(work, "checkpoints/input/metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["step"] > WARM_UP_STEPS]
    return {name: statistics.median(r[name] for r in records) for name in ("input_wait", "examples_per_s")}


def _measure_padding(file: Path, folder: Path) -> dict[str, Any]:
    """Return the share of target positions that are real tokens: in buckets, and padded to a single length."""
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.dataset import training_set

    settings = _settings(file, folder, max_length=20)
    shards = dataclasses.replace(
        training_set(settings.corpus, settings.encoding).shards, max_length=settings.model.max_length
    )
    batches = Batches(shards, settings.learning.batch_size, settings.learning.seed)
    real = sum(int((pairs.targets.lengths + 1).sum()) for pairs in shards)
    pairs = sum(map(len, shards))
    positions = sum(bucket.pairs * bucket.shape[1] for bucket in batches.buckets)
    return {
        "shapes": len(batches.buckets),
        "real_target_share": real / positions,
        "real_target_share_of_one_shape": real / (pairs * settings.model.max_length),
    }

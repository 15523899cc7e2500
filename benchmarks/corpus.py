"""How fast a corpus is encoded, how soon a second run starts, what memory that takes, whether input is waited for."""

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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.generated import write_corpus
from chatbot.flags import check_fields, compose, parse_flags, setting

# The loop to be compared with is timed on so many pairs at most: its rate does not change with more.
BARE_PAIRS = 1_100_000
TRAINING_STEPS, WARM_UP = 300, 100
ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class CorpusBenchmark:
    """What python -m benchmarks corpus is told."""

    pairs: int = setting(1_100_000, "corpus", "pairs of the generated corpus", kind=int, least=1)
    data: str | None = setting(None, "corpus", "real pairs to measure padding on, at --max-length 20", metavar="FILE")
    folder: str | None = setting(
        None, "corpus", "where corpus and cache are written and stay; default: a temporary folder", metavar="FOLDER"
    )
    training: bool = setting(
        True, "corpus", "train for a few hundred steps to see how long input is waited for", kind=bool
    )

    def __post_init__(self) -> None:
        check_fields(self)


def corpus_benchmark(arguments: Sequence[str]) -> int:
    """Run all parts, each in a process of its own, and print one JSON object."""
    about = "Measure the way from a file of pairs to batches on a generated corpus."
    settings = CorpusBenchmark(**parse_flags(CorpusBenchmark, "-m benchmarks corpus", about, arguments))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(settings.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{settings.pairs}.tsv"
        if not file.exists():
            _say(f"Writing {settings.pairs:,} pairs ...")
            write_corpus(file, settings.pairs)
        found: dict[str, Any] = {"pairs": settings.pairs, "bytes": file.stat().st_size, "cores": _cores()}
        _say("A bare loop of jieba.lcut ...")
        found |= _apart(_bare, file)
        _say("The first encode ...")
        found |= _apart(_encode, file, folder)
        found["speedup"] = found["pairs_per_s"] / found["bare_pairs_per_s"]
        _say("The second start ...")
        found |= _apart(_second_start, file, folder)
        _say("An epoch's batches ...")
        found |= _apart(_epoch, file, folder)
        if settings.training:
            _say("Training ...")
            found |= _train(file, folder)
        if settings.data is not None:
            found |= _apart(_padding, Path(settings.data), folder)
    print(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _apart(part: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What a part of the benchmark found in a process of its own, so that memory is its own, too."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(part, *arguments).result()


def _peak_gb(workers: int = 0) -> float:
    """The most memory this process held, and so many workers if each held what the largest of them did."""
    own, largest_child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + workers * largest_child) * 1024 / 1e9


def _bare(file: Path) -> dict[str, Any]:
    """One process, jieba as it comes, texts already in memory, the words thrown away."""
    import jieba

    jieba.initialize()
    with file.open(encoding="utf-8") as lines:
        texts = [text for line in itertools.islice(lines, BARE_PAIRS) for text in line.rstrip("\n").split("\t")]
    began = time.perf_counter()
    for text in texts:
        jieba.lcut(text)
    seconds = time.perf_counter() - began
    return {"bare_seconds": seconds, "bare_pairs_per_s": len(texts) / 2 / seconds}


def _settings(file: Path, folder: Path, **changes: Any) -> Any:
    from chatbot.config.training import Settings

    return compose(Settings, data=(str(file),), cache=str(folder / "cache"), **changes)


def _encode(file: Path, folder: Path) -> dict[str, Any]:
    """Everything from the file to shards on disk: reading, cleaning, jieba, vocabulary, ids."""
    import shutil

    from chatbot.corpus.training_set import training_set

    shutil.rmtree(folder / "cache", ignore_errors=True)
    settings = _settings(file, folder)
    began = time.perf_counter()
    corpus = training_set(settings.corpus, settings.encoding)
    seconds = time.perf_counter() - began
    return {
        "encode_seconds": seconds,
        "pairs_per_s": corpus.reports[0].pairs / seconds,
        "encode_peak_gb": _peak_gb(_cores()),
    }


def _second_start(file: Path, folder: Path) -> dict[str, Any]:
    """From the settings to the first batch, TensorFlow's import aside."""
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    from chatbot.corpus.batching.batches import Batches
    from chatbot.training.data import prepare

    began = time.perf_counter()
    settings = _settings(file, folder)
    os.chdir(folder)
    data = prepare(settings)
    next(Batches(data.training, settings.learning.batch_size, settings.learning.seed).prefetched(0, 1))
    return {"second_start_seconds": time.perf_counter() - began}


def _epoch(file: Path, folder: Path) -> dict[str, Any]:
    """All batches of an epoch, as fast as they come."""
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    before = _peak_gb()
    from chatbot.corpus.batching.batches import Batches
    from chatbot.corpus.training_set import training_set

    settings = _settings(file, folder)
    shards = dataclasses.replace(
        training_set(settings.corpus, settings.encoding).shards, max_length=settings.model.max_length
    )
    batches = Batches(shards, settings.learning.batch_size, settings.learning.seed)
    began = time.perf_counter()
    for _ in itertools.islice(batches.prefetched(0, 1), batches.steps_per_epoch):
        pass
    return {
        "batches_per_s": batches.steps_per_epoch / (time.perf_counter() - began),
        "epoch_peak_gb": _peak_gb(),
        "tensorflow_alone_gb": before,
    }


def _train(file: Path, folder: Path) -> dict[str, Any]:
    """The real command at default sizes; the share of the time that steps waited for their batch."""
    command = [sys.executable, str(ROOT / "train.py"), "--data", str(file), "--cache", str(folder / "cache")]
    options = ["--steps", str(TRAINING_STEPS), "--save-every", str(TRAINING_STEPS), "--attempt", "input"]
    with tempfile.TemporaryDirectory(prefix="training-") as place:
        subprocess.run(
            [*command, *options], cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        lines = Path(place, "checkpoints/input/metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["step"] > WARM_UP]
    return {name: statistics.median(r[name] for r in records) for name in ("input_wait", "examples_per_s")}


def _padding(file: Path, folder: Path) -> dict[str, Any]:
    """The share of target positions that are real tokens, in batches and if all were padded to one length."""
    from chatbot.corpus.batching.batches import Batches
    from chatbot.corpus.training_set import training_set

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

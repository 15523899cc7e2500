"""Time and memory of planning the batches of a large corpus, by generated lengths without any text."""

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.resident_memory import peak_gb
from benchmarks.synthetic import LONGEST, MEDIAN, SPREAD
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import NO_PAIRS, SOURCE, TARGET, Lengths
from chatbot.corpus.shards import Shards, shards_needed
from chatbot.quiet import import_tensorflow

# The shards that are generated; the others are links to them. Planning reads each of the links like a file of its own.
DISTINCT_SHARDS = 4


def measure_planning(pairs: int) -> dict[str, Any]:
    """Plan an epoch of about this many pairs, at the default settings.

    plan_first_batch_s: seconds from the shards to the first batch of an epoch, without its ids. plan_resume_s: the same
    for a run that is resumed before the last step of an epoch, the worst case. plan_added_gb: the memory of both beyond
    that of TensorFlow.
    """
    import_tensorflow()
    from chatbot.corpus.batches import Batches

    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="planning-") as folder:
        shards = generated_shards(Path(folder), pairs, settings.model.max_length)
        before, began = peak_gb(), time.perf_counter()
        batches = Batches(shards, settings.learning.batch_size, settings.learning.seed)
        next(batches.plan(0))
        first = time.perf_counter()
        next(batches.plan(0, batches.steps_per_epoch - 1))
        resumed = time.perf_counter()
    return {
        "plan_pairs": batches.pairs,
        "plan_shards": len(shards),
        "plan_first_batch_s": first - began,
        "plan_resume_s": resumed - first,
        "plan_added_gb": peak_gb() - before,
    }


def generated_shards(folder: Path, pairs: int, max_length: int | None) -> Shards:
    """Write shards of pairs with the lengths of real chat into a folder. All ids are 0, in files without disk blocks.

    pairs: before those longer than max_length are left out; rounded down to shards of one size.
    """
    rng, number, lengths = np.random.default_rng(1), shards_needed(pairs), NO_PAIRS
    for shard in range(min(DISTINCT_SHARDS, number)):
        sides = np.exp(rng.normal(np.log(MEDIAN), SPREAD, (pairs // number, 2))).astype(np.uint32).clip(1, LONGEST)
        characters = 2 * sides[:, TARGET, None]
        np.concatenate([sides, characters], axis=1, dtype=np.uint32).tofile(folder / f"{shard:05}.lengths")
        with (folder / f"{shard:05}.tokens").open("wb") as tokens:
            tokens.truncate(int(sides.sum()) * np.dtype(np.uint16).itemsize)
        of_shard = Lengths.of(np.stack([sides[:, SOURCE], sides[:, TARGET] + 1]))
        copies = range(shard, number, DISTINCT_SHARDS)
        lengths += Lengths(of_shard.sides, of_shard.counts * len(copies))
        for copy, name in itertools.product(copies[1:], ("tokens", "lengths")):
            (folder / f"{copy:05}.{name}").symlink_to(f"{shard:05}.{name}")
    return Shards(folder, number, "uint16", lengths, max_length)

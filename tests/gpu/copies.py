"""The copies between host and GPUs in training steps on stand-ins."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.training.devices.towers import Tower
from chatbot.training.selftest import random_pairs
from chatbot.training.share import copy_to_device
from chatbot.training.update import open_update
from tests.gpu import standin
from tests.gpu.comparisons import ADAM, new_model
from tests.model.small_transformer import TRANSFORMER

GPUS, PAIRS = 2, 19
FIRST_STEPS, COUNTED_STEPS = 2, 3
VOCABULARY = 3000  # so large that the embedding has many times the bytes of a batch
# All different, as those of a schedule are: TensorFlow keeps the tensors of scalars that it has seen.
RATES = (0.01 + 1e-5 * i for i in itertools.count())

DROPOUT = replace(ADAM, num_layers=1, keep_prob=0.8, variable_update="parameter_server")
KINDS = {
    "float32": (replace(DROPOUT, label_smoothing=0.1), "float32"),
    "float16": (replace(DROPOUT, cell="gru"), "float16"),
    "copy and n-grams": (replace(DROPOUT, copy=True, ngrams=3), "float32"),
    "transformer": (replace(DROPOUT, **TRANSFORMER), "float32"),
}
# Settings, precision and the number of GPUs.
CASES: dict[str, tuple[Settings, str, int]] = {
    **{f"{GPUS}, {name}": (*kind, GPUS) for name, kind in KINDS.items()},
    "1, float32": (*KINDS["float32"], 1),
    "1, staged": (replace(DROPOUT, staged_variables=True), "float32", 1),
    f"{GPUS}, replicated": (replace(DROPOUT, variable_update="replicated"), "float32", GPUS),
}


class Copies(NamedTuple):
    """What each GPU copies in COUNTED_STEPS steps, and the weights after all steps."""

    counts: list[standin.Counts]
    weights: list[npt.NDArray[np.float32]]
    embedding_bytes: int


def copies(settings: Settings, precision: str, gpus: int) -> Copies:
    """Train, and count from the preparation of a batch on, until the GPUs are idle and before a result is read."""
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "stand-in", None) for i in range(gpus)]
    model = new_model(settings, towers[0], precision, VOCABULARY)
    update = open_update(model, settings, towers)
    batches = Batches([random_pairs(PAIRS, 1)], PAIRS, 1).from_step(0, gpus)
    before: list[standin.Counts] = []
    for number, batch in enumerate(itertools.islice(batches, FIRST_STEPS + COUNTED_STEPS)):
        if number == FIRST_STEPS:  # traced
            tf.test.experimental.sync_devices()
            before = [standin.counts(gpu) for gpu in range(gpus)]
        update(update.prepare(batch, number), next(RATES))
    tf.test.experimental.sync_devices()
    counts = [standin.counts(gpu).since(earlier) for gpu, earlier in enumerate(before)]
    update.gather_state()
    weights = [variable.numpy() for variable in model.trainable_variables]
    return Copies(counts, weights, model.embedding.embeddings.numpy().nbytes)


def all_copies() -> dict[str, Copies]:
    """Return the copies of each case."""
    return {name: copies(*case) for name, case in CASES.items()}


def all_deterministic_copies() -> dict[str, Copies]:
    """Return the copies of each case with deterministic operations."""
    tf.config.experimental.enable_op_determinism()
    return all_copies()


def copies_in_threads() -> list[str]:
    """Return the types of the arrays that differ from their copies, of many that eight threads make at once."""

    def differing(thread: int) -> list[str]:
        random, found = np.random.default_rng(thread), list[str]()
        for _ in range(500):
            size = random.integers(5, 30)
            arrays = [random.integers(1000, size=size).astype(kind) for kind in (np.int32, np.int64, np.float64)]
            found += [
                str(array.dtype)
                for array, copy in zip(arrays, copy_to_device(arrays, "/GPU:0"), strict=True)
                if not np.array_equal(array, copy.numpy())
            ]
        return found

    sys.setswitchinterval(1e-5)  # seconds
    with ThreadPoolExecutor(8) as pool:
        return list(itertools.chain.from_iterable(pool.map(differing, range(8))))

"""Training steps on a GPU that are compared with each other."""

import contextlib
import io
import itertools
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.corpus.batches import Batches, GlobalBatch
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.corpus.workers import prefetched
from chatbot.flags import replace
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.metrics import Window
from chatbot.training.selftest import ALWAYS_CLIPPED, CASES, VOCABULARY, random_pairs, train_model
from chatbot.training.update import open_update
from tests.gpu import standin
from tests.gpu.comparisons import ADAM, new_model, weights_after_training
from tests.gpu.process import first_gpu

# The memory of the smaller device, in megabytes. It holds a batch of LARGE only in pieces: a tensor with a vector for
# each token has 77 MB on a real GPU, and 3 MB on a stand-in, which computes slowly. The other device holds it whole.
REAL = standin.LIBRARY not in os.environ and first_gpu() is not None
SMALL_MEMORY, LARGE_MEMORY = (512, 6144) if REAL else (32, 512)
UNITS, PAIRS = (256, 1500) if REAL else (48, 300)
LARGE = replace(CASES["SGD"], max_gradient_norm=ALWAYS_CLIPPED, rnn_size=UNITS, embedding_size=UNITS, batch_size=PAIRS)
TOKENS = 49  # of each question and reply
# The ways to train on several GPUs, and their settings.
CLIPPED = CASES["Adam with clipping"]
WAYS: dict[str, dict[str, Any]] = {
    "variables on a GPU": {"variable_update": "parameter_server"},
    "variables on the CPU": {"local_parameter_device": "cpu"},
    "copies, nccl": {"all_reduce": "nccl"},
    "copies, hierarchical": {"all_reduce": "hierarchical"},
    "copies, one device": {"all_reduce": "one_device"},
    "independent copies": {"variable_update": "independent"},
    "staged variables on a GPU": {"variable_update": "parameter_server", "staged_variables": True},
    "staged copies": {"staged_variables": True},
    "accumulated": {"batch_size": 10, "accumulate": 2},
    "model parallel": {"model_parallel": True},
}


def deterministic(tower: Tower) -> list[dict[str, Any]]:
    """Train twice with deterministic operations; return the weights of both."""
    tf.config.experimental.enable_op_determinism()
    settings = replace(ADAM, keep_prob=0.8)
    return [weights_after_training(settings, tower) for _ in range(2)]


def weights_of_all_ways() -> dict[str, list[np.ndarray]]:
    """Return the weights after ten steps on four stand-in GPUs, for each of WAYS."""
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "stand-in", None) for i in range(4)]
    return {
        name: train_model(
            replace(CLIPPED, **way), spread(towers) if "model_parallel" in way else towers, random_pairs(67, 1)
        )[0]
        for name, way in WAYS.items()
    }


def float16() -> list[dict[str, Any]]:
    """Train in float16 on one stand-in GPU, then on two; a pair of the second batch of three overflows.

    Return of each run the outcomes of the steps, the state of the loss scale, the weights, and the copies to the host.
    """
    settings, found = replace(CASES["SGD"], variable_update="parameter_server"), []
    for gpus in (1, 2):
        towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "stand-in", None) for i in range(gpus)]
        first, bad, third = itertools.islice(Batches([random_pairs(57, 1)], 19, 1).from_step(0, gpus), 3)
        *shares, last = bad.shares
        large = np.where(np.arange(len(last.weights))[:, None] == 0, np.float32(1e30), 1)
        bad = bad._replace(shares=(*shares, last._replace(weights=large * last.weights)))
        model = new_model(settings, towers[0], "float16")
        update = open_update(model, settings, towers)
        prepared = [update.prepare(batch, number) for number, batch in enumerate((first, bad, third))]
        update(prepared[0], 0.1)
        before = [standin.counts(gpu) for gpu in range(gpus)]
        for batch in prepared[1:]:
            update(batch, 0.1)
        copies = [standin.counts(gpu).since(before[gpu]).device_to_host for gpu in range(gpus)]
        (loss_scale,) = update.gather_state().loss_scale
        outcomes = [(result.finite, result.overflow) for result in update.finished_steps()]
        weights = [variable.numpy() for variable in model.trainable_variables]
        found.append({"outcomes": outcomes, "loss_scale": loss_scale.tolist(), "weights": weights, "copies": copies})
    return found


def out_of_memory(*towers: Tower) -> list[dict[str, Any]]:
    """Train three steps of LARGE on each device; return pieces, messages, losses and weights of each."""
    rng = np.random.default_rng(1)
    sources, targets = (
        Ragged.from_rows(rng.integers(len(SPECIALS), VOCABULARY, (LARGE.learning.batch_size, TOKENS)).tolist())
        for _ in range(2)
    )
    pairs = EncodedPairs.question_to_answer(sources, targets, targets.lengths)
    found = []
    for tower in towers:
        model = new_model(LARGE, tower)
        update = open_update(model, LARGE, [tower])
        batches = Batches([pairs], LARGE.learning.batch_size, 1).from_step(0, 1)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for number, batch in enumerate(itertools.islice(batches, 3)):
                update(update.prepare(batch, number), LARGE.learning.learning_rate)
        losses = [float(result.loss_sums.sum()) for result in update.finished_steps()]
        update.gather_state()
        found.append(
            {
                "positions": update.memory.most_positions,
                "messages": printed.getvalue().count("now split into pieces"),
                "losses": losses,
                "weights": [variable.numpy() for variable in model.trainable_variables],
            }
        )
    return found


def overlapping() -> dict[str, float]:
    """Return the seconds of the same steps: of the GPU alone, and with a host that takes as long for each batch."""
    tower, pairs, count = Tower("gpu_0", "/GPU:0", "stand-in", None), random_pairs(400, 1), 20
    settings = replace(ADAM, batch_size=10)
    update = open_update(new_model(settings, tower), settings, [tower])
    batches = itertools.islice(Batches([pairs], 10, 1).from_step(0, 1), 2 * count)

    def seconds(prepare: Any) -> float:
        numbered = zip(itertools.islice(batches, count), itertools.count())
        with contextlib.closing(Window(prefetched(numbered, prepare), update.begin_copies)) as window:
            update(window.next_batch(), 0.01)
            update.finished_steps()
            began = time.perf_counter()
            for _ in range(count - 1):
                update(window.next_batch(), 0.01)
            update.finished_steps()
            return time.perf_counter() - began

    alone = seconds(update.prepare)

    def slowly(batch: GlobalBatch, number: int) -> Any:
        time.sleep(alone / count)
        return update.prepare(batch, number)

    return {"alone": alone, "together": seconds(slowly)}

"""The precision of matrix products: requested, stored in the attempt, or chosen by a measurement on this device."""

import contextlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.cache import key_of
from chatbot.model.matmul import matmul
from chatbot.training.attempt import has_checkpoint, write_json
from chatbot.training.devices import cpu_name

AUTO = "auto"
# bfloat16 must be faster by this factor to make up for its rounding. Products are about half of a step, so that a
# smaller factor saves less than a tenth of a run's time.
LEAST_GAIN = 1.2
# The measurement ends after this many rounds, or after so many seconds and at least LEAST_ROUNDS. On two busy cores the
# ratio of a single round varies by a factor of two.
ROUNDS, LEAST_ROUNDS, SECONDS = 31, 7, 3.0
# The assumed number of target tokens per pair, for the size of the measured products.
TOKENS = 8


def chosen_precision(settings: Settings, vocabulary_size: int, device: str) -> str:
    """Return "float32", "bfloat16" or "float16", and print it if it was measured.

    A resumed attempt keeps its precision, so that it continues bit for bit.
    """
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    before = (
        stored_settings(settings.run.directory / "config.json").learning.precision if has_checkpoint(settings) else AUTO
    )
    if before != AUTO:
        return before
    if settings.parallel.asynchronous:  # the workers' devices cannot be measured from here
        return "float32"
    gain = _stored_gain(settings, vocabulary_size, device)
    precision = "bfloat16" if gain >= LEAST_GAIN else "float32"
    print(
        f"Precision: {precision}; on this device, bfloat16 products of this model's sizes take {1 / gain:.0%} of the "
        "time of float32 (--precision to choose)."
    )
    return precision


def _stored_gain(settings: Settings, vocabulary_size: int, device: str) -> float:
    """Return `gain_of_bfloat16`, measured once for each machine, TensorFlow version and sizes of the products.

    A measurement varies, and a run that is repeated keeps its precision. It is stored in the cache folder; without
    permission to write there, each run measures.
    """
    conditions = {
        "device": _hardware(device),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "tensorflow": tf.__version__,
        "products": _products(settings, vocabulary_size),
    }
    path = Path(settings.corpus.cache) / f"precision-{key_of(**conditions)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # absent or damaged
        return float(json.loads(path.read_text(encoding="utf-8"))["gain"])
    gain = gain_of_bfloat16(settings, vocabulary_size, device)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**conditions, "gain": gain})
    return gain


def _hardware(device: str) -> str:
    """Return the name of the hardware of a logical device."""
    if "GPU" not in device:
        return cpu_name()
    gpus: list[Any] = tf.config.list_physical_devices("GPU")
    gpu = gpus[min(int(device.rpartition(":")[2]), len(gpus) - 1)]  # a split GPU has several logical devices
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def _products(settings: Settings, vocabulary_size: int) -> list[list[int]]:
    """Return the sizes [m, k, n] of the model's largest products."""
    units = settings.model.rnn_size // 2 if settings.model.bidirectional else settings.model.rnn_size
    rows = settings.learning.batch_size * TOKENS
    return [[rows, settings.model.embedding_size, vocabulary_size], [rows, units, 4 * units]]


def gain_of_bfloat16(settings: Settings, vocabulary_size: int, device: str) -> float:
    """Measure the time of the model's largest products in float32 over that in bfloat16, rounding included.

    Both alternate, and the result is the median of the ratios, so that other work on the machine affects both alike.
    """
    with tf.device(device):
        factors = [(tf.ones([m, k]), tf.ones([k, n])) for m, k, n in _products(settings, vocabulary_size)]

        def timed(precision: str) -> float:
            started = time.perf_counter()
            for a, b in factors:
                matmul(a, b, precision)[0, 0].numpy()
            return time.perf_counter() - started

        for precision in ("float32", "bfloat16"):
            timed(precision)  # kernels are compiled at their first call
        ratios: list[float] = []
        started = time.perf_counter()
        while len(ratios) < LEAST_ROUNDS or (len(ratios) < ROUNDS and time.perf_counter() - started < SECONDS):
            ratios.append(timed("float32") / timed("bfloat16"))
    return statistics.median(ratios)

"""The precision of matrix products: requested, stored in the attempt, or chosen by a measurement on this device."""

import time

import tensorflow as tf

from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.model.matmul import matmul
from chatbot.training.attempt import has_checkpoint

AUTO = "auto"
# bfloat16 must be faster by this factor to make up for its rounding.
LEAST_GAIN = 1.2
ROUNDS = 5
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
    gain = gain_of_bfloat16(settings, vocabulary_size, device)
    precision = "bfloat16" if gain >= LEAST_GAIN else "float32"
    print(
        f"Precision: {precision}; on this device, bfloat16 products of this model's sizes take {1 / gain:.0%} of the "
        "time of float32 (--precision to choose)."
    )
    return precision


def gain_of_bfloat16(settings: Settings, vocabulary_size: int, device: str) -> float:
    """Measure the time of the model's largest products in float32 over that in bfloat16, rounding included."""
    units = settings.model.rnn_size // 2 if settings.model.bidirectional else settings.model.rnn_size
    rows = settings.learning.batch_size * TOKENS
    shapes = [(rows, settings.model.embedding_size, vocabulary_size), (rows, units, 4 * units)]
    with tf.device(device):
        factors = [(tf.ones([m, k]), tf.ones([k, n])) for m, k, n in shapes]

        def timed(precision: str) -> float:
            started = time.perf_counter()
            for a, b in factors:
                matmul(a, b, precision)[0, 0].numpy()
            return time.perf_counter() - started

        for precision in ("float32", "bfloat16"):
            timed(precision)  # kernels are compiled at their first call
        times = [(timed("float32"), timed("bfloat16")) for _ in range(ROUNDS)]
    full, half = (min(column) for column in zip(*times, strict=True))
    return full / half

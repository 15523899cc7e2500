"""Which precision matrix products get: asked for, as the attempt has it already, or what this device is faster at."""

import time

import tensorflow as tf

from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.model.product import product
from chatbot.training.attempt import is_begun

AUTO = "auto"
# bfloat16 must be worth its rounding.
LEAST_GAIN = 1.2
ROUNDS = 5
# Target tokens of a pair, about; what the looked-at products need not know better.
TOKENS = 8


def chosen_precision(settings: Settings, vocabulary_size: int, device: str) -> str:
    """float32, bfloat16 or float16; where that is found by looking, it is said.

    An attempt that is resumed keeps the one it has, so that it goes on to the bit.
    """
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    before = stored_settings(settings.run.directory / "config.json").learning.precision if is_begun(settings) else AUTO
    if before != AUTO:
        return before
    if settings.parallel.asynchronous:  # the workers are elsewhere: their devices cannot be looked at
        return "float32"
    gain = gain_of_bfloat16(settings, vocabulary_size, device)
    precision = "bfloat16" if gain >= LEAST_GAIN else "float32"
    print(
        f"Precision: {precision}; in bfloat16, products of this model's sizes take {1 / gain:.0%} of float32's time "
        "here (--precision chooses)."
    )
    return precision


def gain_of_bfloat16(settings: Settings, vocabulary_size: int, device: str) -> float:
    """How many times faster this device makes the model's largest products in bfloat16, rounding included."""
    units = settings.model.rnn_size // 2 if settings.model.bidirectional else settings.model.rnn_size
    rows = settings.learning.batch_size * TOKENS
    shapes = [(rows, settings.model.embedding_size, vocabulary_size), (rows, units, 4 * units)]
    with tf.device(device):
        factors = [(tf.ones([m, k]), tf.ones([k, n])) for m, k, n in shapes]

        def timed(precision: str) -> float:
            began = time.perf_counter()
            for a, b in factors:
                product(a, b, precision)[0, 0].numpy()
            return time.perf_counter() - began

        for precision in ("float32", "bfloat16"):
            timed(precision)  # kernels are made at their first call
        times = [(timed("float32"), timed("bfloat16")) for _ in range(ROUNDS)]
    full, half = (min(column) for column in zip(*times, strict=True))
    return full / half

"""Where a training step's time goes, beside what its matrix products alone would take on this machine.

Each part of the step is run by itself on batches as they come, forwards and backwards; its products are run by
themselves, too, in the same shapes and precision. What is left of the step is overhead: ours, and TensorFlow's.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import PAD
from chatbot.model.matmul import rounded
from chatbot.model.packing import pack, packing_of
from chatbot.model.recurrent import Stack
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.variable_update.replica import Replica

ROUNDS = 7
REPEATED = 9


@dataclasses.dataclass(frozen=True)
class Product:
    """So many products a step of [m, k] by [k, n]; the same shapes turned around count as theirs."""

    part: str
    m: int
    k: int
    n: int
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n * self.times


def products_of(settings: Settings, vocabulary: int, share: Sequence[tf.Tensor]) -> list[Product]:
    """Of a step, forwards and backwards, on real tokens only.

    An LSTM's products with its own state are so many as there are steps, with as many rows as go on on average.
    """
    source, target_in, _, weights = share
    units, width = settings.model.rnn_size, settings.model.embedding_size
    found = []
    for ids in (source, target_in):
        lengths = tf.math.count_nonzero(ids != PAD, axis=1).numpy()
        tokens, steps = int(lengths.sum()), int(lengths.max())
        for layer in range(settings.model.num_layers):
            inputs = width if layer == 0 else units
            found += [Product("recurrent", tokens, inputs, 4 * units, 3)]  # forwards; to inputs; to weights
            found += [Product("recurrent", round(tokens / steps), units, 4 * units, 2 * steps)]
            found += [Product("recurrent", units, tokens, 4 * units)]
    sources, targets = (int(tf.math.count_nonzero(ids != PAD)) for ids in (source, target_in))
    found += [Product("attention", sources, units, units, 3), Product("attention", targets, 2 * units, width, 3)]
    found += [Product("projection", int(tf.math.count_nonzero(weights)), width, vocabulary, 3)]
    return found


def seconds_of(products: Sequence[Product], precision: str) -> float:
    """Of these products one after another, each at the rate of its shape."""

    @tf.function(autograph=False)
    def repeated(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """In one call, so that Python is no part of it."""

        def again(i: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.matmul(a, b)

        return tf.while_loop(lambda i, _: i < REPEATED, again, (0, tf.matmul(a, b)), parallel_iterations=1)[1]

    total = 0.0
    for each in products:
        a, b = (rounded(tf.random.normal(shape), precision) for shape in ([each.m, each.k], [each.k, each.n]))
        total += each.times * _median(functools.partial(repeated, a, b)) / (REPEATED + 1)
    return total


def seconds_of_parts(model: Seq2Seq, share: Sequence[tf.Tensor]) -> dict[str, float]:
    """Recurrent, attention, and projection with loss, each forwards and backwards by itself."""
    source, target_in, target_out, weights = share
    mask, target_mask = tf.not_equal(source, PAD), tf.not_equal(target_in, PAD)
    variables = [v.value for v in model.trainable_variables]

    def timed(function: Callable[..., Any], *inputs: tf.Tensor) -> float:
        @tf.function(autograph=False)
        def both(*inputs: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = function(*inputs)
            return tape.gradient(outputs, [list(inputs), variables])

        return _median(lambda: both(*inputs))

    def stack(stack: Stack, mask: tf.Tensor) -> Callable[[tf.Tensor], Any]:
        return lambda x: stack(x, None, mask, None)[0]

    memory, _ = model.encoder(model.embedding(source), mask, None)
    outputs, _ = model.decoder.stack(model.embedding(target_in), None, target_mask, None, last=False)
    real = packing_of(target_mask)

    def attend(memory: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        state = model.decoder.start(memory, mask, [])
        return model.decoder.combined(pack(model.decoder.with_context(outputs, state), real))

    targets, ones = pack(target_out, real), pack(weights, real)
    return {
        "recurrent": timed(stack(model.encoder.forward, mask), model.embedding(source))
        + timed(stack(model.decoder.stack, target_mask), model.embedding(target_in)),
        "attention": timed(attend, memory, outputs),
        "projection": timed(lambda attended: model.summed_loss(attended, targets, ones), attend(memory, outputs)),
    }


def seconds_of_update(model: Seq2Seq, settings: Settings) -> float:
    """Averaging, clipping and the update rule, on gradients that are there."""
    replica = Replica(model, settings.learning.optimizer, settings.learning.max_gradient_norm)
    gradients = [tf.ones_like(weight) for weight in replica.weights]
    update = tf.function(lambda sums: replica.apply(sums, tf.constant(1.0), tf.constant(0.0)), autograph=False)
    return _median(lambda: update(gradients))


def _median(run: Callable[[], Any]) -> float:
    """Seconds of a call, the first ones left out."""
    for _ in range(3):
        run()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()  # returns when it is done, on the CPU
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def table(rows: Sequence[tuple[str, float, float]]) -> str:
    """rows: a part, its seconds in a step, those of its products alone."""
    whole = sum(seconds for _, seconds, _ in rows)
    lines = [f"{'part':>12}  ms a step   share  products alone, ms"]
    for name, seconds, least in rows:
        products = f"{1e3 * least:19.1f}" if least else " " * 19
        lines.append(f"{name:>12}  {1e3 * seconds:9.1f}  {seconds / whole:6.1%}  {products}")
    return "\n".join(lines)

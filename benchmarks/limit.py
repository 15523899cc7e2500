"""Where the time of a training step goes, and the least time that its matrix products need on this machine.

Each part of the step is timed alone on real batches, forwards and backwards. Its matrix products are also timed alone,
in the same shapes and precision. The rest of the step's time is overhead of this project and of TensorFlow.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batch
from chatbot.corpus.vocabulary import PAD
from chatbot.model.decoder import Decoded
from chatbot.model.operations import matmul, rounded
from chatbot.model.recurrent import Stack
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences
from chatbot.training.groups import groups_of
from chatbot.training.replica import Replica
from chatbot.training.share import Share

ROUNDS = 7
REPEATED = 9


@dataclasses.dataclass(frozen=True)
class Product:
    """The products of one shape in a step: [m, k] by [k, n], computed `times` times, with or without transposition."""

    part: str
    m: int
    k: int
    n: int
    times: int = 1


def products_of(settings: Settings, vocabulary: int, batch: Batch) -> list[Product]:
    """Return the matrix products of a step, forwards and backwards, on real tokens only.

    An LSTM multiplies its state once a time step; the rows of that product are the mean number of unfinished sequences.
    """
    units, width = settings.model.rnn_size, settings.model.embedding_size
    products = []
    for ids in (batch.source, batch.target_in):
        lengths = np.count_nonzero(ids != PAD, axis=1)
        tokens, steps = int(lengths.sum()), int(lengths.max())
        for layer in range(settings.model.num_layers):
            inputs = width if layer == 0 else units
            # Products with the inputs: forwards, gradient of the inputs, gradient of the weights.
            products += [Product("recurrent", tokens, inputs, 4 * units, 3)]
            # Products with the state: forwards and its gradient once a time step, gradient of the weights once.
            products += [Product("recurrent", round(tokens / steps), units, 4 * units, 2 * steps)]
            products += [Product("recurrent", units, tokens, 4 * units)]
    sources, targets = (int(np.count_nonzero(ids != PAD)) for ids in (batch.source, batch.target_in))
    products += [Product("attention", sources, units, units, 3), Product("attention", targets, 2 * units, width, 3)]
    products += [Product("projection", int(np.count_nonzero(batch.weights)), width, vocabulary, 3)]
    return products


def seconds_of_products(settings: Settings, vocabulary: int, batch: Batch, precision: str) -> dict[str, float]:
    """Return the time of the products of a step by part, computed one after another, in seconds."""

    @tf.function(autograph=False)
    def repeated(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """Repeat the product inside one graph, so that the time of Python is not measured."""

        def again(i: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.matmul(a, b)

        return tf.while_loop(lambda i, _: i < REPEATED, again, (0, tf.matmul(a, b)), parallel_iterations=1)[1]

    seconds: dict[str, float] = {}
    for each in products_of(settings, vocabulary, batch):
        a, b = (rounded(tf.random.normal(shape), precision) for shape in ([each.m, each.k], [each.k, each.n]))
        once = _median_seconds(functools.partial(repeated, a, b)) / (REPEATED + 1)
        seconds[each.part] = seconds.get(each.part, 0.0) + each.times * once
    return seconds


def seconds_of_parts(model: Seq2Seq, share: Share) -> dict[str, float]:
    """Return the time of each part alone, forwards and backwards, in seconds.

    The loss is computed in chunks together with the projection. Its time is the time of both less the time of the
    projection; on small models this difference may be below 0.
    """
    source, target_in = share.source, share.target_in
    variables = [v.value for v in model.trainable_variables]

    def timed(function: Callable[..., Any], *inputs: tf.Tensor) -> float:
        @tf.function(autograph=False)
        def forwards_and_backwards(*inputs: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = function(*inputs)
            return tape.gradient(outputs, [list(inputs), variables])

        return _median_seconds(lambda: forwards_and_backwards(*inputs))

    def run(stack: Stack, sequences: Sequences, last: bool, inputs: tf.Tensor) -> tf.Tensor:
        zeros = stack.zero_states(tf.size(sequences.packing.lengths), inputs.dtype)
        return stack(inputs, zeros, sequences, None, last=last)[0]

    memory, _ = model.encoder(model.embed(source.ids), source, None)
    encode = functools.partial(run, model.encoder.forward, source, True)
    decode = functools.partial(run, model.decoder.stack, target_in, False)
    outputs = decode(model.embed(target_in.ids))

    def attend(memory: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return model.decoder.attended(outputs, target_in, model.decoder.start(memory, source.mask, []))[0]

    def project(attended: tf.Tensor) -> tf.Tensor:
        embeddings = tf.convert_to_tensor(model.embedding.embeddings)
        return matmul(attended, embeddings, model.precision, transpose_b=True)

    attended = attend(memory, outputs)
    projection = timed(project, attended)
    with_loss = timed(lambda attended: model.summed_loss(Decoded(attended), share.targets, share.weights), attended)
    return {
        "recurrent": timed(encode, model.embed(source.ids)) + timed(decode, model.embed(target_in.ids)),
        "attention": timed(attend, memory, outputs),
        "projection": projection,
        "loss": with_loss - projection,
    }


def seconds_of_update(model: Seq2Seq, settings: Settings) -> float:
    """Return the time of dividing, clipping and the update rule for given gradients, in seconds."""
    replica = Replica(model, settings.learning, groups_of(model, settings.learning, 0))
    gradients = [tf.ones_like(weight) for weight in replica.weights]
    update = tf.function(lambda sums: replica.apply(sums, tf.constant(1.0), tf.constant(0.0)), autograph=False)
    return _median_seconds(lambda: update(gradients))


def _median_seconds(run: Callable[[], Any]) -> float:
    """Return the median time of a call; the first three calls warm up and are not counted."""
    for _ in range(3):
        run()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()  # a call on the CPU returns when its computation is finished
        times.append(time.perf_counter() - began)
    return statistics.median(times)

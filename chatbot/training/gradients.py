"""The gradient function of a tower: the one that every way of training in parallel calls."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.corpus.encoding.vocabulary import PAD
from chatbot.model.packing import pack, packing_of
from chatbot.model.recurrent import State
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Parts

# A tower's share: source, target_in, target_out [rows, length] int32, weights [rows, length] float32.
Share = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


# By how much float16's loss is scaled down each time its gradients are too large, and where that ends.
SCALED_DOWN, LEAST_SCALE = 16.0, 2.0**-24


class Sums(NamedTuple):
    """What a tower returns. Nothing is divided before the sums of all towers have met."""

    loss: tf.Tensor  # scalar float32, nats
    weight: tf.Tensor  # scalar float32, real target tokens
    gradients: list[tf.Tensor]  # dense, of the loss sum, in the order of model.trainable_variables


class Stage:
    """A part of the forward pass on its device; it knows its backward pass, which stays on that device.

    One tape over all parts would run the whole backward pass on one device.
    """

    def __init__(
        self,
        device: str | None,
        weights: "list[tuple[keras.Variable, tf.Tensor]]",
        function: Callable[..., Any],
        *inputs: Any,
    ) -> None:
        self._device, self._inputs = device, inputs
        with self._placed(), tf.GradientTape(watch_accessed_variables=False) as self._tape:
            # One copy to this device; else a loop over time would fetch the weights at each step.
            self._weights = [tf.identity(weight) for _, weight in weights]
            self._tape.watch((inputs, self._weights))
            mapping = [(variable, copy) for (variable, _), copy in zip(weights, self._weights, strict=True)]
            with keras.StatelessScope(state_mapping=mapping):
                self.outputs = function(*inputs)

    def backward(self, gradients: Any = None) -> tuple[Any, list[Any]]:
        """From the gradients of the outputs to those of the inputs (in their structure) and of the weights."""
        with self._placed():
            return self._tape.gradient(
                tf.nest.flatten(self.outputs),
                (self._inputs, self._weights),
                None if gradients is None else tf.nest.flatten(gradients),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )

    def _placed(self) -> Any:
        return contextlib.nullcontext() if self._device is None else tf.device(self._device)


def gradient_function(model: Seq2Seq, parts: Parts | None = None) -> Any:
    """The pure function of a tower: (weights, share, seed) -> Sums.

    weights: the values of model.trainable_variables. seed: [2] int32 for dropout. parts: where the
    pieces of the model run; without it all of it runs where the function is called.
    """
    if model.precision != "float16":
        return _gradient_function(model, parts)
    scaled = _gradient_function(model, parts)

    @tf.function(autograph=False)
    def within_range(weights: list[tf.Tensor], share: Share, seed: tf.Tensor) -> Sums:
        """Gradients beyond float16's largest number are made again, of a loss that is scaled down, until they fit.

        They are not scaled up first, as those of a mean must be (Micikevicius et al., 2018): these are of a sum.
        """

        def again(scale: tf.Tensor, _: Sums) -> tuple[tf.Tensor, Sums]:
            return scale / SCALED_DOWN, scaled(weights, share, seed, scale / SCALED_DOWN)

        def too_large(scale: tf.Tensor, sums: Sums) -> tf.Tensor:
            return (scale > LEAST_SCALE) & ~tf.math.is_finite(tf.linalg.global_norm(sums.gradients))

        one = tf.constant(1.0)
        return tf.while_loop(too_large, again, (one, scaled(weights, share, seed, one)))[1]

    return within_range


def _gradient_function(model: Seq2Seq, parts: Parts | None) -> Any:
    """And the loss may be scaled before its gradients are taken; those are scaled back."""
    variables = model.trainable_variables
    at_encoder, at_decoder, at_words = parts or (None, None, None)

    @tf.function(autograph=False)
    def tower_gradients(
        weights: list[tf.Tensor], share: Share, seed: tf.Tensor, scale: tf.Tensor | None = None
    ) -> Sums:
        source, target_in, target_out, token_weights = within_longest(share)
        value = {id(variable): weight for variable, weight in zip(variables, weights, strict=True)}

        def of(layer_variables: Iterable[keras.Variable]) -> "list[tuple[keras.Variable, tf.Tensor]]":
            return [(variable, value[id(variable)]) for variable in layer_variables]

        encoder, decoder = model.encoder.trainable_variables, model.decoder.trainable_variables
        embedding, bias = model.embedding.embeddings, model.bias
        if scale is not None:
            token_weights *= scale
        mask, target_mask = tf.not_equal(source, PAD), tf.not_equal(target_in, PAD)
        real = packing_of(target_mask)

        words = Stage(at_words, of([embedding]), lambda: (model.embedding(source), model.embedding(target_in)))
        embedded_source, embedded_target = words.outputs
        encoding = Stage(at_encoder, of(encoder), lambda x: model.encoder(x, mask, seed), embedded_source)

        def decode(embedded: tf.Tensor, memory: tf.Tensor, states: list[State]) -> tf.Tensor:
            return model.decoder(embedded, target_mask, model.decoder.start(memory, mask, states), seed)

        decoding = Stage(at_decoder, of(decoder), decode, embedded_target, *encoding.outputs)

        def loss(attended: tf.Tensor) -> tf.Tensor:
            return model.summed_loss(attended, pack(target_out, real), pack(token_weights, real), seed)

        projection = Stage(at_words, of([embedding, bias]), loss, decoding.outputs)

        (to_attended,), (to_embedding, to_bias) = projection.backward()
        (to_target, *to_encoded), to_decoder = decoding.backward(to_attended)
        (to_source,), to_encoder = encoding.backward(to_encoded)
        _, (looked_up,) = words.backward([to_source, to_target])
        gradient = dict(zip(map(id, (*encoder, *decoder, bias)), (*to_encoder, *to_decoder, to_bias), strict=True))
        # Dense: optimizers square each slice of a repeated word before adding them up.
        to_embedding = tf.convert_to_tensor(to_embedding)  # slices, of a sampled softmax
        gradient[id(embedding)] = tf.tensor_scatter_nd_add(to_embedding, looked_up.indices[:, None], looked_up.values)
        gradients = [tf.convert_to_tensor(gradient[id(variable)]) for variable in variables]
        sums = Sums(projection.outputs, tf.reduce_sum(token_weights), gradients)
        return sums if scale is None else tf.nest.map_structure(lambda x: x / scale, sums)

    return tower_gradients


def within_longest(share: Share) -> Share:
    """Without the positions that are padding in every row: questions that share a batch are often all short."""
    source, *targets = share
    lengths = [tf.reduce_max(tf.math.count_nonzero(ids, axis=1)) for ids in (source, targets[0])]
    target_in, target_out, weights = (x[:, : lengths[1]] for x in targets)
    return source[:, : lengths[0]], target_in, target_out, weights


def accumulated(
    gradients: Any, weights: list[tf.Tensor], share: Share, seed: tf.Tensor, pieces: int, device: str
) -> Sums:
    """The sums over a share that is cut into pieces, one in memory at a time; no piece is empty."""
    if pieces == 1:
        return gradients(weights, share, seed)
    rows = tf.shape(share[0])[0]
    pieces = tf.minimum(pieces, rows)

    def add(piece: tf.Tensor, sums: Sums) -> tuple[tf.Tensor, Sums]:
        with tf.device(device):
            some = tuple(x[piece * rows // pieces : (piece + 1) * rows // pieces] for x in share)
            found = gradients(weights, some, tf.random.experimental.stateless_fold_in(seed, piece))
            return piece + 1, tf.nest.map_structure(tf.add, sums, found)

    nothing = Sums(tf.constant(0.0), tf.constant(0.0), [tf.zeros_like(weight) for weight in weights])
    return tf.while_loop(lambda piece, _: piece < pieces, add, (tf.constant(0), nothing), parallel_iterations=1)[1]

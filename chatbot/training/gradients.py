"""The gradient function of a tower, which every variable update calls."""

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

# float16: the loss scale is divided by this as long as a gradient overflows, down to the smallest scale.
LOSS_SCALE_DIVISOR, MIN_LOSS_SCALE = 16.0, 2.0**-24


class Sums(NamedTuple):
    """The result of a tower. Division by the token count follows the sum over all towers."""

    loss: tf.Tensor  # scalar float32, nats
    weight: tf.Tensor  # scalar float32, real target tokens
    gradients: list[tf.Tensor]  # of the loss sum, dense float32, in the order of model.trainable_variables


class Stage:
    """A part of the forward pass on one device, with a separate tape.

    A single tape over all parts would run the whole backward pass on one device.

    device: where forward and backward pass run; None for the caller's device.
    weights: pairs of each variable that `function` uses and its value.
    """

    def __init__(
        self,
        device: str | None,
        weights: "list[tuple[keras.Variable, tf.Tensor]]",
        function: Callable[..., Any],
        *inputs: Any,
    ) -> None:
        self._device, self._inputs = device, inputs
        with self._on_device(), tf.GradientTape(watch_accessed_variables=False) as self._tape:
            # One copy to this device; otherwise a loop over time would fetch the weights at each step.
            self._weights = [tf.identity(value) for _, value in weights]
            self._tape.watch((inputs, self._weights))
            mapping = [(variable, copy) for (variable, _), copy in zip(weights, self._weights, strict=True)]
            with keras.StatelessScope(state_mapping=mapping):
                self.outputs = function(*inputs)

    def backward(self, output_gradients: Any = None) -> tuple[Any, list[Any]]:
        """Return the gradients of the inputs, in their structure, and of the weights.

        output_gradients: in the structure of `outputs`; None for ones.
        """
        with self._on_device():
            return self._tape.gradient(
                tf.nest.flatten(self.outputs),
                (self._inputs, self._weights),
                None if output_gradients is None else tf.nest.flatten(output_gradients),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )

    def _on_device(self) -> Any:
        return contextlib.nullcontext() if self._device is None else tf.device(self._device)


def gradient_function(model: Seq2Seq, parts: Parts | None = None) -> Any:
    """Return the pure function of a tower: (weights, share, seed) -> Sums.

    weights: the values of model.trainable_variables. seed: [2] int32, for dropout. parts: the devices of
    the model's parts; None runs all of them on the device of the caller.

    float16 gradients that overflow are computed again with a smaller loss scale. The scale starts at 1: Micikevicius
    et al. (2018) scale the small gradients of a mean loss up, but the loss here is a sum.
    """
    tower_gradients = _tower_gradients(model, parts)
    if model.precision != "float16":
        return tower_gradients

    @tf.function(autograph=False)
    def finite_gradients(weights: list[tf.Tensor], share: Share, seed: tf.Tensor) -> Sums:
        def overflowed(loss_scale: tf.Tensor, sums: Sums) -> tf.Tensor:
            return (loss_scale > MIN_LOSS_SCALE) & ~tf.math.is_finite(tf.linalg.global_norm(sums.gradients))

        def scale_down(loss_scale: tf.Tensor, _: Sums) -> tuple[tf.Tensor, Sums]:
            loss_scale /= LOSS_SCALE_DIVISOR
            return loss_scale, tower_gradients(weights, share, seed, loss_scale)

        one = tf.constant(1.0)
        return tf.while_loop(overflowed, scale_down, (one, tower_gradients(weights, share, seed, one)))[1]

    return finite_gradients


def _tower_gradients(model: Seq2Seq, parts: Parts | None) -> Any:
    """Return the function (weights, share, seed, loss_scale) -> Sums; the sums are unscaled again."""
    variables = model.trainable_variables
    encoder_device, decoder_device, projection_device = parts or (None, None, None)

    @tf.function(autograph=False)
    def tower_gradients(
        weights: list[tf.Tensor], share: Share, seed: tf.Tensor, loss_scale: tf.Tensor | None = None
    ) -> Sums:
        source, target_in, target_out, token_weights = trim_padding(share)
        values = {id(variable): value for variable, value in zip(variables, weights, strict=True)}

        def with_values(layer_variables: Iterable[keras.Variable]) -> "list[tuple[keras.Variable, tf.Tensor]]":
            return [(variable, values[id(variable)]) for variable in layer_variables]

        encoder, decoder = model.encoder.trainable_variables, model.decoder.trainable_variables
        embedding, bias = model.embedding.embeddings, model.bias
        if loss_scale is not None:
            token_weights *= loss_scale
        source_mask, target_mask = tf.not_equal(source, PAD), tf.not_equal(target_in, PAD)
        packing = packing_of(target_mask)

        def embed() -> tuple[tf.Tensor, tf.Tensor]:
            return model.embedding(source), model.embedding(target_in)  # [rows, length, embedding_size]

        def encode(embedded: tf.Tensor) -> Any:
            return model.encoder(embedded, source_mask, seed)

        def decode(embedded: tf.Tensor, memory: tf.Tensor, states: list[State]) -> tf.Tensor:
            return model.decoder(embedded, target_mask, model.decoder.start(memory, source_mask, states), seed)

        def project(attended: tf.Tensor) -> tf.Tensor:
            return model.summed_loss(attended, pack(target_out, packing), pack(token_weights, packing), seed)

        embedding_stage = Stage(projection_device, with_values([embedding]), embed)
        embedded_source, embedded_target = embedding_stage.outputs
        encoder_stage = Stage(encoder_device, with_values(encoder), encode, embedded_source)
        decoder_stage = Stage(decoder_device, with_values(decoder), decode, embedded_target, *encoder_stage.outputs)
        projection_stage = Stage(projection_device, with_values([embedding, bias]), project, decoder_stage.outputs)

        (attended_gradient,), (projection_gradient, bias_gradient) = projection_stage.backward()
        (target_gradient, *memory_gradients), decoder_gradients = decoder_stage.backward(attended_gradient)
        (source_gradient,), encoder_gradients = encoder_stage.backward(memory_gradients)
        _, (lookup_gradient,) = embedding_stage.backward([source_gradient, target_gradient])
        gradients = dict(
            zip(
                map(id, (*encoder, *decoder, bias)),
                (*encoder_gradients, *decoder_gradients, bias_gradient),
                strict=True,
            )
        )
        # Dense: optimizers square each slice of a repeated token before adding them up. A sampled softmax gives slices.
        gradients[id(embedding)] = tf.tensor_scatter_nd_add(
            tf.convert_to_tensor(projection_gradient), lookup_gradient.indices[:, None], lookup_gradient.values
        )
        dense = [tf.convert_to_tensor(gradients[id(variable)]) for variable in variables]
        sums = Sums(projection_stage.outputs, tf.reduce_sum(token_weights), dense)
        return sums if loss_scale is None else tf.nest.map_structure(lambda x: x / loss_scale, sums)

    return tower_gradients


def share_spec(source_length: int, target_length: int) -> tuple[tf.TensorSpec, ...]:
    """Return the specs of a bucket's share: lengths are static, the number of rows is not."""
    return (
        tf.TensorSpec([None, source_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.float32),
    )


def trim_padding(share: Share) -> Share:
    """Remove the positions that are padding in every row: a bucket is often longer than all rows of a batch."""
    source, *targets = share
    source_length, target_length = (tf.reduce_max(tf.math.count_nonzero(ids, axis=1)) for ids in (source, targets[0]))
    target_in, target_out, weights = (x[:, :target_length] for x in targets)
    return source[:, :source_length], target_in, target_out, weights


def accumulate_gradients(
    gradients: Any, weights: list[tf.Tensor], share: Share, seed: tf.Tensor, pieces: int, device: str
) -> Sums:
    """Return the sums over a share, computed one piece of its rows after another to save memory.

    pieces: the maximum number of pieces; a share with fewer rows has one piece for each row.
    """
    if pieces == 1:
        return gradients(weights, share, seed)
    rows = tf.shape(share[0])[0]
    pieces = tf.minimum(pieces, rows)

    def add_piece(i: tf.Tensor, sums: Sums) -> tuple[tf.Tensor, Sums]:
        with tf.device(device):
            piece = tuple(x[i * rows // pieces : (i + 1) * rows // pieces] for x in share)
            piece_sums = gradients(weights, piece, tf.random.experimental.stateless_fold_in(seed, i))
            return i + 1, tf.nest.map_structure(tf.add, sums, piece_sums)

    zero = Sums(tf.constant(0.0), tf.constant(0.0), [tf.zeros_like(weight) for weight in weights])
    return tf.while_loop(lambda i, _: i < pieces, add_piece, (tf.constant(0), zero), parallel_iterations=1)[1]

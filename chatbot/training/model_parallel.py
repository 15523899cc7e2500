"""--model-parallel: the gradient function of a tower whose parts are on several devices.

Each part has a tape of its own: a single one would run the whole backward pass on one device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.model.sequences import padded_ids
from chatbot.training.devices.towers import Parts
from chatbot.training.gradients import Sums, joined_gradients, looked_up, sums_of, values_of, weights_of_tokens
from chatbot.training.replica import DECODER, ENCODER, PROJECTION, Group
from chatbot.training.share import Share


class Stage:
    """A part of the forward pass on its device, and its backward pass there.

    variables: those that `function` uses, with their values.
    """

    def __init__(
        self,
        device: str,
        variables: Sequence[tuple[keras.Variable, tf.Tensor]],
        function: Callable[..., Any],
        *inputs: Any,
    ) -> None:
        self._device = device
        self._inputs = inputs
        with tf.device(device), tf.GradientTape(watch_accessed_variables=False) as self._tape:
            # One copy to the device; otherwise a loop over time would fetch the weights at each step.
            copies = [(variable, tf.identity(value)) for variable, value in variables]
            self._weights = [copy for _, copy in copies]
            self._tape.watch((inputs, self._weights))
            with keras.StatelessScope(state_mapping=copies):
                self.outputs = function(*inputs)

    def backward(self, output_gradients: Any = None) -> tuple[Any, list[Any]]:
        """Return the gradients of the inputs and of the weights. output_gradients: of the outputs; None for ones."""
        with tf.device(self._device):
            return self._tape.gradient(
                tf.nest.flatten(self.outputs),
                (self._inputs, self._weights),
                None if output_gradients is None else tf.nest.flatten(output_gradients),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )


def spread_gradient_function(model: Seq2Seq, groups: Sequence[Group], parts: Parts) -> Any:
    """Return what `gradient_function` does, for a tower with these parts."""
    device_of = {ENCODER: parts.encoder, DECODER: parts.decoder, PROJECTION: parts.projection}
    number_of = {id(variable): number for number, variable in enumerate(model.trainable_variables)}
    encoder = model.encoder.trainable_variables
    decoder = model.decoder.trainable_variables
    in_parts = {id(variable) for variable in (*encoder, *decoder)}
    embedding = model.trainable_variables[embedding_index(model)]
    own = [v for v in model.trainable_variables if id(v) not in in_parts and (model.tied or v is not embedding)]

    @tf.function(autograph=False)
    def tower_gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor | None = None) -> Sums:
        values: dict[int, tf.Tensor] = {}
        for group, weight in zip(groups, weights, strict=True):
            with tf.device(device_of[group.stage]):
                values |= values_of([group], [weight])

        def valued(variables: Sequence[keras.Variable]) -> list[tuple[keras.Variable, tf.Tensor]]:
            return [(variable, values[number_of[id(variable)]]) for variable in variables]

        def decode(embedded: tf.Tensor, memory: tf.Tensor, states: Any) -> Any:
            start = model.decoder.start(memory, share.source.mask, states)
            return model.decoder(embedded, share.target_in, start, share.key)

        def project(attended: tf.Tensor, copies: Any) -> tf.Tensor:
            decoded = model.with_question(attended, copies, padded_ids(share.source), share.target_in)
            return model.summed_loss(decoded, share.targets, weights_of_tokens(share, loss_scale))

        with tf.device(parts.projection):
            source_rows, target_rows = looked_up(model, values, share)
        encoding = Stage(
            parts.encoder,
            valued(encoder),
            lambda embedded: model.encoder(embedded, share.source, share.key),
            source_rows,
        )
        decoding = Stage(parts.decoder, valued(decoder), decode, target_rows, *encoding.outputs)
        projecting = Stage(parts.projection, valued(own), project, *decoding.outputs)

        of_decoded, of_own = projecting.backward()
        (of_target_rows, *of_memory), of_decoder = decoding.backward(of_decoded)
        (of_source_rows,), of_encoder = encoding.backward(of_memory)
        variables = (*encoder, *decoder, *own)
        of_variables = (*of_encoder, *of_decoder, *of_own)
        gradients = {number_of[id(v)]: gradient for v, gradient in zip(variables, of_variables, strict=True)}
        of_groups = []
        for group in groups[:-1]:
            with tf.device(device_of[group.stage]):
                of_groups += joined_gradients([group], gradients)
        with tf.device(parts.projection):
            projection = [gradients[embedding_index(model)]] if model.tied else []
            return sums_of(
                share, projecting.outputs, projection, of_groups, [of_source_rows, of_target_rows], loss_scale
            )

    return tower_gradients

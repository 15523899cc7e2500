"""The gradient function of a tower, which every variable update calls.

That of a tower whose parts are on several devices (--model-parallel) has a tape for each part: a single one would run
the whole backward pass on one device.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.model.operations import scatter_add
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.model.sequences import padded_ids
from chatbot.training.devices.towers import Parts
from chatbot.training.replica import DECODER, ENCODER, PROJECTION, Group
from chatbot.training.share import Share


class Sums(NamedTuple):
    """The result of a tower. Division by the weight follows the sum over all towers.

    The gradients are those of the loss sum, float32; in float16, those of the scaled one. The embedding's is the sum of
    `projection`, if it is also the output projection, and of `rows`, which is small, so that its exchange is cheap;
    `dense` adds them.
    """

    loss: tf.Tensor  # scalar float32, nats
    weight: tf.Tensor  # scalar float32, real target tokens; in float16 times the loss scale, as the gradients are
    projection: list[tf.Tensor]  # [vocabulary, embedding]; an empty list unless model.tied
    groups: list[tf.Tensor]  # of each group that is trained but that of the embedding
    rows: tf.Tensor  # [used, embedding], of the rows of the embedding that the step's towers look up, `Share.used`


class TowerSums(NamedTuple):
    """What the towers of this process compute in a step."""

    sums: list[Sums]  # of each tower
    report: tf.Tensor  # [3, towers of all machines] float32: losses, target tokens, pairs; 0 for other machines
    used: list[tf.Tensor]  # of each replica, [used] int64, the ids of Sums.rows
    loss_scales: list[Any]  # of each replica, scalar float32: the scale of the gradients, in float16; else None


def gradient_function(model: Seq2Seq, groups: Sequence[Group]) -> Any:
    """Return the pure function of a tower on the caller's device: (weights, share, loss_scale) -> Sums.

    groups: of the model's variables. weights: the value of each group. loss_scale: scalar float32, of float16; None at
    other precisions.
    """
    variables = model.trainable_variables

    @tf.function(autograph=False)
    def tower_gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor | None = None) -> Sums:
        values = [value for _, value in sorted(values_of(groups, weights).items())]
        source_rows, target_rows = looked_up(model, values, share)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((values, source_rows, target_rows))
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                decoded = model.decoded(share.source, share.target_in, share.key, embedded=(source_rows, target_rows))
                loss = model.summed_loss(decoded, share.targets, weights_of_tokens(share, loss_scale))
        gradients, *of_rows = tape.gradient(
            loss, (values, source_rows, target_rows), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        of_groups = joined_gradients(groups[:-1], gradients)
        projection = [gradients[embedding_index(model)]] if model.tied else []
        return sums_of(share, loss, projection, of_groups, of_rows, loss_scale)

    return tower_gradients


def values_of(groups: Sequence[Group], weights: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Return the value of each of model.trainable_variables by its number. weights: of these groups."""
    values: dict[int, tf.Tensor] = {}
    for group, weight in zip(groups, weights, strict=True):
        if len(group.indices) == 1:  # one copy to this device; else operations would run where the weight is
            weight = tf.identity(weight)
        values |= zip(group.indices, group.divided(weight), strict=True)
    return values


def looked_up(model: Seq2Seq, values: Any, share: Share) -> list[tf.Tensor]:
    """Return the rows of the embedding for the ids of source and target_in. values: see `values_of`."""
    embedding = values[embedding_index(model)]
    return [tf.gather(embedding, side.ids) for side in (share.source, share.target_in)]


def weights_of_tokens(share: Share, loss_scale: tf.Tensor | None) -> tf.Tensor:
    """Return the factor of each token's loss."""
    return share.weights if loss_scale is None else share.weights * loss_scale


def joined_gradients(groups: Sequence[Group], gradients: Any) -> list[tf.Tensor]:
    """Return the gradient of each of these groups that is trained. gradients: of each variable by its number."""
    return [
        group.joined([tf.convert_to_tensor(gradients[i]) for i in group.indices]) for group in groups if group.trained
    ]


def sums_of(
    share: Share,
    loss: tf.Tensor,
    projection: list[tf.Tensor],
    of_groups: list[tf.Tensor],
    of_rows: Sequence[tf.Tensor],
    loss_scale: tf.Tensor | None,
) -> Sums:
    """Return the result of a tower. loss: with the scale. of_rows: the gradients of `looked_up`."""
    lookups = [tf.reshape(gradient, [-1, gradient.shape[-1]]) for gradient in of_rows]  # [ids, embedding]
    rows = tf.math.unsorted_segment_sum(tf.concat(lookups, 0), share.places, tf.size(share.used))
    weight = share.counts[0]
    if loss_scale is not None:
        loss = loss / loss_scale
        weight = weight * loss_scale
    return Sums(loss, weight, projection, of_groups, rows)


class Stage:
    """A part of the forward pass on its device, and its backward pass there, with --model-parallel.

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
    variables = model.trainable_variables
    number_of = {id(variable): number for number, variable in enumerate(variables)}
    encoder = [number_of[id(variable)] for variable in model.encoder.trainable_variables]
    decoder = [number_of[id(variable)] for variable in model.decoder.trainable_variables]
    looked_up_only = [] if model.tied else [embedding_index(model)]
    others = [number for number in range(len(variables)) if number not in {*encoder, *decoder, *looked_up_only}]

    @tf.function(autograph=False)
    def tower_gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor | None = None) -> Sums:
        values: dict[int, tf.Tensor] = {}
        for group, weight in zip(groups, weights, strict=True):
            with tf.device(device_of[group.stage]):
                values |= values_of([group], [weight])

        def decode(embedded: tf.Tensor, memory: tf.Tensor, states: Any) -> Any:
            start = model.decoder.start(memory, share.source.mask, states)
            return model.decoder(embedded, share.target_in, start, share.key)

        def project(attended: tf.Tensor, copies: Any) -> tf.Tensor:
            decoded = model.with_question(attended, copies, padded_ids(share.source), share.target_in)
            return model.summed_loss(decoded, share.targets, weights_of_tokens(share, loss_scale))

        with tf.device(parts.projection):
            source_rows, target_rows = looked_up(model, values, share)
        of_encoder, of_decoder, of_others = (
            [(variables[i], values[i]) for i in numbers] for numbers in (encoder, decoder, others)
        )
        encoding = Stage(parts.encoder, of_encoder, lambda x: model.encoder(x, share.source, share.key), source_rows)
        decoding = Stage(parts.decoder, of_decoder, decode, target_rows, *encoding.outputs)
        projecting = Stage(parts.projection, of_others, project, *decoding.outputs)

        of_decoded, gradients_of_others = projecting.backward()
        (of_target_rows, *of_memory), gradients_of_decoder = decoding.backward(of_decoded)
        (of_source_rows,), gradients_of_encoder = encoding.backward(of_memory)
        of_parts = *gradients_of_encoder, *gradients_of_decoder, *gradients_of_others
        gradients = dict(zip((*encoder, *decoder, *others), of_parts, strict=True))
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


def dense(
    projection: Sequence[tf.Tensor], rows: tf.Tensor, used: tf.Tensor, shape: Sequence[int], on_gpu: bool
) -> tf.Tensor:
    """Return the gradient of the embedding, [vocabulary, embedding], from the fields of `Sums`.

    Optimizers need it dense. used: `Share.used`, [used] int64. No id repeats, so that the result is equal to the bit on
    all replicas. shape: that of the embedding. on_gpu: whether it is computed on a GPU.
    """
    start = projection[0] if projection else tf.zeros(shape)
    return scatter_add(start, used[:, None], rows, on_gpu)

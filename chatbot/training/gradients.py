"""Computation of the loss and gradients of a tower, which is a device that computes one part of a batch.

With --model-parallel, a tower is split over several devices. Each part then has its own gradient tape, because a single
tape would run the whole backward pass on one device.
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
    """The loss and gradients of a tower, summed over the tokens of its part of the batch.

    Gradients are float32. In float16, they are multiplied by the loss scale. The gradient of the embedding has up to
    two terms: `rows`, from looking up tokens, and `projection`, if the embedding is also used as the output projection.
    `dense` adds the terms.
    """

    loss: tf.Tensor  # scalar float32, nats
    weight: tf.Tensor  # scalar float32, number of target tokens; multiplied by the loss scale in float16
    projection: list[tf.Tensor]  # one tensor, [vocabulary, embedding], if model.tied, else empty
    groups: list[tf.Tensor]  # one per trained group, except the embedding
    rows: tf.Tensor  # [ids, embedding], gradients of the embedding rows with the ids in `Share.lookup_ids`


class TowerSums(NamedTuple):
    """The results of all towers of this process in one step."""

    sums: list[Sums]  # one per tower
    report: tf.Tensor  # [3, towers of all machines] float32: losses, target tokens, pairs; 0 for other machines
    lookup_ids: list[tf.Tensor]  # one per replica, [ids] int64, the token ids of the rows in Sums.rows
    loss_scales: list[Any]  # one per replica: the loss scale of the gradients, scalar float32; None except in float16


def gradient_function(model: Seq2Seq, groups: Sequence[Group]) -> Any:
    """Return a function that computes the loss and gradients of a tower: (weights, share, loss_scale) -> Sums.

    The function is pure and runs on the caller's device. Its arguments are the value of each group of variables, the
    tower's part of a batch, and the loss scale in float16 (None at other precisions).

    Args:
        model: The model whose loss is differentiated.
        groups: The groups of the model's variables.
    """
    variables = model.trainable_variables

    @tf.function(autograph=False)
    def tower_gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor | None = None) -> Sums:
        # Copy the weights to the current device. Operations would otherwise run on the device of the weights.
        weights = [tf.identity(weight) for weight in weights]
        rows = look_up_rows(weights[-1], share)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((weights, rows))
            values = [(variables[i], value) for i, value in variable_values(groups, weights).items()]
            with keras.StatelessScope(state_mapping=values):
                decoded = model.decoded(share.source, share.target_in, share.key, embedded=rows)
                loss = model.summed_loss(decoded, share.targets, token_weights(share, loss_scale))
        trained = [weight for weight, group in zip(weights, groups[:-1], strict=False) if group.trained]
        projection = [weights[-1]] if model.tied else []
        gradients = tape.gradient(loss, (trained, projection, rows), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        d_groups, d_projection, d_rows = tf.nest.map_structure(tf.convert_to_tensor, gradients)
        return make_sums(share, loss, d_projection, d_groups, d_rows, loss_scale)

    return tower_gradients


def variable_values(groups: Sequence[Group], weights: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Return the value of each variable, by its index in model.trainable_variables.

    Args:
        groups: Groups of variables.
        weights: The value of each group.
    """
    values: dict[int, tf.Tensor] = {}
    for group, weight in zip(groups, weights, strict=True):
        values |= zip(group.indices, group.split(weight), strict=True)
    return values


def look_up_rows(embedding: tf.Tensor, share: Share) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the embeddings of the source tokens and of the target input tokens.

    Args:
        embedding: The embedding, [vocabulary, embedding].
        share: The tower's part of a batch, with the token ids.
    """
    return tf.gather(embedding, share.source.ids), tf.gather(embedding, share.target_in.ids)


def token_weights(share: Share, loss_scale: tf.Tensor | None) -> tf.Tensor:
    """Return the weight of each token in the loss, multiplied by the loss scale if there is one, [tokens]."""
    return share.weights if loss_scale is None else share.weights * loss_scale


def make_sums(
    share: Share,
    loss: tf.Tensor,
    projection: list[tf.Tensor],
    group_gradients: list[tf.Tensor],
    row_gradients: Sequence[tf.Tensor],
    loss_scale: tf.Tensor | None,
) -> Sums:
    """Create the `Sums` of a tower. Gradients of the same embedding row are added up.

    Args:
        share: The tower's part of a batch.
        loss: The loss sum, multiplied by the loss scale in float16.
        projection: The gradient of the output projection if it is tied to the embedding, else an empty list.
        group_gradients: The gradient of each trained group.
        row_gradients: The gradients of the tensors from `look_up_rows`.
        loss_scale: The loss scale in float16, else None.
    """
    lookups = [tf.reshape(gradient, [-1, gradient.shape[-1]]) for gradient in row_gradients]  # [lookups, embedding]
    rows = tf.math.unsorted_segment_sum(tf.concat(lookups, 0), share.lookup_index, tf.size(share.lookup_ids))
    weight = share.counts[0]
    if loss_scale is not None:
        loss = loss / loss_scale
        weight = weight * loss_scale
    return Sums(loss, weight, projection, group_gradients, rows)


class Stage:
    """One stage of the forward pass, and its backward pass on the same device.

    Args:
        device: The device on which the stage runs.
        variables: The variables that `function` reads, with their values.
        function: The function that computes the outputs from the inputs.
        *inputs: The inputs, such as the outputs of the preceding stage.
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
            # Copy the weights once. A recurrent layer would otherwise fetch them at each time step.
            copies = [(variable, tf.identity(value)) for variable, value in variables]
            self._weights = [copy for _, copy in copies]
            self._tape.watch((inputs, self._weights))
            with keras.StatelessScope(state_mapping=copies):
                self.outputs = function(*inputs)

    def backward(self, output_gradients: Any = None) -> tuple[Any, list[Any]]:
        """Return the gradients of the inputs and of the weights.

        Args:
            output_gradients: The gradients of the outputs, or None if they are all 1.
        """
        with tf.device(self._device):
            return self._tape.gradient(
                tf.nest.flatten(self.outputs),
                (self._inputs, self._weights),
                None if output_gradients is None else tf.nest.flatten(output_gradients),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )


def spread_gradient_function(model: Seq2Seq, groups: Sequence[Group], parts: Parts) -> Any:
    """Return a function like that of `gradient_function`, for a tower whose parts are on several devices.

    Args:
        model: The model whose loss is differentiated.
        groups: The groups of the model's variables.
        parts: The device of each part.
    """
    devices = {ENCODER: parts.encoder, DECODER: parts.decoder, PROJECTION: parts.projection}
    variables = model.trainable_variables
    index = {id(variable): i for i, variable in enumerate(variables)}
    encoder = [index[id(variable)] for variable in model.encoder.trainable_variables]
    decoder = [index[id(variable)] for variable in model.decoder.trainable_variables]
    lookup_only = [] if model.tied else [embedding_index(model)]
    projection_stage = [i for i in range(len(variables)) if i not in {*encoder, *decoder, *lookup_only}]

    @tf.function(autograph=False)
    def tower_gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor | None = None) -> Sums:
        values: dict[int, tf.Tensor] = {}
        for group, weight in zip(groups, weights, strict=True):
            with tf.device(devices[group.stage]):
                values |= variable_values([group], [tf.identity(weight)])

        def decode(embedded: tf.Tensor, memory: tf.Tensor, states: Any) -> Any:
            start = model.decoder.start(memory, share.source.mask, states)
            return model.decoder(embedded, share.target_in, start, share.key)

        def project(attended: tf.Tensor, copies: Any) -> tf.Tensor:
            decoded = model.with_question(attended, copies, padded_ids(share.source), share.target_in)
            return model.summed_loss(decoded, share.targets, token_weights(share, loss_scale))

        with tf.device(parts.projection):
            source_rows, target_rows = look_up_rows(values[embedding_index(model)], share)
        encoder_weights, decoder_weights, other_weights = (
            [(variables[i], values[i]) for i in indices] for indices in (encoder, decoder, projection_stage)
        )
        encoding = Stage(
            parts.encoder, encoder_weights, lambda x: model.encoder(x, share.source, share.key), source_rows
        )
        decoding = Stage(parts.decoder, decoder_weights, decode, target_rows, *encoding.outputs)
        projecting = Stage(parts.projection, other_weights, project, *decoding.outputs)

        decoded_gradients, other_gradients = projecting.backward()
        (target_gradient, *memory_gradients), decoder_gradients = decoding.backward(decoded_gradients)
        (source_gradient,), encoder_gradients = encoding.backward(memory_gradients)
        all_gradients = *encoder_gradients, *decoder_gradients, *other_gradients
        of_variable = dict(zip((*encoder, *decoder, *projection_stage), all_gradients, strict=True))
        gradients = []
        for group in (group for group in groups[:-1] if group.trained):
            with tf.device(devices[group.stage]):
                gradients.append(group.join([tf.convert_to_tensor(of_variable[i]) for i in group.indices]))
        with tf.device(parts.projection):
            projection = [of_variable[embedding_index(model)]] if model.tied else []
            row_gradients = [source_gradient, target_gradient]
            return make_sums(share, projecting.outputs, projection, gradients, row_gradients, loss_scale)

    return tower_gradients


def dense(
    projection: Sequence[tf.Tensor], rows: tf.Tensor, lookup_ids: tf.Tensor, shape: Sequence[int], on_gpu: bool
) -> tf.Tensor:
    """Return the dense gradient of the embedding, [vocabulary, embedding].

    The lookup ids are unique, so no sum depends on the order of additions, and all replicas get identical bits.

    Args:
        projection: `Sums.projection`.
        rows: `Sums.rows`, [ids, embedding].
        lookup_ids: `Share.lookup_ids`, [ids] int64.
        shape: The shape of the embedding.
        on_gpu: Whether the gradient is computed on a GPU.
    """
    start = projection[0] if projection else tf.zeros(shape)
    return scatter_add(start, tf.expand_dims(lookup_ids, 1), rows, on_gpu)

"""The gradient function of a tower, which every variable update calls."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from chatbot.model.copying import Copies
from chatbot.model.operations import computed_on, is_gpu, scatter_add
from chatbot.model.recurrent import State
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import padded_ids
from chatbot.training.devices.towers import Parts, Tower
from chatbot.training.groups import DECODER, ENCODER, PROJECTION, Group
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
        self._device = device
        self._inputs = inputs
        with _on(device), tf.GradientTape(watch_accessed_variables=False) as self._tape:
            # To another device one copy; otherwise a loop over time would fetch the weights at each step.
            self._weights = [value if device is None else tf.identity(value) for _, value in weights]
            self._tape.watch((inputs, self._weights))
            mapping = [(variable, copy) for (variable, _), copy in zip(weights, self._weights, strict=True)]
            with keras.StatelessScope(state_mapping=mapping):
                self.outputs = function(*inputs)

    def backward(self, output_gradients: Any = None) -> tuple[Any, list[Any]]:
        """Return the gradients of the inputs and of the weights. output_gradients: of the outputs; None for ones."""
        with _on(self._device):
            return self._tape.gradient(
                tf.nest.flatten(self.outputs),
                (self._inputs, self._weights),
                None if output_gradients is None else tf.nest.flatten(output_gradients),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )


def _on(device: str | None) -> Any:
    return contextlib.nullcontext() if device is None else tf.device(device)


def gradient_functions(model: Seq2Seq, groups: Sequence[Group], towers: Sequence[Tower]) -> list[Any]:
    """Return the function of each tower: one for all GPUs and one for all CPUs. A tower with parts has its own."""
    functions: dict[Any, Any] = {}
    of_towers = []
    for i, tower in enumerate(towers):
        key = -1 - i if tower.parts else is_gpu(tower.device)
        if key not in functions:
            with tf.device(tower.device):
                functions[key] = gradient_function(model, groups, tower.device, tower.parts)
        of_towers.append(functions[key])
    return of_towers


def gradient_function(model: Seq2Seq, groups: Sequence[Group], device: str, parts: Parts | None = None) -> Any:
    """Return the pure function of a tower: (weights, share, loss_scale) -> Sums.

    device: of the tower, or of one of several towers that share the function. It says how the layers compute (`on_gpu`)
    and whose shares the function takes; the operations run on the device of the caller.
    groups: of the model's variables. weights: the value of each group. loss_scale: scalar float32, of float16; None at
    other precisions. parts: the devices of the model's parts; None runs all of them on the device of the caller.
    """
    variables = model.trainable_variables
    encoder_device, decoder_device, projection_device = parts or (None, None, None)
    device_of = {ENCODER: encoder_device, DECODER: decoder_device, PROJECTION: projection_device}

    @tf.function(autograph=False)
    @computed_on(device)
    def tower_gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor | None = None) -> Sums:
        source = share.source
        target_in = share.target_in
        key = share.key
        values: dict[int, tf.Tensor] = {}
        for group, weight in zip(groups, weights, strict=True):
            with _on(device_of[group.stage]):
                if len(group.indices) == 1:  # one copy to this device; else operations would run where the weight is
                    weight = tf.identity(weight)
                values |= zip((id(variables[i]) for i in group.indices), group.divided(weight), strict=True)

        def with_values(layer_variables: Iterable[keras.Variable]) -> "list[tuple[keras.Variable, tf.Tensor]]":
            return [(variable, values[id(variable)]) for variable in layer_variables]

        encoder = model.encoder.trainable_variables
        decoder = model.decoder.trainable_variables
        embedding = model.embedding.embeddings
        bias = model.bias
        token_weights = share.weights if loss_scale is None else share.weights * loss_scale

        def encode(embedded: tf.Tensor) -> Any:
            return model.encoder(embedded, source, key)

        def decode(embedded: tf.Tensor, memory: tf.Tensor, states: list[State]) -> Any:
            return model.decoder(embedded, target_in, model.decoder.start(memory, source.mask, states), key)

        def project(attended: tf.Tensor, copies: Copies | tuple[()]) -> tf.Tensor:
            decoded = model.with_question(attended, copies, padded_ids(source), target_in)
            return model.summed_loss(decoded, share.targets, token_weights)

        with _on(projection_device):
            source_rows, target_rows = (tf.gather(values[id(embedding)], x.ids) for x in (source, target_in))
        encoder_stage = Stage(encoder_device, with_values(encoder), encode, source_rows)
        decoder_stage = Stage(decoder_device, with_values(decoder), decode, target_rows, *encoder_stage.outputs)
        own = ([bias] if bias.trainable else []) + ([] if model.tied else [model.projection])
        read_whole = [embedding] if model.tied else []
        projection_stage = Stage(projection_device, with_values([*own, *read_whole]), project, *decoder_stage.outputs)

        decoded_gradients, own_gradients = projection_stage.backward()
        own_gradients, projection = own_gradients[: len(own)], own_gradients[len(own) :]
        (target_gradient, *memory_gradients), decoder_gradients = decoder_stage.backward(decoded_gradients)
        (source_gradient,), encoder_gradients = encoder_stage.backward(memory_gradients)
        with _on(projection_device):
            lookups = [
                tf.reshape(gradient, [-1, gradient.shape[-1]])  # [ids, embedding]
                for gradient in (source_gradient, target_gradient)
            ]
            rows = tf.math.unsorted_segment_sum(tf.concat(lookups, 0), share.places, tf.size(share.used))
        of_variables = *encoder_gradients, *decoder_gradients, *own_gradients
        gradients = dict(zip(map(id, (*encoder, *decoder, *own)), of_variables, strict=True))
        of_groups = []
        for group in groups[:-1]:
            with _on(device_of[group.stage]):
                if group.trained:
                    own = [tf.convert_to_tensor(gradients[id(variables[i])]) for i in group.indices]
                    of_groups.append(group.joined(own))
        loss = projection_stage.outputs
        weight = share.counts[0]
        if loss_scale is not None:
            loss = loss / loss_scale
            weight = weight * loss_scale
        return Sums(loss, weight, projection, of_groups, rows)

    return tower_gradients


def dense(projection: Sequence[tf.Tensor], rows: tf.Tensor, used: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return the gradient of the embedding, [vocabulary, embedding], from the fields of `Sums`.

    Optimizers need it dense. used: `Share.used`, [used] int64. No id repeats, so that the result is equal to the bit on
    all replicas. shape: that of the embedding.
    """
    start = projection[0] if projection else tf.zeros(shape)
    return scatter_add(start, used[:, None], rows)

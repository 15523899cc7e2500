"""The gradient function of a tower, which every variable update calls."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import keras
import tensorflow as tf

from chatbot.model.copying import Copies
from chatbot.model.operations import computed_on, is_gpu, scatter_add
from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.devices.towers import Parts, Tower
from chatbot.training.share import Share, looked_up


class Sums(NamedTuple):
    """The result of a tower. Division by the weight follows the sum over all towers.

    The gradients are those of the loss sum, float32; in float16, those of the scaled one. The embedding's is the sum of
    `projection`, if it is also the output projection, and of `rows`, which is small, so that its exchange is cheap;
    `dense` adds them.
    """

    loss: tf.Tensor  # scalar float32, nats
    weight: tf.Tensor  # scalar float32, real target tokens; in float16 times the loss scale, as the gradients are
    projection: list[tf.Tensor]  # [vocabulary, embedding]; an empty list unless model.projects_by_embedding
    others: list[tf.Tensor]  # of all variables but the embedding, in the order of model.trainable_variables
    rows: tf.Tensor  # [used, embedding], of the rows of the embedding that the step's towers look up (`ids_used`)


class GradientFunction(Protocol):
    """A tower: a pure function, traced once, whose operations run on the device of the caller.

    weights: the values of model.trainable_variables. used: scalar int32, the number of `ids_used`. loss_scale: scalar
    float32, of float16; None at other precisions.
    """

    def __call__(
        self, weights: list[tf.Tensor], share: Share, used: tf.Tensor, loss_scale: tf.Tensor | None = None
    ) -> Sums:
        """Return the sums of a share."""


def gradient_functions(model: Seq2Seq, towers: Sequence[Tower]) -> list[GradientFunction]:
    """Return the function of each tower: one for all GPUs and one for all CPUs. A tower with parts has its own."""
    functions: dict[int | bool, GradientFunction] = {}
    keys = [-1 - i if tower.parts else is_gpu(tower.device) for i, tower in enumerate(towers)]
    for key, tower in zip(keys, towers, strict=True):
        if key not in functions:
            functions[key] = gradient_function(model, tower.device, tower.parts)
    return [functions[key] for key in keys]


def gradient_function(model: Seq2Seq, device: str, parts: Parts | None = None) -> GradientFunction:
    """Return the function of a tower.

    device: says how the layers compute (`on_gpu`) and whose shares the function takes. parts: the devices of the
    model's parts; each part's backward pass is on the device of its forward pass. None: all on that of the caller.
    """
    variables, embedding = model.trainable_variables, embedding_index(model)
    encoder, decoder, projection = map(_placed, parts or (None, None, None))
    place_of = {id(variable): encoder for variable in model.encoder.trainable_variables}
    place_of |= {id(variable): decoder for variable in model.decoder.trainable_variables}

    @tf.function(autograph=False)
    @computed_on(device)
    def tower_gradients(
        weights: list[tf.Tensor], share: Share, used: tf.Tensor, loss_scale: tf.Tensor | None = None
    ) -> Sums:
        token_weights = share.weights if loss_scale is None else share.weights * loss_scale
        copies = []  # on the devices that compute with them: a loop over time would fetch the weights at each step
        for variable, value in zip(variables, weights, strict=True):
            with place_of.get(id(variable), projection)():
                copies.append(tf.identity(value))
        with keras.StatelessScope(state_mapping=list(zip(variables, copies, strict=True))):
            with projection():
                looked = [tf.gather(weights[embedding], ids) for ids in looked_up(share, model)]
            with encoder():
                memory, states = model.encoder(looked[0], share.source, share.key)
            with decoder():
                start = model.decoder.start(memory, share.source.mask, states)
                attended, copied = model.decoder(looked[1], share.target_in, start, share.key)
            with projection():
                loss = _summed_loss(model, attended, copied, looked[2:], share, token_weights)

        zero = tf.UnconnectedGradients.ZERO
        gradients = tf.gradients(loss, [*copies, *looked], unconnected_gradients=zero)  # each op beside its forward op
        of_weights, of_rows = gradients[: len(copies)], gradients[len(copies) :]
        of_embedding = of_weights.pop(embedding)
        with projection():
            lookups = [tf.reshape(gradient, [-1, gradient.shape[-1]]) for gradient in of_rows]  # [ids, embedding]
            rows = tf.math.unsorted_segment_sum(tf.concat(lookups, 0), share.places, used)
        others = [tf.convert_to_tensor(gradient) for gradient in of_weights]
        weight = share.counts[0]
        if loss_scale is not None:
            loss, weight = loss / loss_scale, weight * loss_scale
        return Sums(loss, weight, [of_embedding] if model.projects_by_embedding else [], others, rows)

    return tower_gradients


def _summed_loss(
    model: Seq2Seq,
    attended: tf.Tensor,
    copies: Copies | tuple[()],
    sampled_rows: list[tf.Tensor],
    share: Share,
    token_weights: tf.Tensor,
) -> tf.Tensor:
    """Return the loss sum. sampled_rows: the embedding's of targets and samples, if model.looks_up_samples."""
    if model.sampled is None:
        decoded = model.with_question(attended, copies, share.source, share.target_in)
        return model.summed_loss(decoded, share.targets, token_weights)
    ids = share.targets, share.samples
    targets, samples = sampled_rows or (tf.gather(tf.convert_to_tensor(model.projection), x) for x in ids)
    return model.sampled_loss(attended, targets, samples, *ids, token_weights)


def _placed(device: str | None) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes a block on a device; None: on that of the caller."""
    return contextlib.nullcontext if device is None else lambda: tf.device(device)


def dense(projection: Sequence[tf.Tensor], rows: tf.Tensor, used: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return the gradient of the embedding, [vocabulary, embedding], from the fields of `Sums`.

    Optimizers need it dense. used: `ids_used`, [used] int64. No id repeats, so that the result is equal to the bit on
    all replicas. shape: that of the embedding.
    """
    start = projection[0] if projection else tf.zeros(shape)
    return scatter_add(start, used[:, None], rows)

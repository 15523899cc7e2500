"""The Transformer against a slow twin in NumPy. test_seq2seq.py has its gradients."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from chatbot.config.form import Form
from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import BOS
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import specs_of, unpack
from chatbot.model.transformer import CrossAttention, SelfAttention
from chatbot.model.transformer_parts import FeedForward, Normalisation, Product
from chatbot.training.new_model import built_model
from tests.model.small_transformer import TRANSFORMER

Array = npt.NDArray[np.float64]
VOCABULARY = 17
SETTINGS = ModelSettings(**TRANSFORMER)
QUESTIONS = [[7, 8, 9, 10, 11], [4, 5, 6]]
REPLIES = [[BOS, 5, 6], [BOS, 12, 13, 14, 5]]


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    model = built_model(SETTINGS, VOCABULARY, seed=1)
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:  # also biases, gains and shifts
        variable.assign(variable + generator.normal(size=variable.shape, scale=0.2))
    return model


def numpy_of(variable: Any) -> Array:
    return np.asarray(variable.numpy(), np.float64)


def product(layer: Product, x: Array) -> Array:
    return x @ numpy_of(layer.kernel) + (0 if layer.bias is None else numpy_of(layer.bias))


def normalised(layer: Normalisation, x: Array) -> Array:
    deviations = x - x.mean(-1, keepdims=True)
    return deviations / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * numpy_of(layer.gain) + numpy_of(layer.shift)


def means(factors: list[Array], mask: Array) -> Array:
    """One head after another. factors: queries [target, size], keys and values [source, size]. mask: bool matrix."""
    heads = []
    for q, k, v in zip(*(np.split(x, SETTINGS.heads, -1) for x in factors), strict=True):
        exponentials = np.exp(q @ k.T / np.sqrt(q.shape[-1])) * mask
        heads.append(exponentials / exponentials.sum(-1, keepdims=True) @ v)
    return np.concatenate(heads, -1)


def self_attention(layer: SelfAttention, x: Array, mask: Array) -> Array:
    parts = np.split(product(layer.project, normalised(layer.normalise, x)), 3, -1)
    return product(layer.combine, means(parts, mask))


def cross_attention(layer: CrossAttention, number: int, x: Array, memory: Array) -> Array:
    size = SETTINGS.embedding_size
    part = product(layer.key_values, memory)[:, 2 * size * number : 2 * size * (number + 1)]
    queries = product(layer.project[number], normalised(layer.normalise[number], x))
    return product(layer.combine[number], means([queries, *np.split(part, 2, -1)], np.ones((len(x), len(memory)))))


def feed_forward(layer: FeedForward, x: Array) -> Array:
    hidden = product(layer.widen, normalised(layer.normalise, x))
    return product(layer.narrow, hidden / (1 + np.exp(-hidden)))


def embedded(model: Seq2Seq, ids: list[int]) -> Array:
    """Embeddings times the root of their size, plus sines and cosines of the positions."""
    size = SETTINGS.embedding_size
    rates = 10_000.0 ** -(np.arange(size // 2) / (size // 2))
    angles = np.arange(len(ids))[:, None] * rates
    positions = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    return numpy_of(model.embedding.embeddings)[ids] * np.sqrt(size) + positions


def slow_logits(model: Seq2Seq, question: list[int], reply: list[int]) -> Array:
    """[reply, vocabulary]."""
    encoder: Any = model.encoder
    decoder: Any = model.decoder
    memory = embedded(model, question)
    for attention, products in zip(encoder.attentions, encoder.feed_forwards, strict=True):
        memory = memory + self_attention(attention, memory, np.ones((len(question), len(question))))
        memory = memory + feed_forward(products, memory)
    memory = normalised(encoder.normalise, memory)
    x = embedded(model, reply)
    for i, (attention, products) in enumerate(zip(decoder.attentions, decoder.feed_forwards, strict=True)):
        x = x + self_attention(attention, x, np.tri(len(reply)))
        x = x + cross_attention(decoder.attention, i, x, memory)
        x = x + feed_forward(products, x)
    return normalised(decoder.normalise, x) @ numpy_of(model.projection).T + numpy_of(model.bias)


@pytest.mark.parametrize("plain", [False, True])
def test_logits_are_those_of_the_slow_twin(model: Seq2Seq, plain: bool) -> None:
    """On packed tokens, and on padded ones."""
    other = Seq2Seq(dataclasses.replace(SETTINGS, plain_layers=plain), VOCABULARY)
    for variable, value in zip(other.trainable_variables, model.trainable_variables, strict=True):
        variable.assign(value)
    source, target = (other.sequences(tf.keras.utils.pad_sequences(x, padding="post")) for x in (QUESTIONS, REPLIES))
    logits = unpack(other(source, target), target.packing)
    for row, question, reply in zip(logits, QUESTIONS, REPLIES, strict=True):
        np.testing.assert_allclose(row[: len(reply)], slow_logits(model, question, reply), atol=1e-4)


def kept_masks(graph: Any, upstream: Any) -> int:
    """The number of dropout masks that are drawn before the gradients, and kept for them. upstream: their input."""
    after, queue = {upstream.op}, [upstream.op]
    while queue:
        reached = {consumer for tensor in queue.pop().outputs for consumer in tensor.consumers()} - after
        after |= reached
        queue += reached
    read = {tensor.ref() for operation in after for tensor in operation.inputs if tensor.op not in after}
    return sum(is_mask(tensor.deref().op) for tensor in read)


def is_mask(operation: Any) -> bool:
    """Whether the operation is one of those between drawn numbers and a mask."""
    between = operation.type in ("GreaterEqual", "Cast", "Mul", "Unpack") and is_mask(operation.inputs[0].op)
    return operation.type == "StatelessRandomUniformV2" or between


@pytest.mark.parametrize("form", [Form(), Form(norm_first=False, positions="relative", buckets=6, farthest=8)], ids=str)
def test_activations_that_are_computed_again_change_no_gradient(form: Form) -> None:
    """But for rounding, of weights and embeddings, with dropout and with copying. No mask is kept for the gradients.

    TensorFlow's optimiser of graphs joins operations whose results are needed once, which rounds otherwise.
    """
    found, products, masks = [], [], []
    for recomputes in (False, True):
        settings = dataclasses.replace(SETTINGS, recompute_activations=recomputes, keep_prob=0.7, form=form)
        model = built_model(settings, VOCABULARY, seed=1)
        sides = [model.sequences(tf.keras.utils.pad_sequences(x, padding="post")) for x in (QUESTIONS, REPLIES)]
        values = [tf.identity(variable.value) for variable in model.trainable_variables]
        inputs = values, tf.constant(1.0), [*sides, tf.constant([3], tf.uint64)]

        def gradients(values: list[tf.Tensor], upstream: tf.Tensor, given: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(values)
                with tf.keras.StatelessScope([*zip(model.trainable_variables, values, strict=True)]):  # noqa: B023
                    loss = tf.reduce_sum(tf.sin(model(*given)))  # noqa: B023  # traced in this turn
            return tape.gradient(loss, values, upstream, unconnected_gradients="zero")

        specs = [values, inputs[1], specs_of(inputs[2])]
        traced = tf.function(gradients, autograph=False).get_concrete_function(*specs)
        found.append([tf.convert_to_tensor(x).numpy() for x in traced(*tf.nest.map_structure(tf.constant, inputs))])
        graph = traced.graph
        products.append(sum(operation.type in ("MatMul", "BatchMatMulV2") for operation in graph.get_operations()))
        masks.append(kept_masks(graph, graph.inputs[len(values)]))
    for variable, one, other in zip(model.trainable_variables, *found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * np.abs(one).max(), rtol=1e-5, err_msg=variable.path)
        assert one.any() or variable.path.endswith("bias")
    layers = SETTINGS.num_layers
    assert masks == [2 + layers * 2 + layers * 3, 2]  # those of the embeddings are of no layer
    assert products[1] - products[0] == layers * 6 + layers * 10  # four products and two of attention; twice that many

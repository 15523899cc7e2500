"""The Transformer from scratch: its positions and activation, and activations computed again.

tests/pretrained/test_weights.py compares all else with transformers; test_seq2seq.py and tests/training/
test_gradients.py have gradients.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.form import Form
from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import BOS
from chatbot.decoding.interface import pad_rows
from chatbot.model.sequences import unsized_specs
from chatbot.model.transformer_parts import silu, sinusoids
from chatbot.training.new_model import build_model
from tests.model.small_transformer import TRANSFORMER

VOCABULARY = 17
SETTINGS = ModelSettings(**TRANSFORMER)
QUESTIONS = [[7, 8, 9, 10, 11], [4, 5, 6]]
REPLIES = [[BOS, 5, 6], [BOS, 12, 13, 14, 5]]


def test_positions_are_sinusoids_and_the_activation_is_silu() -> None:
    """Pretrained models have neither. Wavelengths are from 2 pi to almost 10,000 times 2 pi."""
    angles = np.array([[place * 10_000.0 ** -(i / 3) for i in range(3)] for place in (0, 1, 7)])
    expected = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    np.testing.assert_allclose(sinusoids(tf.constant([0.0, 1.0, 7.0]), 6), expected, atol=1e-6)
    x = tf.linspace(-5.0, 5.0, 11)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        found, plain = silu(x), x / (1 + tf.exp(-x))
    np.testing.assert_allclose(found, plain, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(found, x), tape.gradient(plain, x), atol=1e-6)


def kept_masks(graph: Any, upstream: Any) -> int:
    """Count the dropout masks that are drawn before the gradients and kept for them. upstream: the gradients' input."""
    after, queue = {upstream.op}, [upstream.op]
    while queue:
        reached = {consumer for tensor in queue.pop().outputs for consumer in tensor.consumers()} - after
        after |= reached
        queue += reached
    read = {tensor.ref() for operation in after for tensor in operation.inputs if tensor.op not in after}
    return sum(is_mask(tensor.deref().op) for tensor in read)


def is_mask(operation: Any) -> bool:
    """Return whether an operation computes a mask from random numbers."""
    between = operation.type in ("GreaterEqual", "SelectV2", "SplitV") and is_mask(operation.inputs[0].op)
    return operation.type == "StatelessRandomUniformV2" or between


def test_a_model_without_biases_has_none() -> None:
    """Like T5, which the slow tests compare with transformers."""
    form = Form(
        biases=False, attention_biases=False, norm="rms", gated=True, positions="relative", buckets=6, farthest=8
    )
    model = build_model(dataclasses.replace(SETTINGS, form=form), VOCABULARY, seed=1)
    assert {variable.name for variable in model.trainable_variables} == {"kernel", "gain", "distances", "embeddings"}


@pytest.mark.parametrize("form", [Form(), Form(norm_first=False, positions="relative", buckets=6, farthest=8)], ids=str)
def test_recomputed_activations_change_no_gradient(form: Form) -> None:
    """Gradients are equal except for rounding, with dropout and with copying. No mask is kept for them.

    TensorFlow's optimiser of graphs joins operations whose results are needed once, which rounds otherwise.
    """
    found, products, masks = [], [], []
    for recomputes in (False, True):
        settings = dataclasses.replace(SETTINGS, recompute_activations=recomputes, keep_prob=0.7, form=form)
        model = build_model(settings, VOCABULARY, seed=1)
        sides = [model.sequences(pad_rows(x)) for x in (QUESTIONS, REPLIES)]
        values = [tf.identity(variable.value) for variable in model.trainable_variables]
        inputs = values, tf.constant(1.0), [*sides, tf.constant([3], tf.uint64)]

        def gradients(values: list[tf.Tensor], upstream: tf.Tensor, given: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(values)
                with tf.keras.StatelessScope([*zip(model.trainable_variables, values, strict=True)]):  # noqa: B023
                    loss = tf.reduce_sum(tf.sin(model(*given)))  # noqa: B023  # traced in this turn
            return tape.gradient(loss, values, upstream, unconnected_gradients="zero")

        specs = [values, inputs[1], unsized_specs(inputs[2])]
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

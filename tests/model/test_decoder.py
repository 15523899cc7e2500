"""Input feeding against a plain loop over the tokens, with Keras's cells and NumPy.

test_gradients.py of training compares its loop on a CPU with that on a GPU.
"""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.new_model import built_model
from chatbot.model.recurrent import recurrent_layer, uniform
from chatbot.model.sequences import unpack

KEY = tf.constant([7], tf.uint64)
KEEP = 0.8
SOURCE, TARGET_IN = np.array([[7, 8, 9, 4], [4, 5, 0, 0]]), np.array([[1, 5, 7], [1, 8, 0]])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_input_feeding_equals_plain_loop(cell: str) -> None:
    """With dropout."""
    settings = ModelSettings(cell=cell, rnn_size=8, embedding_size=6, input_feeding=True, keep_prob=KEEP)
    model = built_model(settings, 17, seed=1)
    source, target_in = model.sequences(SOURCE), model.sequences(TARGET_IN)
    state = model.encode(source, KEY)
    decoder, embedded = model.decoder, model.embed(tf.constant(TARGET_IN)).numpy()
    plain_layer, (layer,) = recurrent_layer(cell, 12, 8), decoder.stack.recurrent
    plain_layer.set_weights(layer.get_weights())
    input_mask = (uniform([3, 2, 12], KEY, 300).numpy() >= 1 - KEEP) / KEEP
    packed_mask = (uniform([len(target_in.packing.to_packed), 6], KEY, 400).numpy() >= 1 - KEEP) / KEEP
    output_mask = unpack(tf.constant(packed_mask), target_in.packing).numpy()

    states, fed, expected = state["cells"][0], np.zeros((2, 6)), []
    for position in range(3):
        inputs = np.concatenate([embedded[:, position], fed], -1) * input_mask[position]
        output, states = plain_layer.cell(tf.constant(inputs, tf.float32), states)
        scores = np.einsum("ru,rsu->rs", output, state["keys"])
        weights = np.exp(scores) * source.mask / (np.exp(scores) * source.mask).sum(-1, keepdims=True)
        context = np.einsum("rs,rsu->ru", weights, state["memory"])
        fed = np.tanh(np.concatenate([output, context], -1) @ decoder.combine.kernel.numpy())
        expected.append(fed)
    attended = unpack(model.decoded(source, target_in, KEY).attended, target_in.packing)
    for row, length in enumerate((3, 2)):
        wanted = (np.stack(expected, 1) * output_mask)[row, :length]
        np.testing.assert_allclose(attended[row, :length], wanted, atol=1e-5)

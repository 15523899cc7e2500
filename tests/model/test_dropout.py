"""Dropout: masks are functions of a key, and equal a plain computation with masked weights."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.dropout import Dropout, TokenTypeDropout, uniform
from chatbot.model.new_model import built_model
from chatbot.model.packing import pack, packing_of, unpack
from chatbot.model.seq2seq import Seq2Seq
from tests.model.fast.cudnn_emulation import emulate_gpu

VOCABULARY = 17
KEY = tf.constant([7], tf.uint64)
SMALL = ModelSettings(rnn_size=8, embedding_size=6, num_layers=2, keep_prob=1.0)
SOURCE, TARGET_IN = np.array([[7, 8, 9, 4], [4, 5, 0, 0]]), np.array([[1, 5, 7], [1, 8, 0]])
REAL = 5  # the real tokens of TARGET_IN; fillers are undefined


def test_dropout_is_a_function_of_its_key_and_number() -> None:
    ones = tf.ones([100, 100])
    key = tf.constant([1], tf.uint64)
    outputs = Dropout(0.8, 3)(ones, key).numpy()
    np.testing.assert_array_equal(outputs, Dropout(0.8, 3)(ones, key).numpy())
    assert np.any(outputs != Dropout(0.8, 4)(ones, key).numpy())
    assert np.any(outputs != Dropout(0.8, 3)(ones, tf.constant([2], tf.uint64)).numpy())
    assert set(np.unique(outputs)) == {0.0, np.float32(1.25)}
    assert abs((outputs > 0).mean() - 0.8) < 0.02
    np.testing.assert_array_equal(Dropout(0.8, 3)(ones, None), ones)


def test_variational_dropout_has_one_mask_a_row_in_every_layout() -> None:
    lengths = np.array([2, 4, 3])
    packing = packing_of(lengths, 5)
    inputs = tf.random.stateless_normal([3, 5, 20], [1, 2])
    dropout = Dropout(0.75, 3, variational=True)
    padded = dropout(inputs, KEY, packing)
    mask = uniform([3, 20], KEY, 3).numpy() >= 0.25
    assert len({row.tobytes() for row in mask}) == 3
    np.testing.assert_allclose(padded, inputs.numpy() * mask[:, None] / 0.75, rtol=1e-6)
    real = (np.arange(5) < lengths[:, None])[..., None]
    packed = unpack(dropout(pack(inputs, packing), KEY, packing), packing)
    np.testing.assert_array_equal(packed * real, padded * real)


def test_embedding_dropout_drops_all_occurrences_of_a_token() -> None:
    ids = np.random.default_rng(1).integers(0, 50, [8, 9])
    dropped = TokenTypeDropout(0.75, 50)(tf.ones([8, 9, 4]), tf.constant(ids), KEY).numpy()
    kept = {token: set(dropped[ids == token].ravel().tolist()) for token in np.unique(ids)}
    assert all(len(values) == 1 for values in kept.values())
    assert {value for values in kept.values() for value in values} == {0.0, np.float32(1 / 0.75)}


def attended(model: Seq2Seq, key: tf.Tensor | None) -> np.ndarray:
    return model.decoded(model.sequences(SOURCE), model.sequences(TARGET_IN), key).attended.numpy()[:REAL]


def masked_weights(model: Seq2Seq, settings: ModelSettings) -> None:
    """Apply the masks of the key to the embedding and to the recurrent weights."""
    if settings.embedding_keep_prob < 1:
        kept = uniform([VOCABULARY], KEY, 500).numpy() >= 1 - settings.embedding_keep_prob
        model.embedding.embeddings.assign(model.embedding.embeddings * kept[:, None] / settings.embedding_keep_prob)
    if settings.recurrent_keep_prob < 1:
        stacks = {1100: model.encoder.forward, 1200: model.encoder.backward, 1300: model.decoder.stack}
        for first, stack in stacks.items():
            for number, layer in enumerate(stack.recurrent if stack else []):
                weight = layer.cell.recurrent_kernel
                kept = uniform(weight.shape, KEY, first + number).numpy() >= 1 - settings.recurrent_keep_prob
                weight.assign(weight * kept / settings.recurrent_keep_prob)


@pytest.mark.parametrize("path", ["fast", "plain", "gpu"])
@pytest.mark.parametrize(
    ("cell", "changes"),
    [("lstm", {"embedding_keep_prob": 0.6, "recurrent_keep_prob": 0.5}), ("gru", {"recurrent_keep_prob": 0.7})],
)
def test_dropout_of_weights_equals_a_model_with_masked_weights(
    cell: str, changes: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(SMALL, cell=cell, fast=("none",) if path == "plain" else SMALL.fast, **changes)
    model, masked = (built_model(settings, VOCABULARY, seed=1) for _ in range(2))
    masked_weights(masked, settings)
    if path == "gpu":
        emulate_gpu(monkeypatch)
    np.testing.assert_allclose(attended(model, KEY), attended(masked, None), atol=1e-6)
    assert np.abs(attended(model, KEY) - attended(model, None)).max() > 1e-3

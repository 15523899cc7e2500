"""The sampled softmax against its formula, and against the exact softmax."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.batches import GlobalBatch, pad_batch
from chatbot.corpus.vocabulary import PAD
from chatbot.model.decoder import Decoded
from chatbot.model.loss import draw_samples, sampled_loss
from chatbot.model.new_model import built_model
from chatbot.training.gradients import gradient_function
from chatbot.training.selftest import random_pairs
from chatbot.training.share import Preparation, looked_up
from tests.model.plain_loss import sequence_loss
from tests.training.dense_gradients import shares_of, single_groups

TOKENS, UNITS, VOCABULARY = 30, 4, 50
SEED = [1, 2]


def random_values() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    shapes = ((TOKENS, UNITS), (VOCABULARY, UNITS), (VOCABULARY,))
    return *(rng.normal(size=s) for s in shapes), rng.integers(0, VOCABULARY, TOKENS), rng.choice([0.0, 1.0], TOKENS)


def loss_of(samples: int, dtype: str = "float32") -> tf.Tensor:
    attended, embeddings, bias, targets, weights = random_values()
    x, b, w = (tf.constant(value, tf.float32) for value in (attended, bias, weights))
    ids = draw_samples(samples, VOCABULARY, SEED)
    of_targets, of_samples = (tf.constant(embeddings[rows], tf.float32) for rows in (targets, ids))
    return sampled_loss(x, of_targets, of_samples, b, tf.constant(targets), tf.constant(ids), w, dtype)


def test_ids_are_drawn_by_zipfs_law() -> None:
    count = 200_000
    ids = draw_samples(count, VOCABULARY, SEED)
    expected = np.log((np.arange(VOCABULARY) + 2) / (np.arange(VOCABULARY) + 1)) / np.log(VOCABULARY + 1)
    np.testing.assert_allclose(np.bincount(ids, minlength=VOCABULARY) / count, expected, atol=0.003)
    assert draw_samples(9, VOCABULARY, [1, 2]).tolist() != draw_samples(9, VOCABULARY, [1, 3]).tolist()


def test_sampled_loss_equals_its_formula() -> None:
    """One position at a time, in float64."""
    samples = 7
    attended, embeddings, bias, targets, weights = random_values()
    ids = draw_samples(samples, VOCABULARY, SEED)
    expected = samples * np.log((np.arange(VOCABULARY) + 2) / (np.arange(VOCABULARY) + 1)) / np.log(VOCABULARY + 1)
    total = 0.0
    for x, target, weight in zip(attended, targets, weights, strict=True):
        others = [k for k in ids if k != target]  # a sample that is the target does not count
        of_target = x @ embeddings[target] + bias[target]
        sum_of_others = sum(np.exp(x @ embeddings[k] + bias[k]) / expected[k] for k in others)
        total += weight * (np.log(np.exp(of_target) + sum_of_others) - of_target)
    assert float(loss_of(samples)) == pytest.approx(total, rel=1e-4)
    assert float(loss_of(samples, "bfloat16")) == pytest.approx(total, rel=0.02)


def test_sampled_loss_converges_to_exact_loss() -> None:
    attended, embeddings, bias, targets, weights = random_values()
    logits = tf.constant(attended @ embeddings.T + bias)
    exact = float(sequence_loss(logits, tf.constant(targets), tf.constant(weights, tf.float32)))
    few, many = (abs(float(loss_of(samples)) - exact) for samples in (4, 20_000))
    assert many < 0.02 * exact < few


def test_training_samples_and_validation_does_not() -> None:
    """The gradient of the embedding has rows only, of the ids in the batch and of the samples."""
    settings = ModelSettings(rnn_size=8, embedding_size=UNITS, sampled_softmax=4)
    model = built_model(settings, VOCABULARY, seed=1)
    attended, targets, weights = tf.ones([3, UNITS]), tf.constant([5, 6, 7]), tf.ones(3)
    exact = sequence_loss(model.project(attended), targets, weights)
    assert float(model.summed_loss(Decoded(attended), targets, weights)) == pytest.approx(float(exact), rel=1e-6)
    batch = GlobalBatch((pad_batch(random_pairs(6, 1), np.arange(6), 9, 10),), 6, np.arange(VOCABULARY))
    ((share,),) = [shares_of(Preparation(model, 1, ["/CPU:0"])(batch, 0))]
    groups = single_groups(model)
    values = [model.trainable_variables[group.indices[0]].value for group in groups]
    sums = gradient_function(model, groups, "/CPU:0")(values, share)
    assert sums.projection == []
    read = {int(i) for ids in looked_up(share, model) for i in ids.ravel()}
    changed = set(np.nonzero(np.abs(sums.rows.numpy()).sum(axis=1))[0].tolist())
    assert set(share.samples.tolist()) <= read
    assert changed - {PAD} == read - {PAD}

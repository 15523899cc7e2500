"""The sampled softmax against its formula, and against the exact softmax."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.model.loss import sequence_loss
from chatbot.model.sampled import NUMBER, sampled_loss
from chatbot.model.seq2seq import built_model

TOKENS, UNITS, VOCABULARY = 30, 4, 50
SEED = [1, 2]


def random_values() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    shapes = ((TOKENS, UNITS), (VOCABULARY, UNITS), (VOCABULARY,))
    return *(rng.normal(size=s) for s in shapes), rng.integers(0, VOCABULARY, TOKENS), rng.choice([0.0, 1.0], TOKENS)


def loss_of(samples: int, dtype: str = "float32") -> tf.Tensor:
    attended, embeddings, bias, targets, weights = random_values()
    x, e, b, w = (tf.constant(value, tf.float32) for value in (attended, embeddings, bias, weights))
    return sampled_loss(x, e, b, tf.constant(targets, tf.int32), w, samples, SEED, dtype)


def test_sampled_loss_equals_its_formula() -> None:
    """One position at a time, in float64."""
    samples = 7
    attended, embeddings, bias, targets, weights = random_values()
    uniform = tf.random.stateless_uniform([samples], tf.random.experimental.stateless_fold_in(SEED, NUMBER)).numpy()
    ids = (np.exp(uniform.astype(np.float64) * np.log(VOCABULARY + 1))).astype(int) - 1
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


def test_model_samples_in_training_only() -> None:
    """Without a seed, as in validation, the loss is exact."""
    settings = ModelSettings(rnn_size=8, embedding_size=UNITS, sampled_softmax=4)
    model = built_model(settings, VOCABULARY, seed=1)
    attended, targets, weights = tf.ones([3, UNITS]), tf.constant([5, 6, 7]), tf.ones(3)
    exact = sequence_loss(model.project(attended), targets, weights)
    assert float(model.summed_loss(attended, targets, weights)) == pytest.approx(float(exact), rel=1e-6)
    embeddings, bias = map(tf.convert_to_tensor, (model.embedding.embeddings, model.bias))
    sampled = sampled_loss(attended, embeddings, bias, targets, weights, 4, SEED)
    assert float(model.summed_loss(attended, targets, weights, SEED)) == pytest.approx(float(sampled), rel=1e-6)
    assert float(sampled) != pytest.approx(float(exact), rel=1e-3)

"""The model: padding has no effect, decoding equals teacher forcing, gradients; the weights that it begins with."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD
from chatbot.decoding.ngrams import count_ngrams
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import unpack
from chatbot.training.new_model import build_model, start_from_frequencies
from tests.model.small_transformer import TRANSFORMER
from tests.tiny_models import enlarge

VOCABULARY = 17
SMALL = ModelSettings(rnn_size=8, embedding_size=6, num_layers=2)
SEED = 5
# Every pair of a cell and an attention, each direction, and every option of the layers.
CHOICES: dict[str, dict[str, Any]] = {
    "lstm-luong-bi": {},
    "gru-luong-uni": {"cell": "gru", "bidirectional": False},
    "lstm-bahdanau-uni": {"attention": "bahdanau", "bidirectional": False},
    "gru-bahdanau-copy": {"cell": "gru", "attention": "bahdanau", "copy": True},
    "lstm-none-uni": {"attention": "none", "bidirectional": False},
    "gru-none-bi": {"cell": "gru", "attention": "none"},
    "lstm-residual-untied": {"residual": True, "tied_embeddings": False},
    "gru-residual-deep": {"cell": "gru", "residual": True, "num_layers": 3, "bidirectional": False},
    "transformer-copy-untied": {**TRANSFORMER, "copy": True, "tied_embeddings": False, "num_layers": 3},
}
KINDS = [dataclasses.replace(SMALL, **choice) for choice in CHOICES.values()]
NAMES = list(CHOICES)


def all_logits(model: Seq2Seq, source: list, target_in: list) -> np.ndarray:
    """[rows, target, vocabulary] logits of every position; zeros at padding."""
    sequences = [model.sequences(np.array(ids)) for ids in (source, target_in)]
    logits = unpack(model(*sequences), sequences[1].packing)
    return np.where(sequences[1].mask[..., None], logits, 0.0)


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
def test_decoding_step_by_step_equals_teacher_forcing_of_padded_rows(settings: ModelSettings) -> None:
    """Padding changes nothing. Hypotheses that share a memory decode like separate rows with the same question."""
    model = build_model(settings, VOCABULARY, SEED)
    source, target_in = [[7, 8, 9, PAD], [4, 5, PAD, PAD]], [[BOS, 5, 6, 7, PAD], [BOS, 8, 4, 9, 5]]
    all_at_once = all_logits(model, source, target_in)
    np.testing.assert_allclose(all_at_once[0, :4], all_logits(model, [[7, 8, 9]], [[BOS, 5, 6, 7]])[0], atol=1e-5)
    state = model.encode(model.sequences(np.array(source)))
    state["cells"] = tf.nest.map_structure(lambda x: tf.repeat(x, 2, axis=0), state["cells"])
    for position, ids in enumerate(np.transpose(target_in)[:4]):
        others = np.where(position, ids + 3, ids)  # of a second hypothesis of each row
        logits, state = model.step(state, tf.constant(np.stack([ids, others], 1).ravel()))
        np.testing.assert_allclose(logits[::2], all_at_once[:, position], atol=1e-5)
    other_in = [[BOS, 8, 9, 10], [BOS, 11, 7, 12]]
    np.testing.assert_allclose(logits[1::2], all_logits(model, source, other_in)[:, 3], atol=1e-5)


@pytest.mark.parametrize("name", ["lstm-residual-untied", "gru-bahdanau-copy", "transformer-copy-untied"])
def test_gradients_of_a_loss_with_dropout_equal_finite_differences(name: str) -> None:
    """Checks random directions in the space of all weights."""
    model = build_model(dataclasses.replace(SMALL, **CHOICES[name], keep_prob=0.8), VOCABULARY, SEED)
    enlarge(model)
    rows = [[7, 8, 9], [4, 5, PAD]], [[BOS, 5, 7], [BOS, 8, PAD]]
    source, target_in = (model.sequences(np.array(ids)) for ids in rows)
    targets, weights = (tf.constant([5, 8, 7, 9, EOS, *[0] * 11], dtype) for dtype in (tf.int64, tf.float32))

    def loss() -> tf.Tensor:
        decoded = model.decoded(source, target_in, tf.constant([3], tf.uint64))
        return model.summed_loss(decoded, targets, weights)

    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        value = loss()
    gradients = [tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(value, variables)]
    before, generator = [variable.numpy() for variable in variables], np.random.default_rng(1)
    for _ in range(3):
        directions = [generator.normal(size=x.shape) for x in before]
        directions = [0.003 * direction / np.linalg.norm(direction) for direction in directions]
        values = []
        for sign in (1, -1):
            for variable, x, direction in zip(variables, before, directions, strict=True):
                variable.assign(x + sign * direction)
            values.append(float(loss()))
        analytic = sum(float(np.sum(g * d)) for g, d in zip(gradients, directions, strict=True))
        assert (values[0] - values[1]) / 2 == pytest.approx(analytic, rel=0.005, abs=5e-5)


def test_frozen_model_computes_the_same() -> None:
    """It uses copies of the projection and of the n-grams, which all graphs share."""
    rows = np.random.default_rng(1).integers(5, VOCABULARY, (200, 6))
    ngrams = count_ngrams([Ragged.from_rows(rows.tolist())], VOCABULARY, 3)
    model = build_model(dataclasses.replace(SMALL, ngrams=3), VOCABULARY, seed=1, ngrams=ngrams)
    largest = max(len(order.ids) for order in ngrams.orders)
    state, found = model.encode(model.sequences(np.array([[5, 6]]))), []
    for number in (0, 1):
        step = tf.function(lambda *x: model.step(*x), autograph=False).get_concrete_function(state, np.array([7]))
        constants = [op.outputs[0].shape.num_elements() for op in step.graph.get_operations() if op.type == "Const"]
        assert (max(constants) >= largest) == (number == 0)
        found.append(step(state, np.array([7]))[0])
        model.freeze()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    attended = tf.random.stateless_normal([3, SMALL.embedding_size], [1, 2])
    logits = model.project(attended)
    model.embedding.embeddings.assign(tf.zeros_like(model.embedding.embeddings))
    np.testing.assert_array_equal(model.project(attended), logits)


def test_weights_are_a_function_of_the_seed_and_drawn_independently() -> None:
    settings = dataclasses.replace(SMALL, embedding_size=8)  # several have equal shapes
    first, again, other = (
        [
            weight.numpy().tobytes()
            for weight in build_model(settings, VOCABULARY, seed).trainable_variables
            if weight.name != "bias"
        ]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert not {*first} & {*other}
    assert len({*first}) == len(first)


def test_fused_projections_are_drawn_separately() -> None:
    """Each fused part has its own variance: queries, keys and values of a layer, and keys and values of all layers."""
    settings = ModelSettings(**{**TRANSFORMER, "embedding_size": 64, "num_layers": 3})
    fused = [
        w for w in build_model(settings, VOCABULARY, SEED).trainable_variables if w.shape in ((64, 192), (64, 384))
    ]
    assert len(fused) == 7
    for weight in fused:
        for part in np.split(weight.numpy(), weight.shape[1] // 64, axis=1):
            np.testing.assert_allclose(part.var(), 2 / (64 + 64), rtol=0.1)


def test_bias_starts_at_the_log_frequencies_of_the_replies() -> None:
    """Two shards of three replies. The tokens 8 and 9 occur once."""
    model = build_model(SMALL, VOCABULARY, SEED)
    targets = [Ragged.from_rows(rows) for rows in ([[7, 7, 8], [7]], [[9, 7]])]
    start_from_frequencies(model, [EncodedPairs.question_to_answer(rows, rows, rows.lengths) for rows in targets])
    counts = dict.fromkeys(range(VOCABULARY), 0) | {7: 4, 8: 1, 9: 1, EOS: 3}
    smoothed = np.array([0 if token in (PAD, BOS, ASK) else count + 0.1 for token, count in counts.items()])
    np.testing.assert_allclose(np.exp(model.bias.numpy()), smoothed / smoothed.sum(), atol=1e-6)


def test_each_direction_of_the_encoder_ends_with_its_last_state() -> None:
    """The forward half of the memory ends at the last token of a question, the backward half at the first."""
    model = build_model(SMALL, VOCABULARY, SEED)
    source = model.sequences(np.array([[7, 8, 9, 10], [7, 8, PAD, PAD]]))
    memory, states = model.encoder(model.embed(source.ids), source, None)
    half, last_h = SMALL.rnn_size // 2, states[-1][0]
    for row, length in enumerate((4, 2)):
        np.testing.assert_allclose(memory[row, length - 1, :half], last_h[row, :half], atol=1e-6)
        np.testing.assert_allclose(memory[row, 0, half:], last_h[row, half:], atol=1e-6)
        assert np.abs(memory[row, 1, half:] - last_h[row, half:]).max() > 1e-4

"""Pretrained models, small and random: what transformers computes with them (pretrained/make.py), and their files."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import BOS, EOS, SPECIALS, PieceVocabulary
from chatbot.decoding.interface import pad_rows
from chatbot.inference.replier import Replier
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.model.seq2seq import UNGENERATED_IDS, Seq2Seq
from chatbot.model.sequences import pack_array, padded_ids, unpack
from chatbot.pretrained.families import settings_of
from chatbot.pretrained.weights import read_weights, tensors_of
from tests.pretrained.tokenizer_files import MODELS, NAMES, model_in

VOCABULARY = 41
QUESTIONS = [[5, 9, 33, 7, 12, 40, 8, 6, 21, 30, 11, 4], [17, 3, 28]]
REPLIES = [[20, 4, 4], [35, 6, 19, 10, 22, 13, 39, 5, 16, 29]]


def rows_of(config: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Our first ids are those of padding, beginning, end and what is unknown, and one that the model does not have.

    The others are in another order than there.
    """
    pad, start, end = config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]
    others = [i for i in range(VOCABULARY) if i not in (pad, end)]
    return np.array([pad, start, end, others[0], -1, *reversed(others[1:])])


def loaded(name: str, label_smoothing: float = 0.0) -> tuple[Seq2Seq, npt.NDArray[np.int64]]:
    """Return the model of a family as our model, and the pretrained id of each token."""
    there = model_in(MODELS / name)
    values = {**settings_of(there.config, name), "tied_embeddings": not there.has_projection()}
    rows = rows_of(there.config)
    model = Seq2Seq(ModelSettings(**values, max_length=19), len(rows), label_smoothing=label_smoothing)
    read_weights(model, there, rows)
    return model, rows


def batch(model: Seq2Seq, rows: npt.NDArray[np.int64]) -> tuple[Any, ...]:
    """Return QUESTIONS, REPLIES after BOS, packed REPLIES with EOS and their weights, in our ids."""
    ours = {int(there): here for here, there in enumerate(rows) if here not in UNGENERATED_IDS}
    questions, replies = ([[ours[i] for i in row] for row in side] for side in (QUESTIONS, REPLIES))
    source, target_in = (model.sequences(pad_rows(side)) for side in (questions, [[BOS, *row] for row in replies]))
    ends = pad_rows([[*row, EOS] for row in replies])
    targets, weights = (pack_array(x, target_in.packing, 0) for x in (ends, (ends > 0).astype(np.float32)))
    return source, target_in, targets, weights


@pytest.mark.parametrize("name", NAMES)
def test_replies_equal_transformers(name: str) -> None:
    """Includes greedy search and beam search without a length penalty."""
    model, rows = loaded(name)
    settings = ModelSettings(**settings_of(model_in(MODELS / name).config, name), max_length=12)
    expected = np.load(MODELS / name / "expected.npz")
    ours = {int(there): here for here, there in enumerate(rows) if here not in UNGENERATED_IDS}
    pieces = [*map(chr, range(0x4E00, 0x4E00 + len(rows) - len(SPECIALS)))]
    description = {"texts": "Metaspace", "special": ["<p>", "<e>", "<u>"], "silent": [], "literal": [], "beginning": []}
    vocabulary = PieceVocabulary(pieces, description)
    questions = [[ours[i] for i in row] for row in QUESTIONS]
    for beams in (1, 3):
        decoding = DecodingSettings(beam_size=beams, length_penalty=0.0, min_reply_length=2)
        replier = Replier(TensorFlowModel(model), vocabulary, settings, decoding)
        found = [[*reply.ids] for reply in replier.best(questions)]
        assert found == [[ours[i] for i in row if ours[i] != EOS] for row in expected[f"replies {beams}"].tolist()]


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_equal_transformers(name: str) -> None:
    model, rows = loaded(name)
    expected = np.load(MODELS / name / "expected.npz")
    source, target, targets, weights = batch(model, rows)
    with tf.GradientTape() as tape:
        loss = model.summed_loss(model.decoded(source, target), targets, weights)
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)
    logits = unpack(model(source, target), target.packing).numpy()
    own = [i for i in range(len(rows)) if i not in UNGENERATED_IDS]
    wanted = expected["logits"][target.mask][:, rows[own]]
    np.testing.assert_allclose(logits[target.mask][:, own], wanted, atol=1e-4)
    table = [*tensors_of(model, model_in(MODELS / name).family)]
    assert {id(tensors.variable) for tensors in table} == {id(variable) for variable in model.trainable_variables}
    gradients = tape.gradient(loss, [tensors.variable.value for tensors in table])
    for tensors, gradient in zip(table, gradients, strict=True):
        value = tf.convert_to_tensor(gradient).numpy()
        for key, part in zip(tensors.names, np.split(value, len(tensors.names), -1), strict=True):
            if key == "final_logits_bias":
                continue  # transformers do not train it
            there = expected[f"gradient {key}"]
            there = there.T if tensors.transposed else there
            if tensors.per_token:  # that of the beginning has a row of its own here
                part = scattered(part, rows)
            if key.endswith("k_proj.bias"):
                assert not part.any()  # there it is rounding error
            else:
                np.testing.assert_allclose(part, there, atol=1e-3 * np.abs(there).max(), err_msg=key)


def scattered(gradient: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Sum the gradients of rows with the same pretrained id."""
    sums = np.zeros([VOCABULARY, *gradient.shape[1:]], np.float32)
    np.add.at(sums, rows[rows >= 0], gradient[rows >= 0])
    return sums


@pytest.mark.parametrize("name", NAMES)
def test_label_smoothing_excludes_tokens_that_are_never_generated(name: str) -> None:
    """The loss and its gradients equal those over the logits of all other tokens."""
    model, rows = loaded(name, label_smoothing=0.3)
    source, target, targets, weights = batch(model, rows)
    said = [i for i in range(len(rows)) if i not in UNGENERATED_IDS]
    with tf.GradientTape(persistent=True) as tape:
        decoded = model.decoded(source, target)
        loss = model.summed_loss(decoded, targets, weights)
        log_probabilities = tf.gather(tf.nn.log_softmax(model(source, target)), said, axis=1)
        of_targets = tf.gather(log_probabilities, np.searchsorted(said, targets), batch_dims=1)
        smoothed = 0.7 * of_targets + 0.3 * tf.reduce_mean(log_probabilities, 1)
        expected = -tf.reduce_sum(smoothed * weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for variable in model.trainable_variables:
        found, wanted = (
            tf.convert_to_tensor(tape.gradient(x, variable.value, unconnected_gradients="zero")).numpy()
            for x in (loss, expected)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-4 * max(1, np.abs(wanted).max()), err_msg=variable.path)


def test_padding_can_exceed_the_position_table() -> None:
    """A bucket can be longer than any sequence."""
    model, rows = loaded("bart")
    source, target, *_ = batch(model, rows)
    wide = model.sequences(np.pad(padded_ids(source).numpy(), [(0, 0), (0, 20)]))
    np.testing.assert_allclose(model(wide, target), model(source, target), atol=1e-6)

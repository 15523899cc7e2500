"""The gradient function of a tower: where dropout draws, and what the pieces of a share are."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batching.batches import Batch, Batches, pad_batch
from chatbot.flags import replace
from chatbot.model.dropout import Dropout
from chatbot.model.seq2seq import built_model
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.share import Preparation
from tests.model.fast.cudnn_emulation import emulate_gpu
from tests.training.dense_gradients import dense_gradients, whole_batch


def batch_of(pairs: int) -> Batch:
    """A batch of random pairs."""
    return pad_batch(random_pairs(pairs, 1), np.arange(pairs), 9, 10)


def test_every_layer_draws_dropout_masks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each recurrent layer of both directions and of the decoder, and before the projection."""
    drawn: list[int] = []
    call = Dropout.call

    def recorded(layer: Dropout, inputs: tf.Tensor, key: tf.Tensor | None) -> tf.Tensor:
        if key is not None:
            drawn.append(layer.number)
        return call(layer, inputs, key)

    monkeypatch.setattr(Dropout, "call", recorded)
    settings = replace(SETTINGS, bidirectional=True, num_layers=2, keep_prob=0.5)
    dense_gradients(built_model(settings.model, VOCABULARY, seed=1), batch_of(5))
    assert sorted(drawn) == [100, 101, 200, 201, 300, 301, 400]


@pytest.mark.parametrize(("pieces", "expected"), [(1, 1), (3, 3), (9, 7)])
def test_pieces_have_every_row_and_masks_of_their_own(pieces: int, expected: int) -> None:
    """A batch of seven rows."""
    model = built_model(SETTINGS.model, VOCABULARY, seed=1)
    batch = batch_of(7)
    prepared = Preparation(model, 3, ["/CPU:0"])(whole_batch(batch), 5, pieces)
    shares = [share for (share,) in prepared.shares]
    assert len(shares) == expected
    assert len({int(share.key[0]) for share in shares}) == expected
    assert sum(len(share.source.mask) for share in shares) == 7
    assert sum(float(share.counts[0]) for share in shares) == batch.weights.sum()
    assert sum(float(share.counts[1]) for share in shares) == 7


def test_a_tower_with_fewer_pairs_than_pieces_adds_nothing_in_the_others() -> None:
    """Five pairs for two towers: the second has two pairs, and three pieces."""
    model = built_model(SETTINGS.model, VOCABULARY, seed=1)
    batch = next(Batches([random_pairs(5, 1)], 5, 1).from_step(0, 2))
    prepared = Preparation(model, 3, ["/CPU:0", "/CPU:1"])(batch, 0, 9)
    assert [[float(share.counts[1]) for share in piece] for piece in prepared.shares] == [[1, 1], [1, 1], [1, 0]]
    assert not prepared.shares[2][1].weights.numpy().any()


@pytest.mark.parametrize(("cell", "copy"), [("lstm", True), ("gru", False)])
def test_gradients_on_a_gpu_equal_those_on_the_cpu(cell: str, copy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With cuDNN emulated. The embedding of padding gets no gradient in either layout."""
    settings = replace(SETTINGS, cell=cell, bidirectional=True, num_layers=2, copy=copy)
    model = built_model(settings.model, VOCABULARY, seed=1)
    expected_sums, expected = dense_gradients(model, batch_of(7))
    emulate_gpu(monkeypatch)
    sums, gradients = dense_gradients(model, batch_of(7))
    assert float(sums.loss) == pytest.approx(float(expected_sums.loss), rel=1e-5)
    assert not sums.rows[0].numpy().any()
    assert not expected_sums.rows[0].numpy().any()
    for actual, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-4)

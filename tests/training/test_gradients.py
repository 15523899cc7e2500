"""The gradient function of a tower: where dropout draws, pieces of a share, and positions of padding."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batching.batches import pad_batch
from chatbot.flags import replace
from chatbot.model.dropout import Dropout
from chatbot.model.seq2seq import Seq2Seq, built_model
from chatbot.training.gradients import Share, Sums, accumulate_gradients, gradient_function, trim_padding
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs


def share_of(pairs: int) -> Share:
    """A share of random pairs."""
    return tuple(map(tf.constant, pad_batch(random_pairs(pairs, 1), np.arange(pairs), 9, 10)))


def test_every_layer_draws_dropout_masks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each recurrent layer of both directions and of the decoder, and before the projection."""
    drawn: list[int] = []
    seeds_of_loss: list[Any] = []
    call, summed_loss = Dropout.call, Seq2Seq.summed_loss

    def recorded(layer: Dropout, inputs: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        if seed is not None:
            drawn.append(layer.number)
        return call(layer, inputs, seed)

    def recorded_loss(model: Seq2Seq, *arguments: Any) -> tf.Tensor:
        seeds_of_loss.append(arguments[3])
        return summed_loss(model, *arguments)

    monkeypatch.setattr(Dropout, "call", recorded)
    monkeypatch.setattr(Seq2Seq, "summed_loss", recorded_loss)
    settings = replace(SETTINGS, bidirectional=True, num_layers=2, keep_prob=0.5)
    model = built_model(settings.model, VOCABULARY, seed=1)
    gradient_function(model)(
        [variable.value for variable in model.trainable_variables], share_of(5), tf.constant([1, 0])
    )
    assert sorted(drawn) == [100, 101, 200, 201, 300, 301, 400]
    assert None not in seeds_of_loss  # for a sampled softmax


@pytest.mark.parametrize(("pieces", "expected"), [(1, 1), (3, 3), (9, 7)])
def test_pieces_have_every_row_and_masks_of_their_own(pieces: int, expected: int) -> None:
    """A share of seven rows."""
    seeds, rows = [], []

    def gradients(weights: Any, piece: Share, seed: tf.Tensor) -> Sums:
        seeds.append(tuple(seed.numpy().tolist()))
        rows.extend(piece[0].numpy().tolist())
        return Sums(tf.constant(1.0), tf.reduce_sum(piece[3]), [tf.ones(2)])

    share = share_of(7)
    sums = accumulate_gradients(gradients, [tf.zeros(2)], share, tf.constant([1, 2]), pieces, "/CPU:0")
    assert rows == share[0].numpy().tolist()
    assert len(set(seeds)) == len(seeds) == expected
    assert (float(sums.loss), sums.gradients[0].numpy().tolist()) == (expected, [expected] * 2)
    assert float(sums.weight) == share[3].numpy().sum()


def test_positions_are_removed_that_are_padding_in_every_row() -> None:
    source, target_in, target_out, weights = trim_padding(
        (
            tf.constant([[5, 0, 0, 0], [6, 7, 0, 0]]),
            tf.constant([[1, 5, 6, 0, 0], [1, 0, 0, 0, 0]]),
            tf.constant([[5, 6, 2, 0, 0], [2, 0, 0, 0, 0]]),
            tf.constant([[1.0, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
        )
    )
    assert source.numpy().tolist() == [[5, 0], [6, 7]]
    assert target_in.numpy().tolist() == [[1, 5, 6], [1, 0, 0]]
    assert target_out.numpy().tolist() == [[5, 6, 2], [2, 0, 0]]
    assert weights.numpy().tolist() == [[1, 1, 1], [1, 0, 0]]

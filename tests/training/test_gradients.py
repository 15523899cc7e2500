"""The gradient function of a tower: where dropout draws, and what the pieces of a share are."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batch, Batches, pad_batch
from chatbot.corpus.vocabulary import PAD
from chatbot.flags import replace
from chatbot.model.recurrent import apply_mask
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.new_model import build_model
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.share import Preparation
from tests.model.cudnn_emulation import emulate_gpu
from tests.model.small_transformer import TRANSFORMER
from tests.training.dense_gradients import dense_gradients, shares_of, whole_batch
from tests.training.slow_training import tape_gradients


def batch_of(pairs: int) -> Batch:
    """A batch of random pairs."""
    return pad_batch(random_pairs(pairs, 1), np.arange(pairs), 9, 10)


RECURRENT = {"bidirectional": True, "num_layers": 2}


@pytest.mark.parametrize(("changes", "masks"), [(RECURRENT, 7), (TRANSFORMER, 1 + 2 * 2 + 1 + 2 * 3)], ids=str)
def test_every_dropout_of_a_share_has_a_mask_of_its_own(
    changes: dict[str, Any], masks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each recurrent layer of both directions and of the decoder, and before the projection; or after each part.

    What is dropped in one place says nothing about another one, nor about another step.
    """
    applied: list[np.ndarray] = []

    def recorded(inputs: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
        if factors is not None:
            applied.append(factors.numpy() > 0)
        return apply_mask(inputs, factors)

    for module in ("transformer", "recurrent"):  # The first imports `apply_mask` from the second.
        monkeypatch.setattr(f"chatbot.model.{module}.apply_mask", recorded)
    settings = replace(SETTINGS, keep_prob=0.5, **changes)
    model = build_model(settings.model, VOCABULARY, seed=1)
    tape_gradients(model, batch_of(5), np.array([1], np.uint64))
    tape_gradients(model, batch_of(5), np.array([2], np.uint64))
    assert len(applied) == 2 * masks
    bits = [mask.ravel()[:200] for mask in applied]
    equal = [(a[: len(b)] == b[: len(a)]).mean() for a, b in itertools.combinations(bits, 2)]
    assert 0.2 < min(equal) < max(equal) < 0.8
    assert all(0.3 < mask.mean() < 0.7 for mask in applied)


def test_a_tower_with_fewer_pairs_than_pieces_adds_nothing_in_the_others() -> None:
    """Five pairs for two towers: the second has two pairs, and three pieces."""
    model = build_model(SETTINGS.model, VOCABULARY, seed=1)
    batch = next(Batches([random_pairs(5, 1)], 5, 1).from_step(0, 2))
    prepared = Preparation(model, 3, ["/CPU:0", "/CPU:1"])(batch, 0, 9)
    *_, last = shares = shares_of(prepared)
    assert [float(share.counts[1]) for share in shares] == [1, 1, 1, 1, 1, 0]
    assert sum(float(share.counts[0]) for share in shares) == sum(share.weights.sum() for share in batch.shares)
    assert not last.weights.any()


def model_of(settings: Settings) -> Seq2Seq:
    """A new model that never predicts padding."""
    model = build_model(settings.model, VOCABULARY, seed=1)
    model.bias.assign(tf.one_hot(PAD, VOCABULARY, -9.0))
    return model


def gradients_of_one_tape(model: Seq2Seq, batch: Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss sum of a share and its gradients by TensorFlow, of the model as it is called."""
    (share,) = shares_of(Preparation(model, 1, ["/CPU:0"])(whole_batch(batch), 0))
    return tape_gradients(model, batch, share.key)


# A GRU has the same layout of a batch, and so the same masks, on every path.
GRU = {"cell": "gru", "keep_prob": 0.8}
STACKS = {"residual": True, "num_layers": 3}


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("gpu", {"copy": True}),
        ("plain", {}),
        ("packed", STACKS),
        ("gpu", {"cell": "gru", **STACKS}),
        ("packed", {"tied_embeddings": False}),
        ("packed", {"copy": True, "keep_prob": 0.8}),
        ("gpu", {"copy": True, "attention": "bahdanau", **GRU}),
        ("packed", {"keep_prob": 0.8, "copy": True, **TRANSFORMER}),
        ("plain", {"tied_embeddings": False, **TRANSFORMER}),
        ("gpu", TRANSFORMER),
    ],
)
def test_gradients_of_a_tower_equal_those_of_one_tape(
    path: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By stages on packed tokens, on padded ones by Keras's layers ("plain"), and by cuDNN, emulated.

    The embedding of padding gets no gradient in any layout.
    """
    monkeypatch.setattr(tf, "function", lambda **_: lambda function: function)  # tracing takes seconds
    settings = replace(SETTINGS, **{"bidirectional": True, "num_layers": 2, **changes})
    model = model_of(settings)
    expected_loss, expected = gradients_of_one_tape(model, batch_of(7))
    if path == "gpu":
        emulate_gpu(monkeypatch)
        model = model_of(settings)
    elif path == "plain":
        model = model_of(replace(settings, plain_layers=True))
    sums, gradients = dense_gradients(model, batch_of(7), min_group_bytes=1 << 30 if path == "gpu" else 0)
    assert float(sums.loss) == pytest.approx(float(expected_loss), rel=1e-5)
    assert not sums.rows[0].numpy().any()
    for actual, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-4)

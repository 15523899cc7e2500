"""Packing: every token is kept, with correct indices and gradients."""

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model.packing import MULTIPLE, Packing, pack, packing_of, unpack


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7),
    padding=st.integers(0, 2),
)
def test_packing_keeps_every_token_in_order(lengths: list[int], padding: int) -> None:
    rows, time = len(lengths), max(lengths) + padding
    mask = np.arange(time) < np.array(lengths)[:, None]
    padded = tf.constant(np.arange(1.0, rows * time + 1).reshape(rows, time, 1), tf.float32)
    packing = packing_of(tf.constant(mask))
    packed = pack(padded, packing)
    tokens, fillers = sum(lengths), int(packing.fillers)
    assert fillers > 0
    assert len(packed) == tokens + fillers
    assert len(packed) % MULTIPLE == 0
    assert not packed.numpy()[tokens:].any()
    assert sorted(packed.numpy()[:tokens].ravel()) == sorted(padded.numpy()[mask].ravel())  # each real token, once
    np.testing.assert_array_equal(unpack(packed, packing).numpy()[..., 0], padded.numpy()[..., 0] * mask)

    # The tokens step by step, within a step those of the longest row first. Each value is row * time + step.
    values = packed.numpy()[:tokens].ravel() - 1
    order = sorted(range(rows), key=lambda row: -lengths[row])
    assert values.tolist() == [row * time + t for t in range(max(lengths)) for row in order if lengths[row] > t]
    # Before each token: the row's first state at the first step (here -1 - row), else the row's token one step before.
    previous = np.concatenate([-1.0 - np.array(order), values])[packing.previous.numpy()[:tokens]]
    assert previous.tolist() == [-1 - int(x) // time if x % time == 0 else x - 1 for x in values]
    last = values[packing.last.numpy()]
    assert last.tolist() == [row * time + length - 1 for row, length in enumerate(lengths)]


def test_gradients_equal_finite_differences() -> None:
    rng = np.random.default_rng(1)
    packing = packing_of(tf.constant([[True, False, False], [True, True, False]]))
    padded, packed = (tf.constant(rng.normal(size=shape)) for shape in ((2, 3, 2), (3, 2)))

    def unpacked(tokens: tf.Tensor, packing: Packing) -> tf.Tensor:
        return unpack(tf.pad(tokens, [[0, packing.fillers], [0, 0]]), packing)

    def packed_tokens(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
        return pack(padded, packing)[: -packing.fillers]

    for function, value in ((packed_tokens, padded), (unpacked, packed)):
        analytic, numeric = tf.test.compute_gradient(lambda x, f=function: tf.sin(f(x, packing)), [value])
        np.testing.assert_allclose(analytic[0], numeric[0], atol=1e-6)

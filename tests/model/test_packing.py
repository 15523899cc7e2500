"""Packing loses no token, knows what came before each, and its gradients go back where they came from."""

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model.packing import MULTIPLE, Packing, pack, packing, unpack


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7),
    beyond=st.integers(0, 2),
)
def test_there_and_back(lengths: list[int], beyond: int) -> None:
    rows, time = len(lengths), max(lengths) + beyond
    mask = np.arange(time) < np.array(lengths)[:, None]
    padded = tf.constant(np.arange(1.0, rows * time + 1).reshape(rows, time, 1), tf.float32)
    where = packing(tf.constant(mask))
    packed = pack(padded, where)
    tokens, fillers = sum(lengths), int(where.fillers)
    assert fillers > 0
    assert len(packed) == tokens + fillers
    assert len(packed) % MULTIPLE == 0
    assert not packed.numpy()[tokens:].any()
    assert sorted(packed.numpy()[:tokens].ravel()) == sorted(padded.numpy()[mask].ravel())  # each real token, once
    np.testing.assert_array_equal(unpack(packed, where).numpy()[..., 0], padded.numpy()[..., 0] * mask)

    # A step's tokens stand together, those of the longest row first.
    found = packed.numpy()[:tokens].ravel() - 1
    order = sorted(range(rows), key=lambda row: -lengths[row])
    assert found.tolist() == [row * time + t for t in range(max(lengths)) for row in order if lengths[row] > t]
    # What came before each: of the first step the row's first state, else the row's token of the step before.
    before = np.concatenate([-1.0 - np.array(order), found])[where.before.numpy()[:tokens]]
    assert before.tolist() == [-1 - int(x) // time if x % time == 0 else x - 1 for x in found]
    last = found[where.last.numpy()]
    assert last.tolist() == [row * time + length - 1 for row, length in enumerate(lengths)]


def test_gradients() -> None:
    rng = np.random.default_rng(1)
    where = packing(tf.constant([[True, False, False], [True, True, False]]))
    padded, packed = (tf.constant(rng.normal(size=shape)) for shape in ((2, 3, 2), (3, 2)))

    def unpacked(tokens: tf.Tensor, where: Packing) -> tf.Tensor:
        return unpack(tf.pad(tokens, [[0, where.fillers], [0, 0]]), where)

    def packed_tokens(padded: tf.Tensor, where: Packing) -> tf.Tensor:
        return pack(padded, where)[: -where.fillers]

    for function, value in ((packed_tokens, padded), (unpacked, packed)):
        theory, numbers = tf.test.compute_gradient(lambda x, f=function: tf.sin(f(x, where)), [value])
        np.testing.assert_allclose(theory[0], numbers[0], atol=1e-6)

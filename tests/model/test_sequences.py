"""Packing: every token is kept, with correct indices and gradients."""

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model.sequences import MULTIPLE, Packing, mirror, pack, packed_array, packing_of, unpack


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7),
    padding=st.integers(0, 2),
)
def test_packing_keeps_every_token_in_order(lengths: list[int], padding: int) -> None:
    rows, time = len(lengths), max(lengths) + padding
    mask = np.arange(time) < np.array(lengths)[:, None]
    padded = tf.constant(np.arange(1.0, rows * time + 1).reshape(rows, time, 1), tf.float32)
    packing = packing_of(np.array(lengths), time)
    packed = pack(padded, packing)
    np.testing.assert_array_equal(
        packed_array(padded.numpy()[..., 0], packing, 0)[: sum(lengths)], packed[: sum(lengths), 0]
    )
    tokens, fillers = sum(lengths), int(packing.fillers)
    assert fillers > 0
    assert len(packed) == tokens + fillers
    assert len(packed) % MULTIPLE == 0
    assert packed_array(padded.numpy()[..., 0], packing, 7)[tokens:].tolist() == [7] * fillers
    assert sorted(packed.numpy()[:tokens].ravel()) == sorted(padded.numpy()[mask].ravel())  # each real token, once
    np.testing.assert_array_equal(unpack(packed, packing).numpy()[mask], padded.numpy()[mask])
    mirrored = unpack(mirror(packed, packing), packing)
    expected = tf.reverse_sequence(padded, lengths, seq_axis=1)
    np.testing.assert_array_equal(mirrored.numpy()[mask], expected.numpy()[mask])

    # The tokens step by step, within a step those of the longest row first. Each value is row * time + step.
    values = packed.numpy()[:tokens].ravel() - 1
    order = sorted(range(rows), key=lambda row: -lengths[row])
    assert values.tolist() == [row * time + t for t in range(max(lengths)) for row in order if lengths[row] > t]
    # Before each token: the row's first state at the first step (here -1 - row), else the row's token one step before.
    previous = np.concatenate([-1.0 - np.array(order), values])[packing.previous[:tokens]]
    assert previous.tolist() == [-1 - int(x) // time if x % time == 0 else x - 1 for x in values]
    last = values[packing.last]
    assert last.tolist() == [row * time + length - 1 for row, length in enumerate(lengths)]


def test_gradients_equal_finite_differences() -> None:
    rng = np.random.default_rng(1)
    packing = packing_of(np.array([1, 2]), 3)
    padded, packed = (tf.constant(rng.normal(size=shape)) for shape in ((2, 3, 2), (3, 2)))

    def unpacked(tokens: tf.Tensor, packing: Packing) -> tf.Tensor:
        return unpack(tf.pad(tokens, [[0, packing.fillers], [0, 0]]), packing)

    def packed_tokens(padded: tf.Tensor, packing: Packing) -> tf.Tensor:
        return pack(padded, packing)[: -packing.fillers]

    def mirrored(tokens: tf.Tensor, packing: Packing) -> tf.Tensor:
        return mirror(tf.pad(tokens, [[0, packing.fillers], [0, 0]]), packing)

    for function, value in ((packed_tokens, padded), (unpacked, packed), (mirrored, packed)):
        analytic, numeric = tf.test.compute_gradient(lambda x, f=function: tf.sin(f(x, packing)), [value])
        np.testing.assert_allclose(analytic[0], numeric[0], atol=1e-6)

"""Our LSTM over a sequence computes what Keras's does, and so do its gradients."""

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model import recurrent
from chatbot.model.lstm import lstm_sequence
from chatbot.model.recurrent import recurrent_layer


@settings(max_examples=12)
@given(
    rows=st.integers(1, 5),
    time=st.integers(1, 7),
    features=st.integers(1, 6),
    units=st.integers(1, 6),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_equals_keras(rows: int, time: int, features: int, units: int, masked: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = tf.constant(rng.normal(size=(rows, time, features)), tf.float32)
    start = [tf.constant(rng.normal(size=(rows, units)), tf.float32) for _ in range(2)]
    lengths = rng.integers(1, time + 1, rows)
    mask = tf.constant(np.arange(time) < lengths[:, None]) if masked else None
    layer = recurrent_layer("lstm", units)
    layer(inputs)
    weights = [variable.value for variable in layer.trainable_variables]
    weights[2].assign(rng.normal(size=weights[2].shape))
    # What the rest of a model would hand back, drawn for outputs and both states.
    back = [tf.constant(rng.normal(size=shape), tf.float32) for shape in ((rows, time, units), *[(rows, units)] * 2)]

    def gradients(run: object) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch((inputs, start))
            outputs = run()  # type: ignore[operator]
        return outputs, tape.gradient(outputs, [inputs, *start, *weights], output_gradients=back)

    theirs = gradients(lambda: layer(inputs, initial_state=start, mask=mask))
    ours = gradients(lambda: list(lstm_sequence(inputs, start[0], start[1], weights[0], weights[1], weights[2], mask)))
    for their, our in zip(tf.nest.flatten(theirs), tf.nest.flatten(ours), strict=True):
        np.testing.assert_allclose(our, their, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_its_gradient_is_that_of_finite_differences(masked: bool) -> None:
    """In float64, against the slow twin that knows no calculus."""
    rng = np.random.default_rng(1)
    shapes = [(2, 3, 2), (2, 2), (2, 2), (2, 8), (2, 8), (8,)]
    values = [tf.constant(rng.normal(size=shape)) for shape in shapes]
    mask = tf.constant([[True, True, True], [True, False, False]]) if masked else None
    back = [tf.constant(rng.normal(size=shape)) for shape in ((2, 3, 2), (2, 2), (2, 2))]

    def loss(*arguments: tf.Tensor) -> tf.Tensor:
        found = lstm_sequence(*arguments, mask)  # type: ignore[call-arg]
        return tf.add_n([tf.reduce_sum(a * b) for a, b in zip(found, back, strict=True)])

    theory, numbers = tf.test.compute_gradient(loss, values, delta=1e-5)
    for analytic, numeric in zip(theory, numbers, strict=True):
        np.testing.assert_allclose(analytic, numeric, atol=1e-7)


def test_a_layer_without_a_gpu_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(*arguments: tf.Tensor) -> tuple[tf.Tensor, ...]:
        asked.append(arguments[0].shape[1])
        return lstm_sequence(*arguments)

    monkeypatch.setattr(recurrent, "lstm_sequence", noted)
    stack = recurrent.Stack("lstm", 3, 2, 1.0, 0)
    stack.call(tf.ones((2, 4, 5)), None, None, None)
    assert asked == [4, 4]

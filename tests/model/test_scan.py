"""The loop over time as on a CPU and as on a GPU, against a plain loop over the steps."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
from hypothesis import given, settings

from chatbot.model.operations import computed_on
from chatbot.model.scan import scan


def step(t: tf.Tensor, x: tf.Tensor, state: list[tf.Tensor], constants: dict[str, tf.Tensor]) -> tuple[Any, Any]:
    h, c = state
    new_h = tf.tanh(x @ constants["w"] + h * c)
    return [new_h * tf.cast(t + 1, h.dtype), tf.concat([new_h, x], 1)], [new_h, c + new_h @ constants["w"]]


def plain(inputs: tf.Tensor, state: list[tf.Tensor], constants: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    results = []
    for t in range(inputs.shape[0]):
        values, state = step(tf.constant(t), inputs[t], state, constants)
        results.append(values)
    return [tf.stack(of_output) for of_output in zip(*results, strict=True)]


@settings(max_examples=10)  # each is traced
@given(
    device=st.sampled_from(["/CPU:0", "/GPU:0"]), steps=st.integers(1, 4), rows=st.integers(1, 3), seed=st.integers(0)
)
def test_outputs_and_gradients_are_those_of_a_plain_loop(device: str, steps: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, h, c, w, unused = (
        tf.constant(rng.normal(size=shape)) for shape in ((steps, rows, 2), (rows, 2), (rows, 2), (2, 2), (3,))
    )
    factors = tf.constant(rng.normal(size=(steps, rows, 6)))
    arguments = inputs, [h, c], {"w": w, "unused": unused}

    @tf.function(autograph=False)
    @computed_on(device)
    def scanned(inputs: tf.Tensor, state: Any, constants: Any) -> Any:
        arguments = inputs, state, constants
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            outputs = scan(step, inputs, state, constants, 2)
            loss = tf.reduce_sum(tf.concat(outputs, 2) * factors)
        return outputs, tape.gradient(loss, arguments, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    with tf.GradientTape() as tape:
        tape.watch(arguments)
        expected = plain(*arguments)
        loss = tf.reduce_sum(tf.concat(expected, 2) * factors)
    gradients = tape.gradient(loss, arguments, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-12), scanned(*arguments), (expected, gradients)
    )

"""A loop over time whose backward pass makes the host of a GPU wait for nothing.

The gradient of tf.while_loop keeps the intermediate results of all steps, and with them the shapes of tensors, which it
copies to the GPU and back. So on a GPU only the states are kept, and the backward pass computes each step once more. On
a CPU, where nothing is copied, this would take longer.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from chatbot.model.operations import on_gpu

# (the number of the step, its inputs, the state, constants) -> its outputs, the next state
Step = Callable[[tf.Tensor, tf.Tensor, Any, Any], tuple[list[tf.Tensor], Any]]


def scan(step: Step, inputs: tf.Tensor, state: Any, constants: Any, outputs: int) -> list[tf.Tensor]:
    """Return the outputs of all steps, [time, ...] each.

    step: differentiable with respect to its inputs, its state and the constants; the results of other tensors that it
    uses have no gradient. inputs: [time, ...]. state, constants: structures of float tensors; the first dimension of a
    state may vary. outputs: the number of outputs of a step, which are of the type of the inputs.
    """

    def run(inputs: tf.Tensor, state: Any, constants: Any) -> tuple[list[tf.Tensor], Any]:
        steps = tf.shape(inputs)[0]
        of_state = tf.nest.map_structure(lambda x: tf.TensorShape([None, *x.shape[1:]]), state)

        def forward(t: tf.Tensor, state: Any, states: Any, results: Any) -> tuple[Any, ...]:
            states = [array.write(t, x) for array, x in zip(states, tf.nest.flatten(state), strict=False)]
            values, state = step(t, inputs[t], state, constants)
            return t + 1, state, states, [array.write(t, x) for array, x in zip(results, values, strict=True)]

        def gradient(*d_results: tf.Tensor) -> list[tf.Tensor]:
            def backward(t: tf.Tensor, d_state: Any, d_constants: Any, d_inputs: tf.TensorArray) -> tuple[Any, ...]:
                of = inputs[t], tf.nest.map_structure(lambda x: x[t], before), constants
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(of)
                    results = step(t, *of)
                d_of_results = [d_result[t] for d_result in d_results], d_state
                d_input, d_state, d_of_step = tape.gradient(
                    tf.nest.flatten(results), of, tf.nest.flatten(d_of_results), tf.UnconnectedGradients.ZERO
                )
                d_constants = tf.nest.map_structure(tf.add, d_constants, d_of_step)
                return t - 1, d_state, d_constants, d_inputs.write(t, d_input)

            before = tf.nest.pack_sequence_as(state, [array.stack() for array in states])
            zeros = tf.nest.map_structure(tf.zeros_like, (last, constants))
            of_constants = tf.nest.map_structure(lambda x: x.shape, constants)
            _, d_state, d_constants, d_inputs = tf.while_loop(
                lambda t, *_: t >= 0,
                backward,
                (steps - 1, *zeros, tf.TensorArray(inputs.dtype, steps)),
                (tf.TensorShape([]), of_state, of_constants, tf.TensorShape(None)),
            )
            return tf.nest.flatten((d_inputs.stack(), d_state, d_constants))

        states = [tf.TensorArray(x.dtype, steps) for x in (tf.nest.flatten(state) if on_gpu() else [])]
        results = [tf.TensorArray(inputs.dtype, steps) for _ in range(outputs)]
        invariants = tf.nest.map_structure(lambda _: tf.TensorShape(None), (states, results))
        _, last, states, results = tf.while_loop(
            lambda t, *_: t < steps,
            forward,
            (tf.constant(0), state, states, results),
            (tf.TensorShape([]), of_state, *invariants),
        )
        return [array.stack() for array in results], gradient

    if on_gpu():
        return tf.custom_gradient(run)(inputs, state, constants)
    return run(inputs, state, constants)[0]

"""The stand-in GPU computes cuDNN's recurrent layers as Keras does on the CPU, and fails as cuDNN does.

Everything is computed in one process.
"""

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gpu.process import on_standins

# GPU 1: the first kernels of both operations fail. GPU 2: there is no memory for the reserved space.
FAULTS = "cudnn gpu=1 operation=CudnnRNNV3;cudnn gpu=1 operation=CudnnRNNBackpropV3;memory gpu=2 bytes=60000"
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}

pytestmark = pytest.mark.gpu

Arrays = dict[str, np.ndarray]


class Case(NamedTuple):
    """A layer and the lengths of its batch's rows."""

    cell: str
    lengths: tuple[int, ...]
    features: int
    units: int

    @property
    def states(self) -> int:
        return 2 if self.cell == "lstm" else 1

    @property
    def real(self) -> np.ndarray:
        """Whether a token is real, [rows, steps, 1]. One step is padding in all rows."""
        return (np.arange(max(self.lengths) + 1) < np.array(self.lengths)[:, None])[..., None]


SIZES = {"one token": ((1,), 1, 1), "ragged": ((2, 5, 1, 5), 3, 4), "larger": ((7, 11, 3, 20, 20, 13, 1), 33, 17)}
CASES = {f"{cell}, {size}": Case(cell, *SIZES[size]) for cell in ("lstm", "gru") for size in SIZES}
KERAS = "Keras with cuDNN"
LAYOUTS = {f"{major}-major {dtype}": (major == "time", dtype) for major in ("time", "batch") for dtype in TOLERANCE}
REFUSED: dict[str, dict[str, Any]] = {
    "direction=bidirectional": {"direction": "bidirectional"},
    "dropout=0.5": {"dropout": 0.5},
    "input_mode=skip_input": {"input_mode": "skip_input"},
    "rnn_mode=rnn_tanh": {"rnn_mode": "rnn_tanh"},
    "T=double": {"dtype": "float64"},
    "2 layers": {"layers": 2},
}
CONFIGURATION = (
    "with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: 2, 0, 0 , [num_layers, input_size, num_units, "
    "dir_count, max_seq_length, batch_size, cell_num_units]: [1, 3, 5, 1, 7, 2, 5] "
)


def drawn(case: Case) -> Arrays:
    """Draw inputs, first states, weights and the gradients of results. Each number is a float16 and a bfloat16, too."""
    rng = np.random.default_rng(1)
    gates, (rows, steps, _) = {"lstm": 4, "gru": 3}[case.cell], case.real.shape
    shapes = {
        "inputs": (rows, steps, case.features),
        "states": (case.states, rows, case.units),
        "kernel": (case.features, gates * case.units),
        "recurrent": (case.units, gates * case.units),
        "biases": (2, gates * case.units),
        "d_outputs": (rows, steps, case.units),
        "d_last": (case.states, rows, case.units),
    }
    return {name: rng.integers(-32, 33, shape).astype(np.float32) / 64 for name, shape in shapes.items()}


def by_keras(case: Case, use_cudnn: bool) -> Arrays:
    """Compute the results and gradients of Keras's layer, with zeros at padding."""
    x = drawn(case)
    layer_class = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[case.cell]
    layer = layer_class(case.units, return_sequences=True, return_state=True, use_cudnn=use_cudnn)
    layer.build((None, None, case.features))
    one_bias = case.cell == "lstm"
    layer.set_weights([x["kernel"], x["recurrent"], x["biases"].sum(0) if one_bias else x["biases"]])
    inputs, states = tf.constant(x["inputs"]), [tf.constant(state) for state in x["states"]]
    with tf.GradientTape() as tape:
        tape.watch([inputs, *states])
        results = layer(inputs, initial_state=states, mask=tf.constant(case.real[..., 0]))
    weights = [variable.value for variable in layer.trainable_variables]
    d_inputs, *gradients = tape.gradient(
        results, [inputs, *states, *weights], [x["d_outputs"] * case.real, *x["d_last"]]
    )
    outputs, *last = (result.numpy() for result in results)
    *d_states, d_kernel, d_recurrent, d_bias = (gradient.numpy() for gradient in gradients)
    d_biases = np.stack([d_bias] * 2) if one_bias else d_bias
    return {
        "outputs": outputs * case.real,
        "last": np.stack(last),
        "d_inputs": d_inputs.numpy() * case.real,
        "d_states": np.stack(d_states),
        "d_kernel": d_kernel,
        "d_recurrent": d_recurrent,
        "d_biases": d_biases,
    }


def by_cudnn(case: Case, time_major: bool, dtype: str) -> Arrays:
    """Compute the results and gradients of cuDNN's operations, whose inputs are NaN at padding."""
    x = drawn(case)
    padding = np.where(case.real, np.float32(0), np.float32("nan"))

    def given(array: np.ndarray) -> tf.Tensor:
        return tf.cast(array.swapaxes(0, 1) if time_major else array, dtype)

    def received(tensor: tf.Tensor) -> np.ndarray:
        array = tensor.numpy().astype(np.float32)
        return array.swapaxes(0, 1) if time_major else array

    inputs, params = given(x["inputs"] + padding), tf.cast(packed(case, x), dtype)
    states = [given(state[:, None]) for state in x["states"]]

    def run(is_training: bool) -> list[tf.Tensor]:
        return tf.raw_ops.CudnnRNNV3(
            input=inputs,
            input_h=states[0],
            input_c=states[1] if case.cell == "lstm" else tf.constant(0, dtype),
            params=params,
            sequence_lengths=case.lengths,
            rnn_mode=case.cell,
            time_major=time_major,
            is_training=is_training,
        )[: 1 + case.states]

    with tf.GradientTape() as tape:
        tape.watch([inputs, *states, params])
        results = run(is_training=True)
    d_results = [given(x["d_outputs"] + padding), *(given(gradient[:, None]) for gradient in x["d_last"])]
    d_inputs, *d_states, d_params = tape.gradient(results, [inputs, *states, params], d_results)
    outputs, *last = map(received, results)
    for result, inferred in zip(results, run(is_training=False), strict=True):
        np.testing.assert_array_equal(result.numpy(), inferred.numpy())
    return {
        "outputs": outputs,
        "last": np.stack(last)[:, :, 0],
        "d_inputs": received(d_inputs),
        "d_states": np.stack([*map(received, d_states)])[:, :, 0],
        **unpacked(case, d_params.numpy().astype(np.float32)),
    }


def reordered(case: Case, array: np.ndarray) -> np.ndarray:
    """Exchange the first two gates of a GRU, along the last axis: z, r in Keras are r, z in cuDNN."""
    gates = np.split(array, 4 if case.cell == "lstm" else 3, -1)
    return np.concatenate(gates if case.cell == "lstm" else [gates[1], gates[0], gates[2]], -1)


def packed(case: Case, x: Arrays) -> np.ndarray:
    """Return the weights in cuDNN's layout."""
    kernel, recurrent, biases = (reordered(case, x[name]) for name in ("kernel", "recurrent", "biases"))
    return np.concatenate([kernel.T.ravel(), recurrent.T.ravel(), biases.ravel()])


def unpacked(case: Case, params: np.ndarray) -> Arrays:
    """Return gradients of the weights, in Keras's layout."""
    units = params.size // (case.features + case.units + 2)  # of all gates
    kernel, recurrent, biases = np.split(params, [units * case.features, units * (case.features + case.units)])
    arrays = kernel.reshape(units, -1).T, recurrent.reshape(units, -1).T, biases.reshape(2, units)
    return {name: reordered(case, a) for name, a in zip(("d_kernel", "d_recurrent", "d_biases"), arrays, strict=True)}


def failure(device: str = "/GPU:0", dtype: str = "float32", layers: int = 1, rows: int = 2, **changes: Any) -> str:
    """Return the kind and the text of the error of a layer and its gradient; empty without an error."""
    arguments = {"rnn_mode": "lstm", "sequence_lengths": [7] * rows, "is_training": True, "time_major": True}
    with tf.device(device), tf.GradientTape() as tape:
        inputs, state = tf.zeros([7, rows, 3], dtype), tf.zeros([layers, rows, 5], dtype)
        params = tf.zeros([4 * 5 * (3 + 5 + 2)], dtype)
        tape.watch(inputs)
        try:
            outputs = tf.raw_ops.CudnnRNNV3(
                input=inputs, input_h=state, input_c=state, params=params, **(arguments | changes)
            )
            tape.gradient(outputs[0], inputs).numpy()
        except tf.errors.OpError as error:
            return f"{type(error).__name__}: {error.message}"
    return ""


def compute() -> dict[Any, Any]:
    """Return what the tests compare."""
    results: dict[Any, Any] = {}
    for name, case in CASES.items():
        with tf.device("/CPU:0"):
            results[name] = by_keras(case, use_cudnn=False)
        results[name, KERAS] = by_keras(case, use_cudnn=True)
        for layout, arguments in LAYOUTS.items():
            results[name, layout] = by_cudnn(case, *arguments)
    results |= {name: failure(**changes) for name, changes in REFUSED.items()}
    results["a length of 0"] = failure(sequence_lengths=[7, 0])
    results["no rows"] = failure(rows=0)
    results["cuDNN"] = [failure("/GPU:1") for _ in range(3)]
    results["memory"] = failure("/GPU:2", rows=100)
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    return on_standins(compute, tmp_path_factory.mktemp("cudnn"), 3, faults=FAULTS)


@pytest.mark.parametrize("way", [KERAS, *LAYOUTS])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_keras_on_the_cpu(case: str, way: str, results: dict[Any, Any]) -> None:
    """Padding is not read, and its outputs and gradients are 0."""
    actual, expected = results[case, way], results[case]
    assert actual.keys() == expected.keys()
    tolerance = TOLERANCE[way.split()[-1]] if way in LAYOUTS else TOLERANCE["float32"]
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, atol=tolerance * np.abs(array).max(), rtol=0, err_msg=name)


@pytest.mark.parametrize("what", REFUSED)
def test_other_layers_are_refused(what: str, results: dict[Any, Any]) -> None:
    assert results[what].startswith("UnimplementedError: ")
    assert f"the stand-in GPU's CudnnRNNV3 has no {what}" in results[what]


def test_empty_rows_and_batches_are_refused_as_by_cudnn(results: dict[Any, Any]) -> None:
    for what in ("a length of 0", "no rows"):
        assert results[what].startswith("UnknownError: "), results[what]
        assert "CUDNN_STATUS_BAD_PARAM\nin " in results[what]


def test_fault_gives_the_error_of_tensorflow(results: dict[Any, Any]) -> None:
    forward, backward, neither = results["cuDNN"]
    assert f"Failed to call DoRnnForward {CONFIGURATION}" in forward
    assert f"Failed to call DoRnnBackward {CONFIGURATION}" in backward
    assert forward.startswith("InternalError: ")
    assert backward.startswith("InternalError: ")
    assert neither == ""


def test_cudnn_without_memory_fails_as_otherwise(results: dict[Any, Any]) -> None:
    assert results["memory"].startswith("InternalError: ")
    assert "Failed to call DoRnnForward" in results["memory"]

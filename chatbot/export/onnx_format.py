"""Export to ONNX: encode.onnx and step.onnx, which share the weights in weights.bin.

The search itself is `chatbot.export.runtime`, in NumPy, and not a loop in the graph. It then takes all flags of chat.py
when it is used, the graphs hold no operation that ONNX lacks (ragged tensors, searchsorted), and ONNX Runtime starts
faster, since it optimises a small graph once. A token takes one call, about 0.5 ms at the default sizes.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnx import TensorProto, helper

from chatbot.config.model import ModelSettings
from chatbot.export import graphs
from chatbot.export.weights import Stored
from chatbot.model.seq2seq import Seq2Seq

ENCODE, STEP, WEIGHTS_FILE = "encode.onnx", "step.onnx", "weights.bin"
OPSET = 18  # ScatterND that adds has 16; ONNX Runtime has had 18 since 1.14
ALIGNMENT = 64
WEIGHT = "weight_"


def write_onnx(folder: Path, model: Seq2Seq, settings: ModelSettings, weights: Sequence[Stored]) -> None:
    """Write the graphs of a model without n-grams, and its weights.

    weights: in the order of the model's trainable variables.
    """
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    # Weights are inputs while the graphs are converted. Constants would be folded and transposed, each graph otherwise.
    inputs = [tf.TensorSpec(x.values.shape, tf.float32, name=f"{WEIGHT}{i}") for i, x in enumerate(weights)]

    def encode(ids: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        with graphs.with_weights(model, values):
            return graphs.encode(model, ids)

    specs = graphs.state_specs(model)

    def step(last: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        state = dict(zip(specs, values, strict=False))
        with graphs.with_weights(model, values[len(specs) :]):
            return graphs.step(model, settings, last, state)

    places = _write_weights(folder / WEIGHTS_FILE, weights)
    ids, last = tf.TensorSpec([None, None], tf.int64, name="ids"), tf.TensorSpec([None], tf.int32, name="last")
    for name, function, signature in ((ENCODE, encode, [ids]), (STEP, step, [last, *specs.values()])):
        converted = _converted(function, [*signature, *inputs])
        _use_weights(converted.graph, weights, places)
        (folder / name).write_bytes(converted.SerializeToString())
        onnx.checker.check_model(str(folder / name))


def _converted(function: Any, signature: list[Any]) -> onnx.ModelProto:
    traced = tf.function(function, input_signature=signature, autograph=False)
    model, _ = tf2onnx.convert.from_function(traced, input_signature=signature, opset=OPSET)
    return model


def _write_weights(path: Path, weights: Sequence[Stored]) -> list[list[tuple[int, int]]]:
    """Write all weights to one file. Return the begin and the bytes of the values, and of the scales, of each."""
    places: list[list[tuple[int, int]]] = []
    with path.open("wb") as file:
        for weight in weights:
            places.append([])
            for array in (weight.values, weight.scales):
                if array is not None:
                    file.write(bytes(-file.tell() % ALIGNMENT))
                    places[-1].append((file.tell(), array.nbytes))
                    file.write(np.ascontiguousarray(array).tobytes())
    return places


def _use_weights(graph: onnx.GraphProto, weights: Sequence[Stored], places: list[list[tuple[int, int]]]) -> None:
    """Replace the inputs of a graph that are weights by constants in the file, converted to float32."""
    names = [x.name for x in graph.input if x.name.startswith(WEIGHT)]
    kept = [x for x in graph.input if not x.name.startswith(WEIGHT)]
    del graph.input[:]
    graph.input.extend(kept)
    nodes = []
    for name in names:
        number = int(name.removeprefix(WEIGHT).split(":")[0])
        values, scales, axis = weights[number]
        if values.dtype == np.float32:
            graph.initializer.append(_external(name, values, *places[number][0]))
            continue
        graph.initializer.append(_external(f"{name}_values", values, *places[number][0]))
        if scales is None:
            nodes.append(helper.make_node("Cast", [f"{name}_values"], [name], to=TensorProto.FLOAT))
        else:
            graph.initializer.append(_external(f"{name}_scales", scales, *places[number][1]))
            inputs = [f"{name}_values", f"{name}_scales"]
            nodes.append(helper.make_node("DequantizeLinear", inputs, [name], axis=axis))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])


def _external(name: str, array: np.ndarray[Any, Any], begin: int, size: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS_FILE), ("offset", begin), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor

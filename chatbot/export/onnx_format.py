"""Exports to ONNX: encode.onnx encodes questions, step.onnx generates one token, and weights.bin contains the weights.

The graphs contain neither n-grams nor a search, because ONNX does not support all of their operations.
`inference.onnx_model` implements both in NumPy, so exports work with every search flag of chat.py. With the default
model sizes, a token takes about 0.5 ms.
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

from chatbot.export.model import Stored, sequences_in_graph, with_weights
from chatbot.inference.onnx_model import CELL, ENCODE, NEXT, STEP
from chatbot.model.seq2seq import Seq2Seq

WEIGHTS_FILE = "weights.bin"
OPSET = 18  # supported since ONNX Runtime 1.14; ScatterND with addition requires at least 16
ALIGNMENT = 64  # of each array in weights.bin, in bytes
WEIGHT = "weight_"


def encode(model: Seq2Seq, ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """Encode questions, and return the decoder's state by name. The cells are named "cell_0", "cell_1", etc.

    Args:
        model: The model.
        ids: Token ids, padded on the right, with shape [rows, time] and dtype int64.
    """
    state = model.encode(sequences_in_graph(ids))
    cells = state.pop("cells")
    return {**state, **{f"{CELL}{i}": x for i, x in enumerate(tf.nest.flatten(cells))}}


def step(model: Seq2Seq, last: tf.Tensor, state: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Decode one token.

    Args:
        model: The model.
        last: The last token of each hypothesis, with shape [hypotheses] and dtype int32.
        state: The state. It has the same names as the result of `encode`, but each cell has one row per hypothesis.
            The hypotheses of a question are adjacent.

    Returns:
        A dictionary with "logits" [hypotheses, vocabulary], the next cells "next_0", "next_1", etc. and, if the model
        has attention, the attention weights "attention" [hypotheses, source].
    """
    before: dict[str, Any] = {name: x for name, x in state.items() if not name.startswith(CELL)}
    cells = [state[f"{CELL}{i}"] for i in range(len(state) - len(before))]  # sorted by number
    before["cells"] = tf.nest.pack_sequence_as(model.decoder.cell_structure, cells)
    has_attention = model.decoder.attention is not None
    if has_attention:
        before["attention"] = tf.zeros([tf.shape(last)[0], tf.shape(state["mask"])[1]])
    logits, after = model.step(before, last)
    results = {"logits": logits, **{f"{NEXT}{i}": x for i, x in enumerate(tf.nest.flatten(after["cells"]))}}
    return {**results, "attention": after["attention"]} if has_attention else results


def state_specs(model: Seq2Seq) -> dict[str, tf.TensorSpec]:
    """Return the tensor specs of the state that `encode` returns, with dynamic numbers of rows and positions."""
    function = tf.function(lambda ids: encode(model, ids), autograph=False)
    results = function.get_concrete_function(tf.TensorSpec([None, None], tf.int64)).structured_outputs
    specs = {}
    for name, x in results.items():
        shape = [None, *x.shape[1:]] if name.startswith(CELL) else [None, None, *x.shape[2:]]
        specs[name] = tf.TensorSpec(shape, x.dtype, name=name)
    return specs


def write_onnx(folder: Path, model: Seq2Seq, weights: Sequence[Stored]) -> None:
    """Write the graphs and the weights of a model. N-grams are not included.

    Args:
        folder: An existing folder.
        model: The model.
        weights: The weights to store, in the order of the trainable variables.
    """
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    # The weights are inputs during the conversion, so both graphs can share them. As constants, they would be folded or
    # transposed differently in each graph.
    inputs = [tf.TensorSpec(x.values.shape, tf.float32, name=f"{WEIGHT}{i}") for i, x in enumerate(weights)]

    def encode_graph(ids: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        with with_weights(model, values):
            return encode(model, ids)

    specs = state_specs(model)

    def step_graph(last: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        state = dict(zip(specs, values, strict=False))
        with with_weights(model, values[len(specs) :]):
            return step(model, last, state)

    offsets = _write_weights(folder / WEIGHTS_FILE, weights)
    ids = tf.TensorSpec([None, None], tf.int64, name="ids")
    last = tf.TensorSpec([None], tf.int32, name="last")
    for name, function, signature in ((ENCODE, encode_graph, [ids]), (STEP, step_graph, [last, *specs.values()])):
        signature = [*signature, *inputs]
        traced = tf.function(function, input_signature=signature, autograph=False)
        converted, _ = tf2onnx.convert.from_function(traced, input_signature=signature, opset=OPSET)
        _use_weights(converted.graph, weights, offsets)
        (folder / name).write_bytes(converted.SerializeToString())
        onnx.checker.check_model(str(folder / name))


def _write_weights(path: Path, weights: Sequence[Stored]) -> list[list[tuple[int, int]]]:
    """Write all weights to a file. Return the offsets and sizes of each weight's values and int8 scales."""
    offsets: list[list[tuple[int, int]]] = []
    with path.open("wb") as file:
        for weight in weights:
            offsets.append([])
            for array in [weight.values, weight.scales] if weight.values.dtype == np.int8 else [weight.values]:
                file.write(bytes(-file.tell() % ALIGNMENT))
                offsets[-1].append((file.tell(), array.nbytes))
                file.write(array.tobytes())
    return offsets


def _use_weights(graph: onnx.GraphProto, weights: Sequence[Stored], offsets: list[list[tuple[int, int]]]) -> None:
    """Replace the weight inputs of a graph with references to weights.bin. The graph converts them to float32."""
    for input_ in [x for x in graph.input if x.name.startswith(WEIGHT)]:
        graph.input.remove(input_)
        name = input_.name
        index = int(name.removeprefix(WEIGHT).split(":")[0])
        values, scales, axis = weights[index]
        if values.dtype == np.float32:
            graph.initializer.append(_external(name, values, *offsets[index][0]))
            continue
        graph.initializer.append(_external(f"{name}_values", values, *offsets[index][0]))
        if values.dtype == np.float16:
            graph.node.insert(0, helper.make_node("Cast", [f"{name}_values"], [name], to=TensorProto.FLOAT))
        else:
            graph.initializer.append(_external(f"{name}_scales", scales.reshape(-1), *offsets[index][1]))
            inputs = [f"{name}_values", f"{name}_scales"]
            graph.node.insert(0, helper.make_node("DequantizeLinear", inputs, [name], axis=axis))


def _external(name: str, array: np.ndarray[Any, Any], begin: int, size: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS_FILE), ("offset", begin), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor

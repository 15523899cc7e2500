"""Export to ONNX: encode.onnx reads questions, step.onnx generates a token; they share the weights in weights.bin.

Both take padded ids, so no index is computed on the host. N-grams are left out; `chatbot.export.runtime` mixes them in.

The search is `chatbot.export.runtime`, in NumPy: it takes all flags of chat.py when it is used, and the graphs need no
operation that ONNX lacks. A token takes one call, about 0.5 ms at the default sizes.
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
from chatbot.model.seq2seq import Seq2Seq

ENCODE = "encode.onnx"
STEP = "step.onnx"
WEIGHTS_FILE = "weights.bin"
OPSET = 18  # ScatterND that adds has 16; ONNX Runtime has had 18 since 1.14
ALIGNMENT = 64
WEIGHT = "weight_"


def encode(model: Seq2Seq, ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the state of the decoder before the first token, by name: its parts, with the cells as "cell_0" and so on.

    ids: [rows, time] int64, padded on the right.
    """
    state = model.encode(sequences_in_graph(ids))
    cells = state.pop("cells")
    return {**state, **{f"cell_{i}": x for i, x in enumerate(tf.nest.flatten(cells))}}


def step(model: Seq2Seq, last: tf.Tensor, state: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Decode one token. Return "logits" [hypotheses, vocabulary], and "next_0" and so on, the cells after it.

    With attention also return its weights in this step, "attention" [hypotheses, source].

    last: [hypotheses] int32, the last ids. state: as `encode` returns it; the cells are [hypotheses, units] each, and
    the hypotheses of a question are one after another.
    """
    before: dict[str, Any] = {name: x for name, x in state.items() if not name.startswith("cell_")}
    cells = [state[f"cell_{i}"] for i in range(len(state) - len(before))]  # not in the order of their names
    before["cells"] = tf.nest.pack_sequence_as(model.decoder.cell_structure, cells)
    has_attention = model.decoder.attention is not None
    if has_attention:
        before["attention"] = tf.zeros([tf.shape(last)[0], tf.shape(state["mask"])[1]])
    logits, after = model.step(before, last)
    results = {"logits": logits, **{f"next_{i}": x for i, x in enumerate(tf.nest.flatten(after["cells"]))}}
    return {**results, "attention": after["attention"]} if has_attention else results


def state_specs(model: Seq2Seq) -> dict[str, tf.TensorSpec]:
    """Return the specifications of the result of `encode`, for any number of rows and any length."""
    function = tf.function(lambda ids: encode(model, ids), autograph=False)
    results = function.get_concrete_function(tf.TensorSpec([None, None], tf.int64)).structured_outputs
    specs = {}
    for name, x in results.items():
        shape = [None, *x.shape[1:]] if name.startswith("cell_") else [None, None, *x.shape[2:]]
        specs[name] = tf.TensorSpec(shape, x.dtype, name=name)
    return specs


def write_onnx(folder: Path, model: Seq2Seq, weights: Sequence[Stored]) -> None:
    """Write the graphs of a model without n-grams, and its weights.

    weights: in the order of the model's trainable variables.
    """
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    # Weights are inputs while the graphs are converted. Constants would be folded and transposed, each graph otherwise.
    inputs = [tf.TensorSpec(x.values.shape, tf.float32, name=f"{WEIGHT}{i}") for i, x in enumerate(weights)]

    def encode_graph(ids: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        with with_weights(model, values):
            return encode(model, ids)

    specs = state_specs(model)

    def step_graph(last: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        state = dict(zip(specs, values, strict=False))
        with with_weights(model, values[len(specs) :]):
            return step(model, last, state)

    places = _write_weights(folder / WEIGHTS_FILE, weights)
    ids = tf.TensorSpec([None, None], tf.int64, name="ids")
    last = tf.TensorSpec([None], tf.int32, name="last")
    for name, function, signature in ((ENCODE, encode_graph, [ids]), (STEP, step_graph, [last, *specs.values()])):
        signature = [*signature, *inputs]
        traced = tf.function(function, input_signature=signature, autograph=False)
        converted, _ = tf2onnx.convert.from_function(traced, input_signature=signature, opset=OPSET)
        _use_weights(converted.graph, weights, places)
        (folder / name).write_bytes(converted.SerializeToString())
        onnx.checker.check_model(str(folder / name))


def _write_weights(path: Path, weights: Sequence[Stored]) -> list[list[tuple[int, int]]]:
    """Write all weights to one file. Return the begin and the bytes of the values, and of int8 the scales, of each."""
    places: list[list[tuple[int, int]]] = []
    with path.open("wb") as file:
        for weight in weights:
            places.append([])
            for array in [weight.values, weight.scales] if weight.values.dtype == np.int8 else [weight.values]:
                file.write(bytes(-file.tell() % ALIGNMENT))
                places[-1].append((file.tell(), array.nbytes))
                file.write(array.tobytes())
    return places


def _use_weights(graph: onnx.GraphProto, weights: Sequence[Stored], places: list[list[tuple[int, int]]]) -> None:
    """Replace the inputs of a graph that are weights by constants in the file, converted to float32."""
    for given in [x for x in graph.input if x.name.startswith(WEIGHT)]:
        graph.input.remove(given)
        name = given.name
        number = int(name.removeprefix(WEIGHT).split(":")[0])
        values, scales, axis = weights[number]
        if values.dtype == np.float32:
            graph.initializer.append(_external(name, values, *places[number][0]))
            continue
        graph.initializer.append(_external(f"{name}_values", values, *places[number][0]))
        if values.dtype == np.float16:
            graph.node.insert(0, helper.make_node("Cast", [f"{name}_values"], [name], to=TensorProto.FLOAT))
        else:
            graph.initializer.append(_external(f"{name}_scales", scales.reshape(-1), *places[number][1]))
            inputs = [f"{name}_values", f"{name}_scales"]
            graph.node.insert(0, helper.make_node("DequantizeLinear", inputs, [name], axis=axis))


def _external(name: str, array: np.ndarray[Any, Any], begin: int, size: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS_FILE), ("offset", begin), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor

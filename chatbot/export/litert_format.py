"""Export to LiteRT: model.tflite, with the signatures "encode" and "step", for one question and one hypothesis a call.

All shapes are fixed, and all operations are built in, so that a program needs LiteRT's interpreter alone. The search is
`chatbot.export.runtime`, as for ONNX.
"""

import tempfile
from pathlib import Path

import tensorflow as tf

from chatbot.config.export import FLOAT16, FLOAT32
from chatbot.config.model import ModelSettings
from chatbot.export import graphs
from chatbot.model.saved import weights_of
from chatbot.model.seq2seq import Seq2Seq

MODEL = "model.tflite"


def write_litert(folder: Path, model: Seq2Seq, settings: ModelSettings, weights: str) -> None:
    """Write the graphs of a model without n-grams.

    weights: the type in which they are stored. With int8, LiteRT also rounds the other factor of a product to int8, by
    the largest value of each call.
    """
    specs = graphs.state_specs(model, settings.max_length, rows=1)

    def encode(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return graphs.encode(model, ids)

    def step(last: tf.Tensor, **state: tf.Tensor) -> dict[str, tf.Tensor]:
        return graphs.step(model, settings, last, {name: state[name] for name in specs})

    ids = {"ids": tf.TensorSpec([1, settings.max_length], tf.int64, name="ids")}
    last = {"last": tf.TensorSpec([1], tf.int32, name="last")}
    signatures = {
        "encode": tf.function(encode, autograph=False).get_concrete_function(**ids),
        "step": tf.function(step, autograph=False).get_concrete_function(**last, **specs),
    }
    module = tf.Module()
    module.weights = weights_of(model)
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(module, saved, signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(signatures))
        if weights != FLOAT32:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if weights == FLOAT16:
            converter.target_spec.supported_types = [tf.float16]
        (folder / MODEL).write_bytes(converter.convert())

"""Exports of a trained model: SavedModel, ONNX, LiteRT. `runtime` answers from the last two, without TensorFlow."""

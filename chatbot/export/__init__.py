"""Exports of a trained model: SavedModel, ONNX. `runtime` answers from the latter, without TensorFlow."""

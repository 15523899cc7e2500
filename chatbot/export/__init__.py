"""Exports: to SavedModel, to ONNX, for transformers. `runtime` answers from ONNX, without TensorFlow."""

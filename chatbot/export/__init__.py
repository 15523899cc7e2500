"""Exports trained models to SavedModel, ONNX or transformers, and loads ONNX exports without TensorFlow."""

"""Answers of an export by NumPy and the runtime of its format. Nothing here imports TensorFlow."""

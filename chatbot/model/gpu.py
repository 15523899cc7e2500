"""Whether the model runs on a GPU, which decides between the ways of computing its recurrent layers and its loss."""

import tensorflow as tf


def on_gpu() -> bool:
    """Return whether TensorFlow computes on GPUs. Models run on a GPU whenever there is one."""
    return bool(tf.config.list_logical_devices("GPU"))

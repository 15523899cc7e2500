"""TensorFlow's first import, without its dozen log lines."""

import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow, and show what it prints only when the import fails.

    C++ code prints the lines before it reads its log level, so standard error itself is redirected.
    TF_CPP_MIN_LOG_LEVEL=0 in the environment restores the lines that are printed later.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def let_gpu_memory_grow() -> None:
    """Allocate GPU memory as needed instead of all at once: other processes may use the same GPU."""
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)

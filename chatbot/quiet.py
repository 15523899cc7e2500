"""Import of TensorFlow without its log lines, and GPU memory that grows as needed."""

import contextlib
import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow. Its output to standard error is shown only if the import fails.

    C++ code prints these lines before it reads its log level, so file descriptor 2 is redirected meanwhile.
    TF_CPP_MIN_LOG_LEVEL=0 in the environment shows the lines that follow the import.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            captured.seek(0)
            os.write(stderr, captured.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def let_gpu_memory_grow() -> None:
    """Allocate GPU memory as needed, so that other processes can use the rest."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is already initialised, and the setting is fixed
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)

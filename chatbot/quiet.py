"""TensorFlow's first import, without the dozen log lines that tell a user nothing."""

import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow; what it prints meanwhile is shown only when the import fails.

    The lines come from C++ before its log level is read, so standard error itself is set aside.
    TF_CPP_MIN_LOG_LEVEL=0 in the environment brings the later ones back.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def let_gpu_memory_grow() -> None:
    """Take GPU memory as it is needed, not all of it: others work there too."""
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)

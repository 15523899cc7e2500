"""Less output: --quiet, progress bars, and TensorFlow's log lines. Also GPU memory that grows as needed."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO

# Standard output while `quiet` discards what is printed.
_kept: TextIO | None = None


@contextlib.contextmanager
def quiet(active: bool) -> Iterator[None]:
    """Discard standard output and progress bars in the block, if active. Standard error stays."""
    global _kept
    if not active or _kept is not None:
        yield
        return
    _kept = sys.stdout
    try:
        with open(os.devnull, "w", encoding="utf-8") as null, contextlib.redirect_stdout(null):
            yield
    finally:
        _kept = None


def kept_output() -> TextIO:
    """Return the standard output for what `quiet` does not discard."""
    return _kept or sys.stdout


def no_bars() -> bool | None:
    """Return tqdm's `disable`: whether there are no progress bars; None: none where standard error is no terminal."""
    no_bars = _kept is not None or sys.stderr is None or os.environ.get("TERM") == "dumb"
    return True if no_bars else None


def import_tensorflow() -> None:
    """Import TensorFlow. Its output to standard error is shown only if the import fails.

    C++ code prints these lines before it reads its log level, so file descriptor 2 is redirected meanwhile. Of the
    lines that follow the import, errors are shown, since some statuses of cuDNN are nowhere else; with
    TF_CPP_MIN_LOG_LEVEL=0 in the environment, all are.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _captured_stderr():
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def without_info_lines() -> Iterator[None]:
    """Discard the lines of C++ code on standard error that begin with "INFO: ", unless the block raises."""
    with _captured_stderr() as captured:
        yield
    for line in b"".join(captured).splitlines(keepends=True):
        if not line.startswith(b"INFO: "):
            os.write(2, line)


@contextlib.contextmanager
def _captured_stderr() -> Iterator[list[bytes]]:
    """Redirect file descriptor 2, and append what is written to the list after the block; show it if the block raises.

    Python's own errors and those of C++ code both go there.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    stderr, contents = os.dup(2), list[bytes]()
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield contents
        except BaseException:
            captured.seek(0)
            os.write(stderr, captured.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        captured.seek(0)
        contents.append(captured.read())


def let_gpu_memory_grow() -> None:
    """Allocate GPU memory as needed, so that other processes can use the rest."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is already initialised, and the setting is fixed
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)

"""Functions that suppress output: for --quiet, for progress bars, and for TensorFlow's log lines."""

import contextlib
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

# Pattern for grep. It matches the log lines that TensorFlow prints at start-up, except fatal errors (F).
LOG_LINE = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]+: [IWE] "
    r"|[IWE][0-9]{4} [0-9]{2}:[0-9]{2}:[0-9.]+ +[0-9]+ "
    r"|WARNING: All log messages before absl::InitializeLog|To enable the following instructions:)"
)
# Lock for the redirection of standard error, because all threads share it.
_REDIRECTION = threading.RLock()
# The original standard output, while `quiet` replaces it; otherwise None.
_original_stdout: TextIO | None = None


@contextlib.contextmanager
def quiet(active: bool) -> Iterator[None]:
    """Discard standard output and progress bars inside the block, if `active`. Standard error is not discarded."""
    global _original_stdout  # noqa: PLW0603 - standard output is also global
    if not active or _original_stdout is not None:
        yield
        return
    _original_stdout = sys.stdout
    try:
        with open(os.devnull, "w", encoding="utf-8") as null, contextlib.redirect_stdout(null):
            yield
    finally:
        _original_stdout = None


def original_stdout() -> TextIO:
    """Return the original standard output, even inside a `quiet` block."""
    return _original_stdout or sys.stdout


def progress_bars_disabled() -> bool | None:
    """Return the argument `disable` for tqdm: True to hide progress bars, or None to show them only in a terminal."""
    disabled = _original_stdout is not None or sys.stderr is None or os.environ.get("TERM") == "dumb"
    return True if disabled else None


def import_tensorflow() -> None:
    """Import TensorFlow without printing its log lines.

    A log level cannot suppress these lines, because TensorFlow prints them before it reads the level. Errors after the
    import are still logged. Set TF_CPP_MIN_LOG_LEVEL=0 in the environment to log everything.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if platform.machine() == "x86_64":
        # By default, TensorFlow uses oneDNN only on CPUs with AVX512_VNNI and newer. It is faster on others, too
        # (docs/experiments.md).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with without_log_lines():
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Remove the lines that match LOG_LINE from standard error inside the block.

    A separate process filters the output. Therefore, error messages are still printed if this process is aborted.
    """
    with _REDIRECTION:
        try:
            stderr = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        grep = subprocess.Popen(["grep", "-aEv", LOG_LINE], stdin=subprocess.PIPE, stdout=stderr)
        assert grep.stdin is not None
        os.dup2(grep.stdin.fileno(), 2)
        try:
            yield
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            grep.stdin.close()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # a process that was started inside the block still writes to the filter
                grep.wait(5)

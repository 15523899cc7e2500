"""Less output: --quiet, progress bars, and TensorFlow's log lines."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

# How the log lines of TensorFlow's start begin, as grep reads it; a fatal one (F) is not among them.
LOG_LINE = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]+: [IWE] "
    r"|[IWE][0-9]{4} [0-9]{2}:[0-9]{2}:[0-9.]+ +[0-9]+ "
    r"|WARNING: All log messages before absl::InitializeLog|To enable the following instructions:)"
)
# File descriptor 2 belongs to the whole process.
_REDIRECTION = threading.RLock()
# Standard output while `quiet` discards what is printed.
_kept: TextIO | None = None


@contextlib.contextmanager
def quiet(active: bool) -> Iterator[None]:
    """Discard standard output and progress bars in the block, if active. Standard error stays."""
    global _kept  # noqa: PLW0603 - standard output belongs to the process, too
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
    """Import TensorFlow without the log lines of its start, unless the import fails or the process is aborted.

    C++ code prints these lines before it reads its log level. Of the lines that follow the import, errors are shown,
    since some statuses of cuDNN are nowhere else; with TF_CPP_MIN_LOG_LEVEL=0 in the environment, all are.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with without_log_lines():
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Pass file descriptor 2 through a filter in the block, which leaves out the lines that LOG_LINE matches.

    Python's own errors, those of C++ code and the output of other threads all go there. The filter is a process, which
    also passes on what is written before this process is aborted.
    """
    with _REDIRECTION:
        try:
            stderr = os.dup(2)
        except OSError:  # there is no standard error
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
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process begun in the block holds the descriptor
                grep.wait(5)

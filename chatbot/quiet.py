"""Less output: --quiet, progress bars, and TensorFlow's log lines. Also GPU memory that grows as needed."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import TextIO

# How the log lines of TensorFlow's start begin; a fatal one (F) is not among them.
LOG_LINE = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] |[IWE]\d{4} \d\d:\d\d:[\d.]+ +\d+ "
    rb"|WARNING: All log messages before absl::InitializeLog|To enable the following instructions:"
)
# Waits for a line; at the end of the input copies the file, which is its standard error, to its standard output.
LAST_WORDS = 'read -r _ || { cat <&2; rm -f "$0"; }'
# File descriptor 2 belongs to the whole process.
_REDIRECTION = threading.RLock()
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
    """Redirect file descriptor 2 in the block, then write what is left: all lines but those that LOG_LINE matches.

    Python's own errors, those of C++ code and the output of other threads all go there. If the block raises, and if the
    process is aborted in it, everything is written.
    """
    with _REDIRECTION:
        _flush_stderr()
        try:
            stderr = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        with tempfile.NamedTemporaryFile(buffering=0) as captured, _last_words(captured.name, stderr):
            os.dup2(captured.fileno(), 2)
            keep_all = True
            try:
                yield
                keep_all = False
            finally:
                _flush_stderr()
                os.dup2(stderr, 2)
                os.close(stderr)
                captured.seek(0)
                for line in captured.read().splitlines(keepends=True):
                    if keep_all or not LOG_LINE.match(line):
                        os.write(2, line)


@contextlib.contextmanager
def _last_words(path: str, stderr: int) -> Iterator[None]:
    """Copy a file to standard error if the process ends within the block, such as when C++ code aborts it.

    No handler runs in a process that aborts, so a shell waits beside it: a line says that the block has ended, the end
    of its input that the process has. A Ctrl-C ends both without a word. path: of the file. stderr: a descriptor.
    """
    try:
        with open(path, "rb") as file:  # read from its beginning, wherever the process writes
            command = "/bin/sh", "-c", LAST_WORDS, path
            shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stderr, stderr=file)
    except OSError:  # there is no such shell, as on Windows
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the shell has ended
            shell.communicate(b"\n")


def _flush_stderr() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            sys.stderr.flush()


def let_gpu_memory_grow() -> None:
    """Allocate GPU memory as needed, so that other processes can use the rest."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is already initialised, and the setting is fixed
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)

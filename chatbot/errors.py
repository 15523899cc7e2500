"""Errors that a user can fix, and lost devices: one line on standard error and no traceback."""

import codecs
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

# The exit code of a process that lost a device or another process: the same commands resume from the last checkpoint.
# Kubeflow's TFJob retries it.
EXIT_LOST = 138
# After Ctrl-C, as in shells: 128 + SIGINT.
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and what to do.

    details: lines that a command prints above the message, such as the pairs of a file whose reading is in doubt.
    """

    exit_code = 2

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class LostError(UserError):
    """A device or a machine was lost in mid-run. It is nobody's mistake, and a run that starts again may succeed."""

    exit_code = EXIT_LOST


def in_c_locale(stream: io.TextIOWrapper) -> bool:
    """Return whether a stream has its encoding, ASCII, from a C locale, which tells nothing about its reader."""
    return codecs.lookup(stream.encoding).name == "ascii" and "PYTHONIOENCODING" not in os.environ


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Convert OSError, except BrokenPipeError, and ModuleNotFoundError to UserError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        remedy = "check the path, its permissions and the free space"
        raise UserError(f"{place}{error.strerror or error}; {remedy}") from error
    except ModuleNotFoundError as error:
        remedy = 'pip install "duida[train]", or "duida[run]" to answer from exports alone'
        raise UserError(f"{error}; run `make install`, then `source .venv/bin/activate`; or {remedy}") from error


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run a command's `main` and return its exit code.

    A UserError or OSError prints one line and gives exit code 2, a LostError `EXIT_LOST`.

    Until the command installs a handler, Ctrl-C ends the process at once: a KeyboardInterrupt inside an import or a
    destructor of TensorFlow would be printed and ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A GBK terminal cannot print an emoji, which is escaped.
            stream.reconfigure(encoding="utf-8" if in_c_locale(stream) else None, errors="backslashreplace")
    try:
        with as_user_errors():
            code = main() or 0
            sys.stdout.flush()
        return code
    except LostError as error:
        end_process(error)
    except UserError as error:
        print(*error.details, f"error: {error}", sep="\n", file=sys.stderr, flush=True)
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe has exited. Without this, the interpreter would print an error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED


def end_process(error: LostError) -> NoReturn:
    """Print the line of what was lost and end the process at once, from any thread.

    At the usual exit, TensorFlow may wait for a device for ever.
    """
    start = "" if threading.current_thread() is threading.main_thread() else "\n"  # ends the line of a progress bar
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"{start}error: {error}\n")):
        with suppress(OSError, ValueError):  # its reader has exited, or it is closed
            stream.write(text)
            stream.flush()
    os._exit(error.exit_code)


def _open_missing_streams() -> None:
    """Open the null device for each standard stream that is closed, as by `2>&-` in a shell.

    The next file would otherwise get its number, and TensorFlow would write its log lines into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends

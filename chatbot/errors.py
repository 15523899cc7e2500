"""Errors that are printed as one line, without a traceback."""

import codecs
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

# Exit code after the loss of a device or another process. Kubeflow's TFJob then runs the same command again, which
# resumes training from the last checkpoint.
EXIT_LOST = 138
# Exit code after Ctrl-C, as in shells: 128 + SIGINT.
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """An error that the user can fix. The message describes the problem, its location, and a remedy.

    Attributes:
        details: Additional lines that a command prints above the message.
    """

    exit_code = 2

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class LostError(UserError):
    """The loss of a device or machine during training. The user can run the same command again to resume training."""

    exit_code = EXIT_LOST


def in_c_locale(stream: io.TextIOWrapper) -> bool:
    """Return whether a stream is limited to ASCII because the locale is C."""
    return codecs.lookup(stream.encoding).name == "ascii" and "PYTHONIOENCODING" not in os.environ


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Convert exceptions in the block to UserError: OSError (except BrokenPipeError) and ModuleNotFoundError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        remedy = "check the path, its permissions and the free space"
        raise UserError(f"{place}{error.strerror or error}; {remedy}") from error
    except ModuleNotFoundError as error:
        remedy = 'pip install ".[train]", or ".[run]" to answer from exports alone'
        raise UserError(f"{error}; run `make install`, then `source .venv/bin/activate`; or {remedy}") from error


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run the `main` function of a command and return its exit code.

    For a UserError or OSError, one line is printed and the exit code is 2. A LostError ends the process with EXIT_LOST.
    Ctrl-C ends the process immediately, unless the command installs a signal handler. Python's own handler is disabled,
    because a KeyboardInterrupt in an import or destructor of TensorFlow would be ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Escape characters that the terminal cannot print, such as emoji in a GBK terminal.
            stream.reconfigure(encoding="utf-8" if in_c_locale(stream) else None, errors="backslashreplace")
    try:
        with as_user_errors():
            code = main() or 0
            sys.stdout.flush()
        return code
    except LostError as error:
        end_process(error)
    except UserError as error:
        print(*error.details, f"error: {error}", sep="\n", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The program that reads the output has exited. Discard the rest, so Python can flush the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def end_process(error: LostError) -> NoReturn:
    """Print the error and end the process immediately. This can be called from any thread.

    A normal exit could hang, because TensorFlow might wait for the lost device.
    """
    start = "" if threading.current_thread() is threading.main_thread() else "\n"  # end the line of a progress bar
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"{start}error: {error}\n")):
        with suppress(OSError, ValueError):  # the reader has exited, or the stream is closed
            stream.write(text)
            stream.flush()
    os._exit(error.exit_code)


def _open_missing_streams() -> None:
    """Open the null device for each standard stream that is closed, for example by `2>&-` in a shell.

    Otherwise, the next file to be opened would get the descriptor of the stream, and log lines would be written to it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `number`
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # stays open until the process ends

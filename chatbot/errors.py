"""The one error a user sees: a single line, exit code 2, no traceback."""

import io
import os
import signal
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can mend. Its text says what was found, where, and what to do."""


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run a command's `main`. A UserError, or a file that cannot be used, is one line and exit code 2.

    Ctrl-C ends the process at once until the command handles it itself. As an exception it could
    surface inside an import or a destructor of TensorFlow's, and be printed and lost.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal in GBK has no emoji
    try:
        code = main() or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has left; keep the interpreter from complaining about it at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}; check the path, its permissions and the free space")
    except ModuleNotFoundError as error:
        return _fail(f"{error}; give `make install`, then `source .venv/bin/activate`")
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 130


def _fail(text: str) -> int:
    print(f"error: {text}", file=sys.stderr, flush=True)
    return 2

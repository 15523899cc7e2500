"""The one error a user sees: a single line, exit code 2, no traceback."""

import signal
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can mend. Its text says what was found, where, and what to do."""


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run a command's `main`; a UserError becomes one line on standard error and exit code 2.

    Ctrl-C ends the process at once until the command handles it itself. As an exception it could
    surface inside an import or a destructor of TensorFlow's, and be printed and lost.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 130

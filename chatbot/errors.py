"""The one error a user sees: a single line, exit code 2, no traceback."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can mend. Its text says what was found, where, and what to do."""


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run a command's `main`; a UserError becomes one line on standard error and exit code 2, Ctrl-C 130."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        return 130

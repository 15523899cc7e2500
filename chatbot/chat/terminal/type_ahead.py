"""Keys that are typed while a reply is computed."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def kept_unseen() -> Iterator[None]:
    """Within the block, keep the keys for the next line that is edited, and do not show them. Ctrl-C interrupts.

    The terminal would show them amid the reply, and would take Ctrl-D as the end of a line that nobody reads. Windows
    does neither.
    """
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSANOW)  # the default would discard keys that were typed already
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)

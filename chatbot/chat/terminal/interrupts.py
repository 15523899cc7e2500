"""Ctrl-C while a reply is computed."""

import _thread
import contextlib
import sys
import threading
from collections.abc import Iterator

# Until an interrupt is raised again.
SECONDS = 0.05


@contextlib.contextmanager
def raised_again() -> Iterator[None]:
    """Within the block, raise a KeyboardInterrupt again, a moment later or at the end, that a destructor has ended.

    Python prints an exception in a destructor and goes on, and TensorFlow has many.
    """
    timer: threading.Timer | None = None
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        nonlocal timer
        if unraisable.exc_type is KeyboardInterrupt:
            timer = threading.Timer(SECONDS, _thread.interrupt_main)
            timer.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
        if timer is not None and timer.is_alive():
            raise KeyboardInterrupt
    finally:
        sys.unraisablehook = before
        if timer is not None:
            timer.cancel()

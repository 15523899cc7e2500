"""Signals that end a run between two steps: SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal)."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from chatbot.corpus.reading.display import counted

# Seconds after SIGTERM or SIGHUP to finish a step and save; the pods of kubernetes/ have 120.
GRACE_SECONDS = 100.0
# Seconds after a second signal in which an operation of TensorFlow that is running may end.
SECOND_TIMEOUT = 2.0
# Seconds between two calls of `tick`.
TICK = 1.0
# As in shells: 128 + SIGINT. A run that ends within the grace time has this exit code after every signal.
EXIT_INTERRUPTED = 130


class Interrupts:
    """The first signal that has arrived; true once there is one."""

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a signal. Raises KeyboardInterrupt for the second one."""
        if self:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def interrupts(
    announced: bool = True, grace: float | None = None, tick: Callable[[], str] | None = None
) -> Iterator[Interrupts]:
    """Yield an object that receives the first signal. A second one raises KeyboardInterrupt.

    announced: whether the first signal prints a line. grace: seconds after SIGTERM and SIGHUP after which the process
    ends, as it does when the main thread, waiting for TensorFlow, does not react to a second signal. tick: called every
    second by the thread that watches, returns a line to print, or "". Nothing is received outside the main thread,
    where Python allows no handlers, and no SIGHUP that is ignored (nohup).
    """
    received = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with _watched(announced, grace, tick):
        before = {number: signal.signal(number, received.receive) for number in numbers}
        try:
            yield received
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _watched(announced: bool, grace: float | None, tick: Callable[[], str] | None) -> Iterator[None]:
    """Announce the first signal within the block, and end the process if that does not end it in time.

    A thread hears of it from the interpreter's C handler, also while the main thread waits in TensorFlow.
    """
    reader, writer = socket.socketpair()
    reader.settimeout(None if tick is None else TICK)
    writer.setblocking(False)
    timers: list[threading.Timer] = []

    def next_signal() -> bytes:
        while True:
            try:
                return reader.recv(1)
            except TimeoutError:
                line = tick() if tick is not None else ""
                if line:
                    _print(line)

    def wait_for_signals() -> None:
        count = 0
        while data := next_signal():
            number, count = data[0], count + 1
            if number == getattr(signal, "SIGHUP", None):
                _leave_terminal()
            if count == 1 and announced:
                limit = (
                    "Ctrl-C again"
                    if number == signal.SIGINT or grace is None
                    else f"After {counted(grace, 'second')} it"
                )
                _print(f"Finishing this step, then saving. {limit} exits without saving.")
            if count > 1:
                _start_timer(timers, SECOND_TIMEOUT, "a second signal")
            elif grace is not None and number != signal.SIGINT:
                _start_timer(timers, grace, f"not finished within {counted(grace, 'second')}")

    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=wait_for_signals, daemon=True, name="signals")
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()  # ends the thread
        thread.join()
        for timer in timers:
            timer.cancel()
        reader.close()


def _start_timer(timers: list[threading.Timer], seconds: float, reason: str) -> None:
    def end() -> None:
        _print(f"error: {reason}; the last checkpoint is kept")
        os._exit(EXIT_INTERRUPTED)

    timers.append(threading.Timer(seconds, end))
    timers[-1].daemon = True
    timers[-1].start()


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        print(f"\n{text}", file=sys.stderr, flush=True)


def _leave_terminal() -> None:
    """Discard what is printed from now on to a terminal, which is closed: writing to it would fail."""
    discarded = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        # A closed terminal is no longer one for isatty; writing shows it.
        try:
            if os.isatty(descriptor):
                os.dup2(discarded, descriptor)
            else:
                os.write(descriptor, b"")
        except OSError:
            os.dup2(discarded, descriptor)
    os.close(discarded)

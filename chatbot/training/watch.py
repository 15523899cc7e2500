"""Handling of signals, and detection of training steps that hang.

A signal stops the run after the current step. The signals are SIGINT (Ctrl-C), SIGTERM, SIGHUP (the terminal was
closed) and SIGUSR1, which Slurm can send shortly before the time limit of a job.
"""

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from chatbot.display import pluralize
from chatbot.errors import EXIT_INTERRUPTED, EXIT_LOST, LostError, end_process

# After SIGTERM or SIGHUP, a run has this many seconds to finish its step and save. It must be shorter than the grace
# period of pods in deploy/kubernetes, which is 120 seconds.
GRACE_SECONDS = 100.0
# Repetitions of a signal within this many seconds are ignored, because systemd, Slurm and `timeout` may send the same
# signal to a process more than once.
REPEATED = 3.0
# After a second signal, the process is killed if it has not ended within this many seconds.
SECOND_TIMEOUT = 2.0
# The interval in seconds at which the thread checks for steps that hang.
TICK = 1.0
# A warning is printed after this many seconds without progress.
LIMIT = 60
CAUSES = "a GPU, a machine or their connection may have failed: NCCL_DEBUG=INFO shows where"
SIGUSR1 = getattr(signal, "SIGUSR1", None)  # not available on Windows


class Interrupts:
    """Records the first signal that the process receives. The object is true if there was a signal."""

    def __init__(self) -> None:
        self.number = 0
        self._received_at = 0.0  # arrival time of the first signal, from time.monotonic()

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code of the interrupted run. After SIGUSR1, the exit code requests a restart of the run."""
        return EXIT_LOST if self.number == SIGUSR1 else EXIT_INTERRUPTED

    def is_second(self, number: int) -> bool:
        """Record a signal, and return whether it is a second signal rather than the first one or its repetition.

        A signal counts as a second one if its number differs from the first, or if it arrives more than REPEATED
        seconds later.
        """
        now = time.monotonic()
        if not self:
            self.number = number
            self._received_at = now
        return number != self.number or now - self._received_at > REPEATED

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Raises KeyboardInterrupt if it is a second signal (see `is_second`)."""
        if self.is_second(number):
            raise KeyboardInterrupt


class StepWatch:
    """Detects training steps that hang.

    After LIMIT seconds without progress, a warning is printed, at most once per run. The process ends after `timeout`
    seconds, or if a GPU has failed, because the operations that wait for other devices cannot be cancelled. Time spent
    on tracing graphs does not count.

    Args:
        prints_warning: Whether to print the warning.
        is_tracing: A function that returns whether a graph is being traced.
        lost_device: A function that asks the driver whether a GPU has failed, and returns the error or None.
        timeout: The number of seconds without progress after which the process ends.
    """

    def __init__(
        self,
        prints_warning: bool,
        is_tracing: Callable[[], bool],
        lost_device: Callable[[], LostError | None],
        timeout: float = math.inf,
    ) -> None:
        self._warns = prints_warning
        self._is_tracing = is_tracing
        self._lost_device = lost_device
        self._timeout = timeout
        self._step: int | None = None  # the current step; None outside of steps
        self._timed_step: int | None = None  # the step that `_seconds` measures
        self._seconds = 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch for hangs in this context, which runs a part of step `number`, counted from 1."""
        self._step = number
        try:
            yield
        finally:
            self._step = None

    def tick(self) -> str:
        """Check the current step, and return a warning or an empty string. A thread calls this method every second.

        The method counts its calls instead of reading a clock, so the time while the process was suspended is excluded.
        """
        step = self._step
        if step is None or step != self._timed_step or self._is_tracing():
            self._timed_step = step
            self._seconds = 0
            return ""
        self._seconds += 1
        if self._seconds >= self._timeout:
            failure = f"step {step:,} has made no progress for {pluralize(self._timeout, 'second')} (--step-timeout)"
            end_process(LostError(f"{failure}; the same commands resume from the last checkpoint; {CAUSES}"))
        if self._seconds > LIMIT and self._seconds % LIMIT == 1:  # after the warning
            # The driver may hang if a GPU has failed, so it is called in a separate thread.
            threading.Thread(target=self._end_if_device_is_lost, daemon=True).start()
        if self._seconds % LIMIT or not self._warns:
            return ""
        self._warns = False
        return f"Step {step:,} has made no progress for {LIMIT} seconds. It may just be slow; otherwise {CAUSES}."

    def _end_if_device_is_lost(self) -> None:
        if error := self._lost_device():
            end_process(error)


@contextmanager
def interrupts(
    announced: bool = True,
    grace: float = math.inf,
    tick: Callable[[], str] = lambda: "",
    leave: Callable[[], bool] = lambda: False,
) -> Iterator[Interrupts]:
    """Handle signals in this context. A second signal (see `Interrupts.is_second`) raises KeyboardInterrupt.

    Signals are only handled in the main thread, because Python does not allow signal handlers elsewhere. SIGHUP is not
    handled if it is ignored, as under nohup.

    Args:
        announced: Whether to print a line after the first signal.
        grace: The number of seconds after SIGTERM or SIGHUP until the process is killed. The process is also killed if
            it does not end soon after a second signal.
        tick: A function that is called every second in a thread. It returns a line to print, or "".
        leave: A function that is called before the process is killed. It returns true if nothing was saved.
    """
    received = Interrupts()
    reader, writer = socket.socketpair()
    is_main = threading.current_thread() is threading.main_thread()
    thread = threading.Thread(target=_watch, args=(reader, announced, grace, tick, leave), daemon=True, name="watch")
    with reader:
        thread.start()
        try:
            with _handlers(received, writer) if is_main else contextlib.nullcontext():
                yield received
        finally:
            writer.close()  # Closing the socket ends the thread.
            thread.join()


@contextmanager
def _handlers(received: Interrupts, writer: socket.socket) -> Iterator[None]:
    """Install signal handlers in this context.

    Python also writes each signal number to `writer`, so the thread at the other end receives signals even while the
    main thread is blocked in TensorFlow.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if SIGUSR1 is not None:
        numbers.append(SIGUSR1)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    writer.setblocking(False)
    old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    old_handlers = {number: signal.signal(number, received.receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_descriptor)


def _watch(
    reader: socket.socket, announced: bool, grace: float, tick: Callable[[], str], leave: Callable[[], bool]
) -> None:
    """Read signal numbers from `reader`, announce the first signal, and kill the process if it does not end in time."""
    reader.settimeout(TICK)
    # This thread keeps its own record of signals, because the main thread may handle them much later.
    received, deadline, reason = Interrupts(), math.inf, ""
    while True:
        if time.monotonic() > deadline:
            _print(f"error: {reason}; {'nothing was saved' if leave() else 'the last checkpoint is kept'}")
            os._exit(EXIT_INTERRUPTED)
        try:
            data = reader.recv(1)
        except TimeoutError:
            if line := tick():
                _print(line)
            continue
        if not data:
            return
        number = data[0]
        is_first = not received
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        limit = math.inf if number in (signal.SIGINT, SIGUSR1) else grace
        if received.is_second(number):
            deadline = min(deadline, time.monotonic() + SECOND_TIMEOUT)
            reason = "a second signal"
        elif is_first:
            deadline = time.monotonic() + limit
            reason = f"not finished within {pluralize(grace, 'second')}"
            if announced:
                again = f"Ctrl-C again after {pluralize(REPEATED, 'second')}"
                end = again if limit == math.inf else f"After {pluralize(limit, 'second')} it"
                _print(f"Finishing this step, then saving. {end} exits without saving.")


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # Standard error may be closed.
        print(f"\n{text}", file=sys.stderr)


def _leave_terminal() -> None:
    """Redirect output to the null device if it goes to a closed terminal, because writing to it would fail."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        # isatty returns False for a closed terminal, so the code tries to write.
        try:
            if os.isatty(descriptor):
                os.dup2(null_device, descriptor)
            else:
                os.write(descriptor, b"")
        except OSError:
            os.dup2(null_device, descriptor)
    os.close(null_device)

"""A thread that watches a run: for signals that end it between two steps, and for a step without progress.

The signals are SIGINT (Ctrl-C), SIGTERM, SIGHUP (a closed terminal) and SIGUSR1, which Slurm sends before the end of a
job's time.
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

from chatbot.display import counted
from chatbot.errors import EXIT_INTERRUPTED, EXIT_LOST, LostError, end_process

# Seconds after SIGTERM or SIGHUP to finish a step and save; the pods of kubernetes/ have 120.
GRACE_SECONDS = 100.0
# Seconds in which a signal that comes again is the same one: systemd and Slurm send it to every process of a run, and
# the supervisor forwards it to the others; `timeout` sends it to its child, then to the whole process group.
REPEATED = 3.0
# Seconds after a second signal in which an operation of TensorFlow that is running may end.
SECOND_TIMEOUT = 2.0
# Seconds between two calls of `tick`, and between two looks at the time.
TICK = 1.0
# Seconds without progress of a step after which there is a line.
LIMIT = 60
CAUSES = "a GPU, a machine or their connection may have failed: NCCL_DEBUG=INFO shows where"
SIGUSR1 = getattr(signal, "SIGUSR1", None)  # Windows has none


class Interrupts:
    """The first signal that has arrived; true once there is one."""

    def __init__(self) -> None:
        self.number = 0
        self._arrived = 0.0  # time.monotonic()

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The exit code of a run that the signal has ended: after SIGUSR1, one that asks to start it again."""
        return EXIT_LOST if self.number == SIGUSR1 else EXIT_INTERRUPTED

    def is_second(self, number: int) -> bool:
        """Take a signal; return whether it is another one than the first, not that one within REPEATED seconds."""
        now = time.monotonic()
        if not self:
            self.number = number
            self._arrived = now
        return number != self.number or now - self._arrived > REPEATED

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a signal. Raises KeyboardInterrupt for the second one."""
        if self.is_second(number):
            raise KeyboardInterrupt


class StepWatch:
    """Says once in a run that a step has made no progress for LIMIT seconds, and ends one that cannot go on.

    It ends after `timeout` seconds without progress, or if a GPU is lost: a collective between GPUs of which one has
    failed cannot be cancelled, and would wait for ever. The time in which graphs are traced does not count.
    says_so: whether there is a line. lost_device: asks the driver for lost GPUs, a second after each LIMIT.
    """

    def __init__(
        self,
        says_so: bool,
        is_tracing: Callable[[], bool],
        lost_device: Callable[[], LostError | None],
        timeout: float = math.inf,
    ) -> None:
        self._is_due = says_so
        self._is_tracing = is_tracing
        self._lost_device = lost_device
        self._timeout = timeout
        self._step: int | None = None  # None: not within a step
        self._counted: int | None = None  # the step that `_seconds` belong to
        self._seconds = 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch the block, a part of step `number`, counted from 1."""
        self._step = number
        try:
            yield
        finally:
            self._step = None

    def tick(self) -> str:
        """Return the line if it is due now, else "". Another thread than that of the steps calls this every second.

        The calls are counted, so that the time in which the process was stopped does not count.
        """
        step = self._step
        if step is None or step != self._counted or self._is_tracing():
            self._counted = step
            self._seconds = 0
            return ""
        self._seconds += 1
        if self._seconds >= self._timeout:
            stands_still = f"step {step:,} has made no progress for {counted(self._timeout, 'second')} (--step-timeout)"
            end_process(LostError(f"{stands_still}; the same commands resume from the last checkpoint; {CAUSES}"))
        if self._seconds > LIMIT and self._seconds % LIMIT == 1:  # when the line, which was due before, is printed
            # A driver that has lost a GPU may not answer either, and this thread must.
            threading.Thread(target=self._end_if_device_is_lost, daemon=True).start()
        if self._seconds % LIMIT or not self._is_due:
            return ""
        self._is_due = False
        return f"Step {step:,} has made no progress for {LIMIT} seconds. It may be slow; else {CAUSES}."

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
    """Yield an object that receives the first signal. A second one (`Interrupts.is_second`) raises KeyboardInterrupt.

    announced: whether the first signal prints a line. grace: seconds after SIGTERM and SIGHUP after which the process
    ends, as it does when the main thread, waiting for TensorFlow, does not react to a second signal. tick: called every
    second by the thread that watches, returns a line to print, or "". leave: called before the process is ended in
    that way, returns whether nothing was saved. Nothing is received outside the main thread,
    where Python allows no handlers, and no SIGHUP that is ignored (nohup).
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
            writer.close()  # ends the thread
            thread.join()


@contextmanager
def _handlers(received: Interrupts, writer: socket.socket) -> Iterator[None]:
    """Handle signals in this context.

    The watching thread hears of them at `writer` from the interpreter's C handler, also while the main thread waits in
    TensorFlow.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if SIGUSR1 is not None:
        numbers.append(SIGUSR1)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    writer.setblocking(False)
    file_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, received.receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(file_before)


def _watch(
    reader: socket.socket, announced: bool, grace: float, tick: Callable[[], str], leave: Callable[[], bool]
) -> None:
    """Announce the first signal, and end the process if that does not end it in time. reader: yields the signals."""
    reader.settimeout(TICK)
    heard, deadline, reason = Interrupts(), math.inf, ""  # the main thread may take signals much later
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
        is_first = not heard
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        limit = math.inf if number in (signal.SIGINT, SIGUSR1) else grace
        if heard.is_second(number):
            deadline = min(deadline, time.monotonic() + SECOND_TIMEOUT)
            reason = "a second signal"
        elif is_first:
            deadline = time.monotonic() + limit
            reason = f"not finished within {counted(grace, 'second')}"
            if announced:
                again = f"Ctrl-C again after {counted(REPEATED, 'second')}"
                end = again if limit == math.inf else f"After {counted(limit, 'second')} it"
                _print(f"Finishing this step, then saving. {end} exits without saving.")


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

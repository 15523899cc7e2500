"""Detects lost machines in a background thread that ends this process if a required machine is lost.

If a machine is lost, TensorFlow can block forever while waiting for it, and then neither exceptions nor signal handlers
can end this process. Therefore, the thread regularly connects to the TensorFlow server of each machine. A server sends
data to every new connection, even while its process is busy. If a process is dead or stopped, no data arrives.

In a synchronous run, all workers check each other. In an asynchronous run, the chief checks all other machines, and
these check the chief.
"""

import contextlib
import ctypes
import math
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from chatbot.display import pluralize
from chatbot.errors import LostError, end_process
from chatbot.training.machines.cluster import host_and_port

# Times in seconds. A machine counts as lost only after it has been unreachable for PEER_TIMEOUT, because a busy machine
# may refuse a single connection.
PEER_TIMEOUT = 5.0
PROBE_INTERVAL = 1.0
REPORT_INTERVAL = 30.0
# Seconds within which TensorFlow must connect to machines that are already running.
JOIN_TIMEOUT = 120
# Messages of TensorFlow and NCCL about a machine that was lost or has restarted.
LOST_MACHINE_TEXTS = re.compile(
    "incarnation|unknown device|remote_handle|remote process exited|rst_stream|stream removed|socket closed"
    "|connection reset",
    re.IGNORECASE,
)


class Patience:
    """A timeout for the start of other machines. While waiting, status messages are printed regularly.

    Args:
        addresses: The addresses of the machines, by name.
        limit: The timeout in seconds.
    """

    def __init__(self, addresses: Mapping[str, str], limit: float) -> None:
        self._addresses = addresses
        self._limit = limit
        self._started = time.monotonic()
        self._next_report = self._started + 2 * PROBE_INTERVAL

    @property
    def left(self) -> float:
        """The number of seconds left; 0 after the timeout."""
        return max(0.0, self._started + self._limit - time.monotonic())

    def report(self, missing: Sequence[str]) -> None:
        """Print the missing machines at regular intervals. Raises LostError after the timeout."""
        names = ", ".join(f"{name} ({self._addresses[name]})" for name in missing)
        limit = pluralize(round(self._limit), "second")
        if not self.left:
            raise LostError(
                f"{names} did not start within {limit}: start it with the same command and its own --task-index, or "
                "allow connections to its port"
            )
        if time.monotonic() > self._next_report:
            self._next_report = time.monotonic() + REPORT_INTERVAL
            print_status(f"Waiting for {names}: {self._limit - self.left:.0f} of at most {limit}.")


class Peers:
    """Monitors the other machines of a run until `stop` is called.

    Args:
        addresses: The addresses of the machines, by name.
        on_lost: Callback that is invoked with the name of a machine each time it is lost.
        timeout: Seconds without an answer after which a machine counts as lost.
        limit: Seconds to wait for the machines to start; None if they are already running.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        on_lost: Callable[[str], None],
        timeout: float = PEER_TIMEOUT,
        limit: float | None = None,
    ) -> None:
        self._addresses = dict(addresses)
        self._on_lost = on_lost
        self._timeout = timeout
        self._patience = Patience(addresses, limit or 0)
        self._stopped = threading.Event()
        self._last_answer: dict[str, float] = {}  # time.monotonic() by machine, without lost machines
        self.missing = [] if limit is None else list(addresses)  # machines that have never answered

    def start(self) -> None:
        """Start probing."""
        self._last_answer = {name: time.monotonic() for name in self._addresses if name not in self.missing}
        threading.Thread(target=self._run, daemon=True, name="peers").start()

    def stop(self) -> None:
        """Stop probing, so that machines may exit without being considered lost."""
        self._stopped.set()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """End this process if the `with` block raises an error that a lost machine may have caused."""
        try:
            yield
        except Exception as error:
            self.exit_after_error(error)
            raise

    def exit_after_error(self, error: BaseException) -> None:
        """End this process if a lost machine may have caused the error.

        Before that, wait until the background thread has had time to detect the lost machine and report its name.
        """
        if is_connection_error(error):
            self._stopped.wait(4 * PEER_TIMEOUT)
            # The message is at the end of the error, after source lines of the graph.
            text = str(error).strip().rpartition("\n\n")[2].partition("\n")[0]
            self.exit_process(f"the connection to the other machines failed ({text[:60]})")

    def exit_process(self, reason: str) -> None:
        """Print the reason to standard error and end this process, unless `stop` was called."""
        if not self._stopped.is_set():
            resume = "the last checkpoint is kept: start all machines again with the same commands"
            end_process(LostError(f"{reason}; {resume}"))

    def _run(self) -> None:
        while True:
            for name, address in self._addresses.items():
                if is_answering(address):
                    self._last_answer[name] = time.monotonic()
                    self.missing = [peer for peer in self.missing if peer != name]
                elif time.monotonic() - self._last_answer.get(name, math.inf) > self._timeout:
                    del self._last_answer[name]
                    self._on_lost(name)
            if self.missing:
                try:
                    self._patience.report(self.missing)
                except LostError as error:
                    end_process(error)
            if self._stopped.wait(PROBE_INTERVAL):
                return


def is_connection_error(error: BaseException) -> bool:
    """Return whether a TensorFlow error can be caused by a lost machine or connection."""
    import tensorflow as tf

    errors = tf.errors
    lost = errors.UnavailableError, errors.AbortedError, errors.DeadlineExceededError, errors.CancelledError
    return isinstance(error, lost) or (
        isinstance(error, errors.OpError) and bool(LOST_MACHINE_TEXTS.search(str(error)))
    )


@contextmanager
def join_timeout() -> Iterator[None]:
    """Limit the time that TensorFlow may take to connect the machines inside the `with` block.

    While TensorFlow connects, it blocks all Python code. Therefore, the signal SIGALRM ends the process after the
    timeout, without a Python handler. After the block, the handler of SIGTERM is restored, because TensorFlow replaces
    it with one that ignores the signal. C functions set the handlers, because Python's work only in the main thread.
    """
    get_handler = ctypes.pythonapi.PyOS_getsig
    set_handler = ctypes.pythonapi.PyOS_setsig
    get_handler.restype = ctypes.c_void_p
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_handler.restype = ctypes.c_void_p
    sigterm_handler = get_handler(signal.SIGTERM)
    sigalrm_handler = set_handler(signal.SIGALRM, None)  # None restores the default action
    signal.alarm(JOIN_TIMEOUT)
    try:
        yield
    finally:
        signal.alarm(0)
        set_handler(signal.SIGALRM, sigalrm_handler)
        set_handler(signal.SIGTERM, sigterm_handler)


def connect_to(address: str) -> socket.socket | None:
    """Return a connection to an address (host:port); None if no process accepts connections there."""
    with contextlib.suppress(OSError):
        connection = socket.create_connection(host_and_port(address), timeout=2)
        # A socket can connect to itself if its local port happens to be the port that it connects to.
        if connection.getsockname() != connection.getpeername():
            return connection
        connection.close()
    return None


def is_answering(address: str) -> bool:
    """Return whether a process sends data to a new connection, or closes the connection, within two seconds."""
    with connect_to(address) or contextlib.nullcontext() as connection:
        if connection is None:
            return False
        try:
            connection.recv(1)  # a gRPC server sends its HTTP/2 settings to every new connection
        except OSError as error:
            return isinstance(error, ConnectionError)
        return True


def print_status(text: str) -> None:
    """Flush standard output, then print a line to standard error."""
    sys.stdout.flush()
    print(text, file=sys.stderr)

"""The other machines of a run, and a thread that ends this process when one that it needs is lost.

An operation whose peer has died may block for ever inside TensorFlow, out of reach of exceptions and signal handlers.
Peers are probed at the port of their TensorFlow server, which sends a greeting from a thread of its own: a process that
has ended accepts no connection there, one that is stopped sends nothing, and one that is busy answers. The workers of a
synchronous run probe each other; the chief of an asynchronous run probes all others, and they probe the chief.
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

from chatbot.display import counted
from chatbot.errors import LostError, end_process
from chatbot.training.machines.cluster import host_and_port

# Times in seconds. A peer is lost when its port was closed for PEER_TIMEOUT; a busy peer may refuse one connection.
PEER_TIMEOUT = 5.0
PROBE_INTERVAL = 1.0
REPORT_INTERVAL = 30.0
# The time in which TensorFlow must connect machines that are all running.
JOIN_TIMEOUT = 120
# What errors of any class say of a machine that was lost, and has perhaps started again since: TensorFlow's collectives
# and coordinator (tensorflow/python/distribute/coordinator/cluster_coordinator.py), and NCCL (ncclRemoteError).
RESTARTED = re.compile(
    "incarnation|unknown device|remote_handle|remote process exited|rst_stream|stream removed|socket closed"
    "|connection reset",
    re.IGNORECASE,
)


class Patience:
    """The time that other machines have to start, in seconds from now. addresses: by the names of machines."""

    def __init__(self, addresses: Mapping[str, str], limit: float) -> None:
        self._addresses = addresses
        self._limit = limit
        self._started = time.monotonic()
        self._next_report = self._started + 2 * PROBE_INTERVAL

    @property
    def left(self) -> float:
        """The seconds that are left; 0 when it is over."""
        return max(0.0, self._started + self._limit - time.monotonic())

    def report(self, missing: Sequence[str]) -> None:
        """Print from time to time which machines are missing. Raises LostError when it is too late for them."""
        names = ", ".join(f"{name} ({self._addresses[name]})" for name in missing)
        limit = counted(round(self._limit), "second")
        if not self.left:
            raise LostError(
                f"{names} did not start within {limit}: start it with the same command and its own --task-index, or "
                "allow connections to its port"
            )
        if time.monotonic() > self._next_report:
            self._next_report = time.monotonic() + REPORT_INTERVAL
            print_status(f"Waiting for {names}: {self._limit - self.left:.0f} of at most {limit}.")


class Peers:
    """Ends this process when a machine that it needs does not start or is lost, until `stop` is called.

    addresses: of the machines, by name. on_lost: called with the name of a lost one, each time. timeout: seconds
    without an answer after which a machine is lost. limit: seconds to wait for machines to start; None: they run.
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
        self._last_answer: dict[str, float] = {}  # time.monotonic(), of the machines that are not lost
        self.missing = [] if limit is None else list(addresses)  # machines that have not answered yet

    def start(self) -> None:
        """Start probing."""
        self._last_answer = {name: time.monotonic() for name in self._addresses if name not in self.missing}
        threading.Thread(target=self._run, daemon=True, name="peers").start()

    def stop(self) -> None:
        """Stop. From then on machines may end."""
        self._stopped.set()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """End this process after an error of this context that a lost machine may have caused."""
        try:
            yield
        except Exception as error:
            self.exit_after_error(error)
            raise

    def exit_after_error(self, error: BaseException) -> None:
        """End this process after an error that a lost machine may have caused, in time for its name to be known.

        Does nothing after another error, which would come again.
        """
        if is_of_connection(error):
            self._stopped.wait(4 * PEER_TIMEOUT)
            # What follows the lines of a graph's code.
            text = str(error).strip().rpartition("\n\n")[2].partition("\n")[0]
            self.exit_process(f"the connection to the other machines failed ({text[:60]})")

    def exit_process(self, reason: str) -> None:
        """End this process with a line on standard error. Does nothing after `stop`."""
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


def is_of_connection(error: BaseException) -> bool:
    """Return whether TensorFlow has raised this error for a machine or connection that may be lost."""
    import tensorflow as tf

    errors = tf.errors
    lost = errors.UnavailableError, errors.AbortedError, errors.DeadlineExceededError, errors.CancelledError
    return isinstance(error, lost) or (isinstance(error, errors.OpError) and bool(RESTARTED.search(str(error))))


@contextmanager
def join_timeout() -> Iterator[None]:
    """Limit the time of the block, in which TensorFlow connects the machines.

    TensorFlow holds Python's lock meanwhile: SIGALRM ends the process if a machine is lost. TensorFlow also installs a
    handler of SIGTERM, which ignores it. Both are set by functions of C, which work in every thread.
    """
    handler_of = ctypes.pythonapi.PyOS_getsig
    set_handler = ctypes.pythonapi.PyOS_setsig
    handler_of.restype = ctypes.c_void_p
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_handler.restype = ctypes.c_void_p
    of_sigterm, of_sigalrm = handler_of(signal.SIGTERM), set_handler(signal.SIGALRM, None)  # None: the default
    signal.alarm(JOIN_TIMEOUT)
    try:
        yield
    finally:
        signal.alarm(0)
        set_handler(signal.SIGALRM, of_sigalrm)
        set_handler(signal.SIGTERM, of_sigterm)


def connect_to(address: str) -> socket.socket | None:
    """Return a connection to host:port; None if no process accepts connections there."""
    with contextlib.suppress(OSError):
        connection = socket.create_connection(host_and_port(address), timeout=2)
        # On one machine, the connection's own port may be the port that it connects to; it then leads to itself.
        if connection.getsockname() != connection.getpeername():
            return connection
        connection.close()
    return None


def is_answering(address: str) -> bool:
    """Return whether a process at host:port sends something to, or closes, a new connection within two seconds."""
    with connect_to(address) or contextlib.nullcontext() as connection:
        if connection is None:
            return False
        try:
            connection.recv(1)  # the first byte of HTTP/2's settings, which a gRPC server sends at once
        except OSError as error:
            return isinstance(error, ConnectionError)
        return True


def print_status(text: str) -> None:
    """Print to standard error, after flushing standard output."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)

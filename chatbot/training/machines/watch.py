"""A thread that probes the other machines and ends this process when one of them is lost.

A collective operation whose peer has died may block for ever inside TensorFlow, out of reach of Python's exceptions
and signal handlers. Peers are therefore probed through the operating system: the port of a process accepts connections
as long as the process exists.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from chatbot.training.machines.cluster import WORKER, host_and_port

# Exit code of a process that lost another one; all processes must be started again. Kubeflow's TFJob retries it.
PEER_LOST = 138
# Times in seconds. A peer is lost when its port was closed for PEER_TIMEOUT; a busy peer may refuse one connection.
PEER_TIMEOUT = 5.0
PROBE_INTERVAL = 1.0
REPORT_INTERVAL = 30.0
# The time in which TensorFlow must connect machines that are all running.
JOIN_TIMEOUT = 120


class Watch:
    """Probes the peers from `start` until `stop`.

    peers: their addresses, by name. limit: seconds to wait for peers to start, and for a worker to return
    when all are lost. on_lost: called with the name of a lost peer, once until the peer is back; the default ends
    this process. timeout: seconds without an answer after which a peer is lost.
    """

    def __init__(
        self,
        peers: Mapping[str, str],
        limit: float,
        on_lost: Callable[[str], None] | None = None,
        timeout: float = PEER_TIMEOUT,
    ) -> None:
        self._peers, self._limit, self._timeout = dict(peers), limit, timeout
        self._on_lost = on_lost or self._exit_without
        self._stopped = threading.Event()
        self._started = 0.0  # time.monotonic(), like _last_answer and _last_report
        self._last_answer: dict[str, float] = {}
        self._last_report: float | None = None
        self._lost: set[str] = set()
        self.missing = list(peers)  # peers that have not answered yet

    def start(self) -> None:
        """Start probing."""
        self._started = time.monotonic()
        self._last_answer = dict.fromkeys(self._peers, self._started)
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def stop(self) -> None:
        """Stop probing. From then on peers may end."""
        self._stopped.set()

    def exit_after_error(self, error: BaseException) -> None:
        """End this process after an error that a lost peer may have caused.

        Waits, so that the probes can name the peer.
        """
        self._stopped.wait(4 * PEER_TIMEOUT)
        reason = str(error).strip().split("\n")[0][:200]
        self.exit_process(f"the connection to the other machines failed ({reason})")

    def exit_process(self, reason: str) -> None:
        """End this process with a line on standard error. Does nothing after `stop`."""
        if not self._stopped.is_set():
            remedy = "The last checkpoint is kept: start all machines again with the same commands"
            print_status(f"\nerror: {reason}. {remedy}")
            os._exit(PEER_LOST)

    def _exit_without(self, name: str) -> None:
        self.exit_process(f"{name} ({self._peers[name]}) was lost: it has not answered for {self._timeout:.0f} seconds")

    def _run(self) -> None:
        while True:
            for name, address in self._peers.items():
                self._probe(name, address)
            self._check_missing()
            self._check_workers()
            if self._stopped.wait(PROBE_INTERVAL):
                return

    def _probe(self, name: str, address: str) -> None:
        if is_listening(address):
            self._last_answer[name] = time.monotonic()
            if name in self._lost:
                self._lost.remove(name)
                print_status(f"\n{name} ({address}) is back.")
            if name in self.missing:
                self.missing.remove(name)
        elif name not in (*self.missing, *self._lost) and self._silence(name) > self._timeout:
            self._lost.add(name)
            self._on_lost(name)

    def _silence(self, name: str) -> float:
        """Return the seconds since the last answer of a peer."""
        return time.monotonic() - self._last_answer[name]

    def _check_missing(self) -> None:
        """Report peers that have not started yet; end this process when they are too late."""
        if not self.missing:
            return
        missing = ", ".join(f"{name} ({self._peers[name]})" for name in self.missing)
        now = time.monotonic()
        waited = now - self._started
        if waited > self._limit:
            self.exit_process(
                f"{missing} did not start within {self._limit:.0f} seconds (--start-limit): "
                "start it with the same command and its own --task-index, or allow connections to its port"
            )
        due = self._last_report is None or now - self._last_report > REPORT_INTERVAL
        if due and waited > 2 * PROBE_INTERVAL:
            self._last_report = now
            print_status(f"Waiting for {missing}: {waited:.0f} of at most {self._limit:.0f} seconds.")

    def _check_workers(self) -> None:
        """End this process when all workers have been lost for too long."""
        workers = {name for name in self._peers if name.startswith(WORKER)}
        if workers and workers <= self._lost:
            silence = min(map(self._silence, workers))
            if silence > self._limit:
                self.exit_process(f"all workers were lost: none has answered for {silence:.0f} seconds (--start-limit)")


@contextmanager
def join_timeout() -> Iterator[None]:
    """Limit the time of the block, in which TensorFlow connects the machines.

    TensorFlow holds Python's lock meanwhile, so no thread runs and no SIGTERM is handled. If a machine is lost, SIGALRM
    ends this process after JOIN_TIMEOUT seconds.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(JOIN_TIMEOUT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow has installed a handler that ignores it


def is_listening(address: str) -> bool:
    """Return whether a process accepts connections at host:port."""
    try:
        with socket.create_connection(host_and_port(address), timeout=2) as probe:
            # On one machine, the probe's own port may be the port that it connects to; it is then connected to itself.
            return probe.getsockname() != probe.getpeername()
    except OSError:
        return False


def print_status(text: str) -> None:
    """Print to standard error, after flushing standard output."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)

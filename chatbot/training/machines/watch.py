"""A thread that waits for the other machines, and ends this process when one of them is gone.

A collective operation whose peer has died may hang for ever inside TensorFlow, where no exception and
no signal handler of Python's can reach it. Whether a peer lives is asked of the operating system: its
port takes connections as long as its process is there.
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

# The exit code of a process that lost another one: start all again. Kubeflow's TFJob retries it.
LOST = 138
# A peer whose port is closed for so many seconds is gone; a busy one may refuse now and then.
PATIENCE = 5.0
EVERY = 1.0
SAID_EVERY = 30.0
# Seconds for machines that are all there to join.
JOINING = 120


class Watch:
    """Watches the peers from `start` until `stop`.

    peers: the address of each, by name. limit: seconds to wait for a peer that was never there, and for any worker
    when all are gone. lost: what to do about a peer that is gone; without it, leave. It is called once, until the
    peer is back. patience: seconds without an answer until a peer is gone.
    """

    def __init__(
        self,
        peers: Mapping[str, str],
        limit: float,
        lost: Callable[[str], None] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._peers, self._limit, self._patience = dict(peers), limit, patience
        self._lost = lost or self._leave_without
        self._stopped = threading.Event()
        self._gone: set[str] = set()
        self.missing = list(peers)  # those that never answered yet

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def stop(self) -> None:
        """From here on the peers may leave."""
        self._stopped.set()

    def explain(self, error: BaseException) -> None:
        """Leave because of an error that a lost peer may have caused: by the peer's name if it is found in time."""
        self._stopped.wait(4 * PATIENCE)
        reason = str(error).strip().split("\n")[0][:200]
        self.leave(f"the connection to the other machines failed ({reason})")

    def leave(self, why: str) -> None:
        """End this process with a line."""
        if not self._stopped.is_set():
            say(f"\nerror: {why}. The last checkpoint is kept: start all machines again with the same commands")
            os._exit(LOST)

    def _leave_without(self, name: str) -> None:
        self.leave(f"{name} ({self._peers[name]}) was lost: it has not answered for {self._patience:.0f} seconds")

    def _watch(self) -> None:
        began = said = time.monotonic()
        answered = dict.fromkeys(self._peers, began)
        while True:
            for name, address in self._peers.items():
                if _answers(address):
                    answered[name] = time.monotonic()
                    if name in self._gone:
                        self._gone.remove(name)
                        say(f"\n{name} ({address}) is back.")
                    if name in self.missing:
                        self.missing.remove(name)
                elif name not in (*self.missing, *self._gone) and time.monotonic() - answered[name] > self._patience:
                    self._gone.add(name)
                    self._lost(name)
            missing = ", ".join(f"{name} ({self._peers[name]})" for name in self.missing)
            waited = time.monotonic() - began
            if missing and waited > self._limit:
                self.leave(
                    f"{missing} did not start within {self._limit:.0f} seconds (--start-limit): "
                    "start it with the same command and its own --task-index, or open the way to its port"
                )
            workers = {name for name in self._peers if name.startswith(WORKER)}
            if workers and workers <= self._gone:
                silent = time.monotonic() - max(answered[name] for name in workers)
                if silent > self._limit:
                    self.leave(f"all workers were lost: none has answered for {silent:.0f} seconds (--start-limit)")
            if missing and (said == began or time.monotonic() - said > SAID_EVERY) and waited > 2 * EVERY:
                said = time.monotonic()
                say(f"Waiting for {missing}: {waited:.0f} of at most {self._limit:.0f} seconds.")
            if self._stopped.wait(EVERY):
                return


@contextmanager
def hurry() -> Iterator[None]:
    """Where TensorFlow joins the machines: in a call that no thread of ours and, from then on, no SIGTERM can end.

    Should one be lost in just these seconds, an alarm ends this process.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(JOINING)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow has put a handler of its own there


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(host_and_port(address), timeout=2) as probe:
            # On one machine a free port may be given to the probe itself, which then meets itself.
            return probe.getsockname() != probe.getpeername()
    except OSError:
        return False


def say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)

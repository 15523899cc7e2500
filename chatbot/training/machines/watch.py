"""A thread that waits for the other machines, and ends this process when one of them is gone.

A collective operation whose peer has died may hang for ever inside TensorFlow, where no exception and
no signal handler of Python's can reach it. Whether a peer lives is asked of the operating system: its
port takes connections as long as its process is there.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping

from chatbot.training.machines.cluster import host_and_port

# The exit code of a process that lost another one: start all again. Kubeflow's TFJob retries it.
LOST = 138
# A peer whose port is closed for so many seconds is gone; a busy one may refuse now and then.
PATIENCE = 5.0
EVERY = 1.0
SAID_EVERY = 30.0


class Watch:
    """Watches the peers from `start` until `stop`.

    peers: the address of each, by name. limit: seconds to wait for a peer that was never there.
    """

    def __init__(self, peers: Mapping[str, str], limit: float) -> None:
        self._peers, self._limit = dict(peers), limit
        self._stopped = threading.Event()
        self._here: set[str] = set()

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
        self._leave(f"the connection to the other machines failed ({reason})")

    def _watch(self) -> None:
        began = said = time.monotonic()
        answered = dict.fromkeys(self._peers, began)
        while not self._stopped.wait(EVERY):
            for name, address in self._peers.items():
                if _answers(address):
                    answered[name] = time.monotonic()
                    self._here.add(name)
                elif name in self._here and time.monotonic() - answered[name] > PATIENCE:
                    self._leave(f"{name} ({address}) was lost: it has not answered for {PATIENCE:.0f} seconds")
            missing = [f"{name} ({a})" for name, a in self._peers.items() if name not in self._here]
            waited = time.monotonic() - began
            if missing and waited > self._limit:
                self._leave(
                    f"{', '.join(missing)} did not start within {self._limit:.0f} seconds (--start-limit): "
                    "start it with the same command and its own --task-index, or open the way to its port"
                )
            if missing and (said == began or time.monotonic() - said > SAID_EVERY) and waited > 2 * EVERY:
                said = time.monotonic()
                _say(f"Waiting for {', '.join(missing)}: {waited:.0f} of at most {self._limit:.0f} seconds.")

    def _leave(self, why: str) -> None:
        if not self._stopped.is_set():
            _say(f"\nerror: {why}. The last checkpoint is kept: start all machines again with the same commands")
            os._exit(LOST)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(host_and_port(address), timeout=2):
            return True
    except OSError:
        return False


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)

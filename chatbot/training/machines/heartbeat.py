"""The connection of each worker of a synchronous run with the chief, which shows that all of them still run.

It is made on the chief's port before TensorFlow uses the port. Once a second, both ends send the step that they are at.
A machine is lost when it has sent nothing for PEER_TIMEOUT seconds and its port does not answer either: TensorFlow's
own threads answer there, also while Python is busy. The chief sends the loss on to the others. A machine that answers
and finishes no step, as it may hang in a kernel or validate for long, is only reported.
"""

import contextlib
import json
import socket
import threading
import time
from typing import Any

from chatbot.training.machines.cluster import WORKER, Cluster, host_and_port
from chatbot.training.machines.watch import (
    PEER_TIMEOUT,
    PROBE_INTERVAL,
    START_LIMIT,
    Monitor,
    connect_to,
    is_answering,
    is_listening,
    print_status,
)

CHIEF_NAME = f"{WORKER} 0"
# Seconds without a step of any machine after which the steps of all are printed.
REPORT_STEPS = 600.0
# A longer line is not from a worker, and no more than this waits to be sent.
MOST_BYTES = 1 << 16


class Link:
    """A connection that carries a JSON object in each line. It never blocks."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection, self._received, self._unsent = connection, b"", b""
        self.open, self.heard = True, time.monotonic()
        self.ready: bool | None = None  # whether the worker at one end says that it has reached all ports

    def send(self, **message: Any) -> None:
        """Send a message as far as the connection takes it, and the rest later, but no more than MOST_BYTES."""
        if len(self._unsent) < MOST_BYTES:
            self._unsent += json.dumps(message).encode() + b"\n"
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived since the last call. The other end of a link may be any program."""
        try:
            while data := self._connection.recv(4096):
                self._received += data
                self.heard = time.monotonic()
            self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > MOST_BYTES:
            self.close()
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            self.close()
            return []

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._connection.close()


class Heartbeat(Monitor):
    """The links of this machine: of the chief to all workers, of another worker to the chief."""

    def __init__(self, cluster: Cluster, timeout: float = PEER_TIMEOUT, limit: float = START_LIMIT) -> None:
        super().__init__(timeout, limit)
        self._cluster, self._name = cluster, f"{WORKER} {cluster.index}"
        self._links: dict[str, Link] = {}
        self._steps = {self._name: 0}  # of the machines that this one hears

    def wait_for_all(self) -> None:
        """Wait until every machine has reached the port of every other one; end this process after the limit.

        TensorFlow would hold Python's lock meanwhile, and with it the time limit and messages.
        """
        assert self._cluster.own is not None
        _, port = host_and_port(self._cluster.own)
        dual_stack = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual_stack else socket.AF_INET
        unseen = dict(self._cluster.others)  # ports that this machine has not reached
        accepted: list[Link] = []
        self._begin()
        next_probe = self._started
        with socket.create_server(("", port), family=family, dualstack_ipv6=dual_stack, backlog=1024) as server:
            server.settimeout(0.1)
            while True:
                with contextlib.suppress(TimeoutError):
                    connection = server.accept()[0]
                    if self._chief:
                        accepted.append(Link(connection))
                    else:
                        connection.close()  # a machine that looks whether this one has started
                now = time.monotonic()
                if now >= next_probe:
                    next_probe = now + PROBE_INTERVAL
                    unseen = {name: address for name, address in unseen.items() if not is_listening(address)}
                ready = self._ready_as_chief(accepted, unseen) if self._chief else self._ready_as_worker(unseen)
                if ready:
                    break
                self._check_missing(unseen)
        for link in accepted:
            if link not in self._links.values():
                link.close()

    @property
    def _chief(self) -> bool:
        return self._cluster.index == 0

    def _ready_as_chief(self, accepted: list[Link], unseen: dict[str, str]) -> bool:
        """Return whether all workers have a link and have reached all ports, as the chief has; tell them to start."""
        for link in accepted:
            for message in link.receive():
                name = f"{WORKER} {message.get('worker')}"
                if name in self._cluster.others:
                    self._links[name] = link
                    link.ready = message.get("ready") is True
        links = [self._links.get(name) for name in self._cluster.others]
        ready = not unseen and all(link is not None and link.open and link.ready for link in links)
        for link in self._links.values() if ready else ():
            link.send(start=True)
        return ready

    def _ready_as_worker(self, unseen: dict[str, str]) -> bool:
        """Report to the chief, once it is reached; return whether it says that all machines start."""
        if CHIEF_NAME in unseen:
            return False
        link = self._links.get(CHIEF_NAME)
        if link is None or not link.open:
            connection = connect_to(self._cluster.others[CHIEF_NAME])
            if connection is None:
                return False
            link = self._links[CHIEF_NAME] = Link(connection)
        if link.ready is not (ready := not unseen):
            link.send(worker=self._cluster.index, ready=ready)
            link.ready = ready
        return any("start" in message for message in link.receive())

    def start(self) -> None:
        """Start to send and to expect steps, in a thread."""
        for link in self._links.values():
            link.heard = time.monotonic()
        threading.Thread(target=self._run, daemon=True, name="heartbeat").start()

    def at_step(self, step: int) -> None:
        """Set the step that this machine is at."""
        self._steps[self._name] = step

    def _run(self) -> None:
        steps, since = dict(self._steps), time.monotonic()
        while not self._stopped.wait(PROBE_INTERVAL):
            for link in self._links.values():
                link.send(step=self._steps[self._name])
            for name, link in self._links.items():
                for message in link.receive():
                    if isinstance(message.get("step"), int):
                        self._steps[name] = message["step"]
                    if "lost" in message:
                        self.exit_process(str(message["lost"]))
            for name, link in self._links.items():
                silent = time.monotonic() - link.heard > self._timeout
                if silent and not is_answering(self._cluster.others[name]):
                    self._exit_without(name)
            if steps != self._steps:
                steps, since = dict(self._steps), time.monotonic()
            elif self._chief and time.monotonic() - since > REPORT_STEPS:
                since = time.monotonic()
                listed = ", ".join(f"{name} at step {step:,}" for name, step in sorted(steps.items()))
                minutes = f"{REPORT_STEPS / 60:.0f} minutes"
                print_status(f"\nNo step was finished for {minutes}; all machines answer: {listed}.")

    def _exit_without(self, name: str) -> None:
        """End this process, and on the chief all others, after the loss of a machine."""
        step = f" at step {self._steps[name]:,}" if name in self._steps else ""
        lost = f"{name} ({self._cluster.others[name]}) was lost{step}"
        reason = f"{lost}: it has not answered for {self._timeout:.0f} seconds"
        if not self._stopped.is_set():
            for link in self._links.values():
                link.send(lost=reason)
        self.exit_process(reason)

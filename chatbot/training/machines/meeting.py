"""The workers of a synchronous run meet at worker 0, before TensorFlow connects them.

Each sends worker 0 a line of JSON: its index, and what must be equal on all machines. Worker 0 answers all with a line:
the indices of those that train together, or the first difference. It listens at the port that TensorFlow uses
afterwards, which holds Python's lock while it connects, and with it time limits and messages.
"""

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from chatbot.attempts.settings import storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.cluster import Cluster, host_and_port
from chatbot.training.machines.peers import PROBE_INTERVAL, Patience, connect_to

# Of a line. All settings take some 5,000 bytes.
MOST_BYTES = 1 << 20
# Seconds for a worker that has connected to send its line; it is ready before.
LINE_TIMEOUT = 2.0
# Stored settings that may differ between workers: the paths of files; the attempt, which only worker 0 writes; the
# directions, since what follows from them is compared.
MAY_DIFFER = {"data", "validation", "dictionary", "cache", "block_list", "probe", "attempt", "both_directions"}


def facts_of(settings: Settings, data: Data, towers: list[Tower]) -> dict[str, Any]:
    """Return what must be equal on all workers, by a name for messages. Values are of JSON."""
    facts: dict[str, Any] = {
        flag_of(name): value for name, value in storable(settings).items() if name not in MAY_DIFFER
    }
    facts["the number of towers"] = len(towers)
    facts["the number of GPUs"] = sum("GPU" in tower.device for tower in towers)
    facts["the number of training pairs"] = data.description["pairs"]
    facts["the checksum of the training pairs"] = data.description["fingerprint"]
    facts["the checksum of the vocabulary"] = data.description["vocabulary"]
    facts["training in both directions"] = data.description["both_directions"]
    facts["the checksum of the validation pairs"] = data.validation.fingerprint if data.validation else None
    facts["TensorFlow's version"] = tf.__version__
    return json.loads(json.dumps(facts))


def meet(cluster: Cluster, facts: Mapping[str, Any], limit: float, fewest: int | None = None) -> Cluster:
    """Wait for the other workers, and return the cluster of those that train together, in their order.

    limit: seconds after which LostError is raised, or training begins with at least `fewest` workers. Raises UserError,
    on all of them, if their facts differ.
    """
    answer = _host(cluster, facts, limit, fewest) if cluster.index == 0 else _attend(cluster, facts, limit)
    if "error" in answer:
        raise UserError(answer["error"])
    present = answer["workers"]
    if len(present) < len(cluster.workers):
        print(f"Training goes on without {len(cluster.workers) - len(present)} of {len(cluster.workers)} workers.")
    workers = tuple(cluster.workers[index] for index in present)
    return dataclasses.replace(cluster, workers=workers, index=present.index(cluster.index))


def _host(cluster: Cluster, facts: Mapping[str, Any], limit: float, fewest: int | None) -> dict[str, Any]:
    """Receive the other workers, as worker 0. Return the answer that they were given."""
    patience = Patience(cluster.others, limit)
    _, port = host_and_port(cluster.workers[0])
    dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack else socket.AF_INET
    guests: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
    with (
        contextlib.ExitStack() as connections,
        socket.create_server(("", port), family=family, dualstack_ipv6=dual_stack, backlog=1024) as server,
    ):
        server.settimeout(PROBE_INTERVAL / 10)
        while True:
            with contextlib.suppress(TimeoutError):  # none has come
                connection = connections.enter_context(server.accept()[0])
                line = _read_line(connection, LINE_TIMEOUT)
                if line.get("worker") in range(1, len(cluster.workers)) and isinstance(line.get("facts"), dict):
                    guests[line["worker"]] = connection, line["facts"]
            guests = {index: guest for index, guest in guests.items() if not _has_left(guest[0])}
            missing = [f"worker {index}" for index in range(1, len(cluster.workers)) if index not in guests]
            if not missing or (not patience.left and fewest is not None and len(guests) + 1 >= fewest):
                break
            patience.report(missing)
        difference = _first_difference(facts, {index: guests[index][1] for index in sorted(guests)})
        answer = {"error": difference} if difference else {"workers": [0, *sorted(guests)]}
        for connection, _ in guests.values():
            with contextlib.suppress(OSError):  # one that is lost now is missed when TensorFlow connects
                connection.settimeout(LINE_TIMEOUT)
                connection.sendall(_line(answer))
    return answer


def _attend(cluster: Cluster, facts: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Introduce this worker to worker 0. Return its answer."""
    patience = Patience({"worker 0": cluster.workers[0]}, limit)
    while True:
        patience.report(["worker 0"])
        with connect_to(cluster.workers[0]) or contextlib.nullcontext() as connection, contextlib.suppress(OSError):
            if connection is not None:
                connection.sendall(_line({"worker": cluster.index, "facts": facts}))
                answer = _read_line(connection, limit + LINE_TIMEOUT)  # worker 0 may have begun to wait just now
                workers = answer.get("workers")
                if "error" in answer or (isinstance(workers, list) and cluster.index in workers):
                    return answer
        time.sleep(PROBE_INTERVAL)


def _first_difference(facts: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the message about the first fact that differs from worker 0's, or "". others: facts by index."""
    for index, other in others.items():
        for name, value in facts.items():
            if other.get(name) != value:
                return (
                    f"workers must use identical settings: {name} is {value} on worker 0 and {other.get(name)} on "
                    f"worker {index}; use the same flags and files on all workers"
                )
    return ""


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read_line(connection: socket.socket, seconds: float) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one for anything else, and after these seconds without a line."""
    received = b""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError, ValueError, RecursionError):
        while not received.endswith(b"\n") and len(received) < MOST_BYTES:
            connection.settimeout(max(0.001, end - time.monotonic()))
            data = connection.recv(MOST_BYTES - len(received))
            if not data:
                break
            received += data
        message = json.loads(received)
        if isinstance(message, dict):
            return message
    return {}


def _has_left(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection, at which it only waits for an answer."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True

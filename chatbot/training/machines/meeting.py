"""A handshake between the workers of a synchronous run, before TensorFlow connects them.

Each worker connects to worker 0, and sends its index and the values that must be equal on all machines as one line of
JSON. Worker 0 replies with the indices of the workers that train together, or with an error message about the first
difference. It listens on the port that TensorFlow uses afterwards.

TensorFlow itself cannot wait for late workers, because it blocks all other Python code while it connects them. The code
for timeouts and status messages could then not run.
"""

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from chatbot.attempts.settings import stored_values
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.cluster import Cluster, host_and_port
from chatbot.training.machines.peers import PROBE_INTERVAL, Patience, connect_to

# Maximum number of bytes of a JSON line.
MAX_BYTES = 1 << 20
# Seconds within which a worker must send its line after connecting.
LINE_TIMEOUT = 2.0
# Settings that are not compared between workers. The attempt may differ because only worker 0 writes to it.
# --both-directions can be "auto", so the value that was chosen for it is compared instead.
MAY_DIFFER = {"data", "validation", "dictionary", "cache", "block_list", "probe", "attempt", "both_directions"}


def shared_facts(settings: Settings, data: Data, towers: list[Tower]) -> dict[str, Any]:
    """Return the values that must be equal on all workers, such as settings. The keys are names for error messages."""
    facts: dict[str, Any] = {
        flag_of(name): value for name, value in stored_values(settings).items() if name not in MAY_DIFFER
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


def meet(cluster: Cluster, facts: Mapping[str, Any], limit: float, min_workers: int | None = None) -> Cluster:
    """Wait for the other workers, and return the cluster of the workers that train together.

    Args:
        cluster: The cluster of all expected workers.
        facts: The values that must be equal on all workers.
        limit: Timeout in seconds.
        min_workers: The minimum number of workers for training after the timeout; None if all are required.

    Raises:
        LostError: If too few workers have connected before the timeout.
        UserError: On all workers, if the values differ between them.
    """
    answer = _gather(cluster, facts, limit, min_workers) if cluster.index == 0 else _attend(cluster, facts, limit)
    if "error" in answer:
        raise UserError(answer["error"])
    present = answer["workers"]
    if len(present) < len(cluster.workers):
        absent = len(cluster.workers) - len(present)
        print(f"Training continues without {absent} of {len(cluster.workers)} workers.")
    workers = tuple(cluster.workers[index] for index in present)
    return dataclasses.replace(cluster, workers=workers, index=present.index(cluster.index))


def _gather(cluster: Cluster, facts: Mapping[str, Any], limit: float, min_workers: int | None) -> dict[str, Any]:
    """Accept the other workers on worker 0, and return the answer sent to them."""
    patience = Patience(cluster.others, limit)
    _, port = host_and_port(cluster.workers[0])
    dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack else socket.AF_INET
    connected: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
    with (
        contextlib.ExitStack() as connections,
        socket.create_server(("", port), family=family, dualstack_ipv6=dual_stack, backlog=1024) as server,
    ):
        server.settimeout(PROBE_INTERVAL / 10)
        while True:
            with contextlib.suppress(TimeoutError):  # raised if no worker has connected
                connection = connections.enter_context(server.accept()[0])
                line = _read_line(connection, LINE_TIMEOUT)
                if line.get("worker") in range(1, len(cluster.workers)) and isinstance(line.get("facts"), dict):
                    connected[line["worker"]] = connection, line["facts"]
            connected = {index: worker for index, worker in connected.items() if not _is_closed(worker[0])}
            missing = [f"worker {index}" for index in range(1, len(cluster.workers)) if index not in connected]
            if not missing or (not patience.left and min_workers is not None and len(connected) + 1 >= min_workers):
                break
            patience.report(missing)
        difference = _first_difference(facts, {index: connected[index][1] for index in sorted(connected)})
        answer = {"error": difference} if difference else {"workers": [0, *sorted(connected)]}
        for connection, _ in connected.values():
            with contextlib.suppress(OSError):  # if the worker is lost, TensorFlow detects this later
                connection.settimeout(LINE_TIMEOUT)
                connection.sendall(_encode(answer))
    return answer


def _attend(cluster: Cluster, facts: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Send this worker's index and values to worker 0, and return the answer of worker 0."""
    patience = Patience({"worker 0": cluster.workers[0]}, limit)
    while True:
        patience.report(["worker 0"])
        with connect_to(cluster.workers[0]) or contextlib.nullcontext() as connection, contextlib.suppress(OSError):
            if connection is not None:
                connection.sendall(_encode({"worker": cluster.index, "facts": facts}))
                answer = _read_line(connection, limit + LINE_TIMEOUT)  # worker 0 may only have started just now
                workers = answer.get("workers")
                if "error" in answer or (isinstance(workers, list) and cluster.index in workers):
                    return answer
        time.sleep(PROBE_INTERVAL)


def _first_difference(facts: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> str:
    """Return an error message about the first value that differs from that of worker 0; "" if all are equal."""
    for index, other in others.items():
        for name, value in facts.items():
            if other.get(name) != value:
                return (
                    f"workers must use identical settings: {name} is {value} on worker 0 and {other.get(name)} on "
                    f"worker {index}; use the same flags and files on all workers"
                )
    return ""


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read_line(connection: socket.socket, seconds: float) -> dict[str, Any]:
    """Read one line and return its JSON object; an empty dictionary if the line is invalid or late."""
    received = b""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError, ValueError, RecursionError):
        while not received.endswith(b"\n") and len(received) < MAX_BYTES:
            connection.settimeout(max(0.001, end - time.monotonic()))
            data = connection.recv(MAX_BYTES - len(received))
            if not data:
                break
            received += data
        message = json.loads(received)
        if isinstance(message, dict):
            return message
    return {}


def _is_closed(connection: socket.socket) -> bool:
    """Return whether a worker that waits for an answer has closed its connection."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True

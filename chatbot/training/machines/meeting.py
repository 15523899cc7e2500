"""The workers of a synchronous run meet at worker 0, before TensorFlow connects them.

Each sends worker 0 a line of JSON: its index, and what must be equal on all machines. Worker 0 answers all with a line:
the indices of those that train together, or the first difference. It listens at the port that TensorFlow uses
afterwards, which holds Python's lock while it connects, and with it time limits and messages.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.cluster import Cluster, host_and_port
from chatbot.training.machines.peers import PROBE_INTERVAL, Patience, connect_to

# Of a line. All settings take some 5,000 bytes.
MOST_BYTES = 1 << 20
# Seconds for the answer of worker 0 after the time for which it waits.
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
    meeting = _host(cluster, facts, limit, fewest) if cluster.index == 0 else _attend(cluster, facts, limit)
    with ThreadPoolExecutor(1) as thread:  # the caller's may have an event loop, as in a notebook
        answer = thread.submit(asyncio.run, meeting).result()
    if "error" in answer:
        raise UserError(answer["error"])
    present = answer["workers"]
    if len(present) < len(cluster.workers):
        print(f"Training goes on without {len(cluster.workers) - len(present)} of {len(cluster.workers)} workers.")
    workers = tuple(cluster.workers[index] for index in present)
    return dataclasses.replace(cluster, workers=workers, index=present.index(cluster.index))


async def _host(cluster: Cluster, facts: Mapping[str, Any], limit: float, fewest: int | None) -> dict[str, Any]:
    """Receive the other workers, as worker 0. Return the answer that they were given."""
    patience = Patience(cluster.others, limit)
    _, port = host_and_port(cluster.workers[0])
    guests: dict[int, tuple[asyncio.StreamWriter, dict[str, Any]]] = {}

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            line = await _read_line(reader)
            index: Any = line.get("worker")
            if index in range(1, len(cluster.workers)) and isinstance(line.get("facts"), dict):
                guests[index] = guest = writer, line["facts"]
                with contextlib.suppress(OSError):
                    await reader.read(1)  # returns when the worker has left
                if guests.get(index) is guest:
                    del guests[index]

    with contextlib.closing(await asyncio.start_server(receive, None, port, limit=MOST_BYTES, backlog=1024)):
        while True:
            missing = [f"worker {index}" for index in range(1, len(cluster.workers)) if index not in guests]
            if not missing or (not patience.left and fewest is not None and len(guests) + 1 >= fewest):
                break
            patience.report(missing)
            await asyncio.sleep(PROBE_INTERVAL / 10)
    difference = _first_difference(facts, {index: guests[index][1] for index in sorted(guests)})
    answer = {"error": difference} if difference else {"workers": [0, *sorted(guests)]}
    for writer, _ in guests.values():  # one that is lost now is missed when TensorFlow connects
        writer.write(_line(answer))
    return answer


async def _attend(cluster: Cluster, facts: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Introduce this worker to worker 0. Return its answer."""
    patience = Patience({"worker 0": cluster.workers[0]}, limit)
    while True:
        patience.report(["worker 0"])
        if connection := connect_to(cluster.workers[0]):
            reader, writer = await asyncio.open_connection(sock=connection, limit=MOST_BYTES)
            with contextlib.closing(writer), contextlib.suppress(asyncio.TimeoutError):
                writer.write(_line({"worker": cluster.index, "facts": facts}))
                # Worker 0 may have begun to wait just now.
                answer = await asyncio.wait_for(_read_line(reader), limit + LINE_TIMEOUT)
                workers = answer.get("workers")
                if "error" in answer or (isinstance(workers, list) and cluster.index in workers):
                    return answer
        await asyncio.sleep(PROBE_INTERVAL)


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


async def _read_line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one for anything else."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        message = json.loads(await reader.readline())
        if isinstance(message, dict):
            return message
    return {}

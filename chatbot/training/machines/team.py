"""The machines of a run: their connection, and the exchange of texts."""

import dataclasses
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.training.allreduce import Exchange, exchange_by
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.cluster import CHIEF, Cluster
from chatbot.training.machines.peers import Peers, join_timeout

# Texts are padded to a multiple of this many bytes, so that few shapes are traced.
BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class Team:
    """The machines of a synchronous run, as seen from one of them.

    machine: its index. strategy: tf.distribute's over all machines; None for a single one. leave: called after the last
    exchange, when machines may start to end. coordinator: on the chief of an asynchronous run, tf.distribute's.
    """

    machine: int = 0
    machines: int = 1
    strategy: Any = None
    leave: Callable[[], None] = lambda: None
    coordinator: Any = None
    workers_and_servers: tuple[int, int] = (0, 0)

    @property
    def chief(self) -> bool:
        """Whether this machine validates, reports, and writes checkpoints and curves."""
        return self.machine == 0

    @property
    def alone(self) -> bool:
        """Whether there is only one machine."""
        return self.machines == 1

    @property
    def replicas(self) -> int:
        """The number of tf.distribute's replicas on each machine: its GPUs, or 1 for the CPU."""
        return self.strategy.num_replicas_in_sync // self.machines

    @property
    def exchange(self) -> Exchange:
        """The function that sums over the replicas of all machines."""
        return exchange_by(self.strategy, self.machine * self.replicas)

    def all_gather_text(self, text: str) -> list[str]:
        """Return the texts of all machines, by machine. All machines must call it at the same point."""
        if self.alone:
            return [text]
        encoded = text.encode()
        lengths = np.zeros(self.machines)
        lengths[self.machine] = len(encoded)
        lengths = self._all_reduce(lengths)
        if not lengths.any():  # the most frequent case
            return [""] * self.machines
        sent = np.zeros((self.machines, BLOCK * math.ceil(lengths.max() / BLOCK)))
        sent[self.machine, : len(encoded)] = list(encoded)
        received = self._all_reduce(sent).astype(np.uint8)
        return [row[: int(length)].tobytes().decode() for row, length in zip(received, lengths, strict=True)]

    def broadcast_text(self, text: str) -> str:
        """Return the chief's text on every machine. All machines must call it at the same point."""
        return self.all_gather_text(text if self.chief else "")[0]

    def agree(self, reason: str) -> str:
        """Return the first reason that is not empty, or "". All machines must call it at the same point."""
        return next(filter(None, self.all_gather_text(reason)), "")

    def barrier(self) -> None:
        """Wait until all machines have called it."""
        self.all_gather_text("")

    def _all_reduce(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        tensor = tf.constant(numbers, tf.float32)  # exact for these small integers, and summed on every device
        parts = [[tensor], *([tf.zeros_like(tensor)] for _ in range(self.replicas - 1))]
        return np.asarray(self._exchange_graph(parts)[0][0].numpy(), np.float64)

    @functools.cached_property
    def _exchange_graph(self) -> Any:
        return tf.function(self.exchange, autograph=False)


ALONE = Team()


def tower_names(team: Team, names: Sequence[str]) -> list[str]:
    """Return the names of the towers of all machines, as in TensorBoard."""
    if team.alone:
        return list(names)
    return [
        f"worker_{i}_{name}"
        for i, joined in enumerate(team.all_gather_text(",".join(names)))
        for name in joined.split(",")
    ]


def join(cluster: Cluster, peers: Peers, towers: Sequence[Tower]) -> Team:
    """Connect to the other workers, which have met. TensorFlow's devices cannot be changed afterwards."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.hosts),
        task_type="worker",
        task_id=cluster.index,
        # Without it, tf.distribute would sum on the CPU of each machine.
        num_accelerators={"GPU": sum("GPU" in tower.device for tower in towers)},
        rpc_layer="grpc",
    )
    # TensorFlow's NCCL refuses several logical devices of one GPU.
    implementations = tf.distribute.experimental.CommunicationImplementation
    parts_of_gpu = any(tower.virtual for tower in towers)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.RING if parts_of_gpu else implementations.AUTO
    )
    with join_timeout():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    peers.start()
    return Team(cluster.index, len(cluster.workers), strategy, peers.stop)


def connect(cluster: Cluster, peers: Peers) -> Any:
    """Wait until all workers and parameter servers run. Return a coordinator connected to them."""
    # TensorFlow prints several lines for each lost worker; `peers` prints one.
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    while peers.missing:
        time.sleep(0.1)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.hosts), task_type=CHIEF, task_id=0, rpc_layer="grpc"
    )

    # When a thread of the coordinator fails, the results of its worker never arrive: fetching one would not return.
    def end(failure: threading.ExceptHookArgs) -> None:
        peers.exit_after_error(failure.exc_value or failure.exc_type())
        threading.__excepthook__(failure)
        os._exit(1)

    threading.excepthook = end
    with join_timeout():
        return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))

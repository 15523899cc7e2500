"""Connects the machines of a training run, and exchanges gradients and texts between them."""

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

from chatbot.training.allreduce import Exchange, make_exchange
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.cluster import CHIEF, Cluster
from chatbot.training.machines.peers import Peers, join_timeout

# Texts are padded to a multiple of this number of bytes, so that TensorFlow traces graphs for only a few lengths.
BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class Team:
    """The machines that train together, as seen from this machine.

    Attributes:
        machine: The index of this machine.
        machines: The number of machines.
        strategy: The tf.distribute strategy for all machines; None for a single machine.
        leave: Callback to call after the last communication, so that machines may exit without counting as lost.
        coordinator: The tf.distribute coordinator on the chief of an asynchronous run.
        workers_and_servers: The number of workers and of parameter servers of an asynchronous run.
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
        """Whether this is the only machine."""
        return self.machines == 1

    @property
    def replicas(self) -> int:
        """The number of tf.distribute replicas per machine: the number of GPUs, or 1 for the CPU."""
        return self.strategy.num_replicas_in_sync // self.machines

    @property
    def exchange(self) -> Exchange:
        """The function that sums values, such as gradients, over the replicas of all machines."""
        return make_exchange(self.strategy, self.machine * self.replicas)

    def all_gather_text(self, text: str) -> list[str]:
        """Return the texts of all machines, by machine index. All machines must call this method at the same point."""
        if self.alone:
            return [text]
        encoded = text.encode()
        lengths = np.zeros(self.machines)
        lengths[self.machine] = len(encoded)
        lengths = self._all_reduce(lengths)
        if not lengths.any():  # usually, all texts are empty
            return [""] * self.machines
        sent = np.zeros((self.machines, BLOCK * math.ceil(lengths.max() / BLOCK)))
        sent[self.machine, : len(encoded)] = list(encoded)
        received = self._all_reduce(sent).astype(np.uint8)
        return [row[: int(length)].tobytes().decode() for row, length in zip(received, lengths, strict=True)]

    def broadcast_text(self, text: str) -> str:
        """Return the chief's text on every machine. All machines must call this method at the same point."""
        return self.all_gather_text(text if self.chief else "")[0]

    def agree(self, reason: str) -> str:
        """Return the same reason on all machines, for example a reason to stop.

        All machines must call this method at the same point. The result is the first reason that is not empty, or "".
        """
        return next(filter(None, self.all_gather_text(reason)), "")

    def barrier(self) -> None:
        """Wait until all machines have called this method."""
        self.all_gather_text("")

    def _all_reduce(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        tensor = tf.constant(numbers, tf.float32)  # float32 represents these small integers exactly
        parts = [[tensor], *([tf.zeros_like(tensor)] for _ in range(self.replicas - 1))]
        return np.asarray(self._exchange_graph(parts)[0][0].numpy(), np.float64)

    @functools.cached_property
    def _exchange_graph(self) -> Any:
        return tf.function(self.exchange, autograph=False)


ALONE = Team()


def tower_names(team: Team, names: Sequence[str]) -> list[str]:
    """Return the names of the towers of all machines, as shown in TensorBoard."""
    if team.alone:
        return list(names)
    return [
        f"worker_{i}_{name}" for i, text in enumerate(team.all_gather_text(",".join(names))) for name in text.split(",")
    ]


def join(cluster: Cluster, peers: Peers, towers: Sequence[Tower]) -> Team:
    """Connect to the other workers and start monitoring them. TensorFlow's devices cannot be changed afterwards."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.hosts),
        task_type="worker",
        task_id=cluster.index,
        # By default, tf.distribute would sum gradients on the CPU of each machine.
        num_accelerators={"GPU": sum("GPU" in tower.device for tower in towers)},
        rpc_layer="grpc",
    )
    # TensorFlow cannot use NCCL with several logical devices on one GPU.
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
    """Wait until all workers and parameter servers are running, and return a coordinator connected to them."""
    # TensorFlow logs several lines about each lost worker. They are hidden, because `peers` reports it in one line.
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    while peers.missing:
        time.sleep(0.1)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.hosts), task_type=CHIEF, task_id=0, rpc_layer="grpc"
    )

    # If a thread of the coordinator fails, waiting for the results of its worker would never end.
    def end(failure: threading.ExceptHookArgs) -> None:
        peers.exit_after_error(failure.exc_value or failure.exc_type())
        threading.__excepthook__(failure)
        os._exit(1)

    threading.excepthook = end
    with join_timeout():
        return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))

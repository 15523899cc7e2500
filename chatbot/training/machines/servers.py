"""The processes of an asynchronous run: workers and parameter servers, and the chief that connects to them."""

import logging
import os
import threading
import time
from typing import Any

from chatbot.config.training import Settings
from chatbot.training.devices.gpus import find_gpus, warn_without_gpu
from chatbot.training.devices.towers import choose_gpus, open_towers, table
from chatbot.training.machines.cluster import CHIEF, WORKER, Cluster
from chatbot.training.machines.peers import PEER_TIMEOUT, Peers, join_timeout


def serve(settings: Settings, cluster: Cluster, peer_timeout: float | None = PEER_TIMEOUT) -> int:
    """Run a worker or a server until the chief has not answered for these seconds; None: until the parent ends it."""
    on_gpu = cluster.job == WORKER
    gpus = choose_gpus(settings.parallel.gpus, None, find_gpus())[:1] if on_gpu else []
    if on_gpu and not cluster.index and peer_timeout is not None:  # else the parent prints it
        warn_without_gpu(gpus)
    towers = open_towers(gpus, None)
    if on_gpu:
        print(table(towers))
    import tensorflow as tf

    def exit_after_chief(_: str) -> None:
        print("The chief has ended.", flush=True)
        os._exit(0)

    server = tf.distribute.Server(cluster.hosts, job_name=cluster.job, task_index=cluster.index, protocol="grpc")
    print(f"{cluster.job} {cluster.index} serves at {cluster.own}.", flush=True)
    if peer_timeout is not None and cluster.chief is not None:
        limit = 60 * settings.parallel.start_timeout
        Peers({CHIEF: cluster.chief}, exit_after_chief, peer_timeout, limit).start()
    server.join()
    return 0


def connect(cluster: Cluster, peers: Peers) -> Any:
    """Wait until all workers and parameter servers run. Return a coordinator connected to them."""
    import tensorflow as tf

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

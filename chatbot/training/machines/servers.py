"""The processes of an asynchronous run: workers and parameter servers that serve, and the chief that uses them."""

import logging
import os
import time
from typing import Any

from chatbot.config.training import Settings
from chatbot.training.devices import choose_gpus, find_gpus, open_towers
from chatbot.training.machines.cluster import CHIEF, WORKER, Cluster
from chatbot.training.machines.watch import Watch


def serve(settings: Settings, cluster: Cluster, with_chief: bool = True) -> int:
    """Be a worker or a parameter server until the chief has ended, or until killed.

    with_chief: leave when the chief is gone. A parent that looks after its processes itself says no.
    """
    on_gpu = cluster.job == WORKER
    open_towers(choose_gpus(settings.gpus, None, find_gpus())[:1] if on_gpu else [], None)
    import tensorflow as tf

    server = tf.distribute.Server(_spec(cluster), job_name=cluster.job, task_index=cluster.index, protocol="grpc")
    print(f"{cluster.job} {cluster.index} serves at {cluster.own}.", flush=True)
    if with_chief and cluster.chief is not None:
        Watch({CHIEF: cluster.chief}, limit=float("inf"), lost=_chief_ended).start()
    server.join()
    return 0


def _chief_ended(_: str) -> None:
    print("The chief has ended.", flush=True)
    os._exit(0)


def connect(cluster: Cluster, watch: Watch) -> Any:
    """A coordinator that is connected to all workers and parameter servers; waits until they are there."""
    import tensorflow as tf

    # It prints several lines for each worker that is lost; the watch says it in one.
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    while watch.missing:
        time.sleep(0.1)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        _spec(cluster), task_type=CHIEF, task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


def _spec(cluster: Cluster) -> Any:
    import tensorflow as tf

    jobs = {"worker": list(cluster.workers), "ps": list(cluster.ps)}
    if cluster.chief is not None:
        jobs[CHIEF] = [cluster.chief]
    return tf.train.ClusterSpec(jobs)

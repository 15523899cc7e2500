"""The processes of an asynchronous run: workers and parameter servers that serve, and the chief that uses them."""

import logging
import os
import threading
import time
from typing import Any

from chatbot.config.training import Settings
from chatbot.training.devices import choose_gpus, find_gpus, open_towers
from chatbot.training.machines.cluster import CHIEF, WORKER, Cluster
from chatbot.training.machines.watch import PATIENCE, Watch, hurry


def serve(settings: Settings, cluster: Cluster, patience: float | None = PATIENCE) -> int:
    """Be a worker or a parameter server until the chief has ended, or until killed.

    patience: leave when the chief is gone for so many seconds. A parent that looks after its processes itself says
    None.
    """
    on_gpu = cluster.job == WORKER
    open_towers(choose_gpus(settings.parallel.gpus, None, find_gpus())[:1] if on_gpu else [], None)
    import tensorflow as tf

    server = tf.distribute.Server(_spec(cluster), job_name=cluster.job, task_index=cluster.index, protocol="grpc")
    print(f"{cluster.job} {cluster.index} serves at {cluster.own}.", flush=True)
    if patience is not None and cluster.chief is not None:
        Watch({CHIEF: cluster.chief}, settings.parallel.start_limit, _chief_ended, patience).start()
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
    # A thread of its that dies took a worker with it: fetching what that one owed would wait for ever.
    threading.excepthook = lambda died: watch.explain(died.exc_value or died.exc_type())
    with hurry():
        return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


def _spec(cluster: Cluster) -> Any:
    import tensorflow as tf

    jobs = {"worker": list(cluster.workers), "ps": list(cluster.ps)}
    if cluster.chief is not None:
        jobs[CHIEF] = [cluster.chief]
    return tf.train.ClusterSpec(jobs)

"""A synchronous run on several machines: connection of the workers, and comparison of their settings."""

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.cluster import Cluster
from chatbot.training.machines.heartbeat import Heartbeat
from chatbot.training.machines.team import Team
from chatbot.training.machines.watch import join_timeout

# Stored settings that may differ between workers: the paths of files; the attempt, which only worker 0 writes; the
# directions, since what follows from them is compared.
MAY_DIFFER = {"data", "validation", "dictionary", "cache", "block_list", "probe", "attempt", "both_directions"}


def join(cluster: Cluster, heartbeat: Heartbeat, towers: Sequence[Tower]) -> Team:
    """Wait until all other workers run, and connect to them. TensorFlow's devices cannot be changed afterwards."""
    heartbeat.wait_for_all()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
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
    heartbeat.start()
    return Team(cluster.index, len(cluster.workers), strategy, heartbeat.stop, heartbeat.at_step)


def check_identical_settings(team: Team, settings: Settings, data: Data, towers: Sequence[Tower]) -> None:
    """Raise UserError, on every worker, if settings, data or towers of any worker differ from worker 0's."""
    own: dict[str, Any] = {flag_of(name): value for name, value in storable(settings).items() if name not in MAY_DIFFER}
    own["the number of towers"] = len(towers)
    own["the number of training pairs"] = data.description["pairs"]
    own["the checksum of the training pairs"] = data.description["fingerprint"]
    own["the checksum of the vocabulary"] = data.description["vocabulary"]
    own["training in both directions"] = data.description["both_directions"]
    own["the checksum of the validation pairs"] = data.validation.fingerprint if data.validation else None
    own["TensorFlow's version"] = tf.__version__
    first, *others = map(json.loads, team.all_gather_text(json.dumps(own)))
    for number, other in enumerate(others, 1):
        for name, value in first.items():
            if other.get(name) != value:
                raise UserError(
                    f"workers must use identical settings: {name} is {value} on worker 0 and {other.get(name)} on "
                    f"worker {number}; use the same flags and files on all workers"
                )

"""A synchronous run over several machines: joining, comparing what each was told, leaving."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of
from chatbot.training.data import Data
from chatbot.training.devices import Tower
from chatbot.training.machines.cluster import Cluster
from chatbot.training.machines.team import Team

# What machines may be told differently: where their files and devices are, and how often the chief looks up.
OWN = {"data", "validation", "dictionary", "cache", "block_list", "attempt"}


def join(cluster: Cluster, leave: Callable[[], None]) -> Team:
    """Connect to all other workers; waits until they are there. After this TensorFlow's devices are fixed."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    return Team(cluster.index, len(cluster.workers), strategy, leave)


def compare(team: Team, settings: Settings, data: Data, towers: Sequence[Tower]) -> None:
    """Raises UserError, on all machines alike, when one has other settings, data or towers than worker 0."""
    told: dict[str, Any] = {flag_of(name): value for name, value in storable(settings).items() if name not in OWN}
    told["the number of towers"] = len(towers)
    told["training pairs"] = data.description["pairs"]
    told["the training pairs, by their sum,"] = data.description["fingerprint"]
    told["the vocabulary, by its sum,"] = data.description["vocabulary"]
    told["both directions"] = data.description["both_directions"]
    told["the validation pairs, by their sum,"] = data.validation.fingerprint if data.validation else None
    told["TensorFlow"] = tf.__version__
    first, *others = (json.loads(said) for said in team.say(json.dumps(told)))
    for number, other in enumerate(others, 1):
        for name in first:
            if other.get(name) != first[name]:
                raise UserError(
                    f"the machines were told differently: {name}: {first[name]} on worker 0, {other.get(name)} on "
                    f"worker {number}; give all of them the same flags and files"
                )

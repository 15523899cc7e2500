"""A synchronous run over several machines: joining, comparing what each was told, leaving."""

import contextlib
import json
import socket
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of
from chatbot.training.data import Data
from chatbot.training.devices import Tower
from chatbot.training.machines.cluster import Cluster, host_and_port
from chatbot.training.machines.team import Team
from chatbot.training.machines.watch import Watch, hurry

# What machines may be told differently: where their files and devices are, and how often the chief looks up.
OWN = {"data", "validation", "dictionary", "cache", "block_list", "attempt"}


def join(cluster: Cluster, watch: Watch) -> Team:
    """Connect to all other workers; waits until they are there. After this TensorFlow's devices are fixed."""
    _wait_at_the_door(cluster, watch)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.index,
        rpc_layer="grpc",
    )
    with hurry():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    return Team(cluster.index, len(cluster.workers), strategy, watch.stop)


def _wait_at_the_door(cluster: Cluster, watch: Watch) -> None:
    """Answer at our address, for the others' watches, until all have answered ours.

    TensorFlow would wait, too, but while it does nothing of Python's runs: no watch, no limit, no line.
    """
    assert cluster.own is not None
    _, port = host_and_port(cluster.own)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=both) as door:
        door.settimeout(0.1)
        while watch.missing:
            with contextlib.suppress(TimeoutError):
                door.accept()[0].close()


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
    first, *others = (json.loads(said) for said in team.all_gather_text(json.dumps(told)))
    for number, other in enumerate(others, 1):
        for name in first:
            if other.get(name) != first[name]:
                raise UserError(
                    f"the machines were told differently: {name}: {first[name]} on worker 0, {other.get(name)} on "
                    f"worker {number}; give all of them the same flags and files"
                )

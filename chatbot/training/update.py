"""The variable updates: where the variables are, and how gradients are summed; and which one a run uses."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.operations import is_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.allreduce import Exchange, exchange_by, no_exchange
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.replica import Group, Replica, groups_of, least_bytes
from chatbot.training.step import Synchronous

# Gradients are joined already (`replica.py`): tf.distribute need not pack them.
ALL_REDUCE = {
    "nccl": functools.partial(tf.distribute.NcclAllReduce, num_packs=0),
    "hierarchical": functools.partial(tf.distribute.HierarchicalCopyAllReduce, num_packs=0),
    "one_device": tf.distribute.ReductionToOneDevice,
}
# The replicas of this process, each with its towers.
Replicas = list[tuple[Replica, Sequence[Tower]]]


def open_update(model: Seq2Seq, settings: Settings, towers: Sequence[Tower], team: Team = ALONE) -> Synchronous:
    """Make the synchronous training step of --variable-update. Raises UserError if the devices do not support it."""
    exchange: Exchange = no_exchange
    if not team.alone:
        exchange = team.exchange
    else:
        settings = chosen_update(settings, towers)
        if settings.parallel.variable_update == "replicated":
            exchange = exchange_on_one_machine(settings, towers)
    on_gpus = any(is_gpu(tower.device) for tower in towers)
    groups = groups_of(model, settings.learning, least_bytes(model, on_gpus, exchange is not no_exchange))
    if not team.alone and team.replicas != len(towers):  # tf.distribute has one replica for the CPU of a machine
        replicas: Replicas = [(Replica(model, settings.learning, groups), towers)]
    elif team.alone and settings.parallel.variable_update == "parameter_server":
        replicas = [(parameter_server(model, settings, groups, towers[0]), towers)]
    else:
        replicas = copies(model, settings, groups, towers)
    parts = model, settings.learning, replicas, exchange, team
    if settings.parallel.staged_variables:
        from chatbot.training.staged import Staged

        return Staged(*parts)
    return Synchronous(*parts)


def chosen_update(settings: Settings, towers: Sequence[Tower]) -> Settings:
    """Return the settings with the variable update and the all-reduce of a run on one machine.

    By default, replicated on several GPUs, else parameter_server. all_reduce: for "auto", nccl on whole GPUs, and
    one_device on CPUs and on parts of a GPU, which NCCL refuses; "auto" for updates that use none.
    """
    parallel = settings.parallel
    on_gpu = ["GPU" in tower.device for tower in towers]
    update = parallel.variable_update
    all_reduce = parallel.all_reduce
    if update in (None, "distributed_replicated"):  # the latter with a cluster of one worker
        needs_single_copy = parallel.model_parallel or parallel.local_parameter_device is not None
        wants_copies = sum(on_gpu) > 1 or all_reduce != "auto"
        update = "replicated" if wants_copies and not needs_single_copy else "parameter_server"
    if update != "replicated":
        all_reduce = "auto"
    elif all_reduce == "auto":
        all_reduce = "nccl" if all(on_gpu) and not any(tower.virtual for tower in towers) else "one_device"
    # A cluster of one worker is a single machine; --worker-hosts excludes these variable updates.
    return replace(settings, variable_update=update, all_reduce=all_reduce, worker_hosts=None)


def parameter_server(model: Seq2Seq, settings: Settings, groups: Sequence[Group], first: Tower) -> Replica:
    """Return the replica of all towers: the model's own weights, or a copy on the CPU (--local-parameter-device cpu).

    This needs the least memory and starts fastest: no copies, one trace of the update. With --model-parallel the model
    has each weight where the first tower uses it. Raises UserError for --local-parameter-device gpu without a GPU.
    """
    device = settings.parallel.local_parameter_device
    if device == "gpu" and "GPU" not in first.device:
        raise UserError(
            "--local-parameter-device gpu: the towers run on the CPU; leave it out, or name GPUs with --gpus"
        )
    if first.parts is not None:
        return Replica(model, settings.learning, groups)
    is_on_cpu = device == "cpu"
    return Replica(model, settings.learning, groups, "/CPU:0" if is_on_cpu else first.device, copies=is_on_cpu)


def copies(model: Seq2Seq, settings: Settings, groups: Sequence[Group], towers: Sequence[Tower]) -> Replicas:
    """Make a replica on the device of each tower; the first one uses the model's own weights.

    Independent ones, for measuring the cost of the exchange, each train on their share; the first one is saved.
    """
    return [
        (Replica(model, settings.learning, groups, tower.device, copies=i > 0, keeps_average=i == 0), [tower])
        for i, tower in enumerate(towers)
    ]


def exchange_on_one_machine(settings: Settings, towers: Sequence[Tower]) -> Exchange:
    """Return the all-reduce between the replicas of one machine. Raises UserError for NCCL without GPUs."""
    all_reduce = settings.parallel.all_reduce
    if all_reduce == "nccl" and not all("GPU" in tower.device for tower in towers):
        raise UserError("--all-reduce nccl: it needs NVIDIA GPUs, and the towers run on the CPU; use --all-reduce auto")
    if all_reduce == "nccl" and any(tower.virtual for tower in towers):
        raise UserError(
            "--all-reduce nccl: it needs a GPU for each tower, and the towers are parts of one GPU; "
            "use --all-reduce auto"
        )
    # Always explicit: tf.distribute's default restarts the numbers of its collectives in each strategy, so that two
    # strategies in a process clash.
    cross_device_ops = ALL_REDUCE[all_reduce]()
    return exchange_by(
        tf.distribute.MirroredStrategy([tower.device for tower in towers], cross_device_ops=cross_device_ops)
    )

"""Creation of the training step for --variable-update.

This setting determines where weights are stored and how gradients are summed.
"""

import functools
from collections.abc import Sequence

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.operations import is_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.allreduce import Exchange, make_exchange, no_exchange
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.replica import SINGLE_GPU_BYTES, Group, Replica, group_variables, min_group_bytes
from chatbot.training.step import Synchronous

# Gradients have already been concatenated (see `replica.py`), so tf.distribute does not need to pack them.
ALL_REDUCE = {
    "nccl": functools.partial(tf.distribute.NcclAllReduce, num_packs=0),
    "hierarchical": functools.partial(tf.distribute.HierarchicalCopyAllReduce, num_packs=0),
    "one_device": tf.distribute.ReductionToOneDevice,
}
# The type of a list of replicas of the weights, each with the towers that use it.
Replicas = list[tuple[Replica, Sequence[Tower]]]


def open_update(model: Seq2Seq, settings: Settings, towers: Sequence[Tower], team: Team = ALONE) -> Synchronous:
    """Create the training step for --variable-update. Raises UserError if the devices do not support it."""
    exchange: Exchange = no_exchange
    if not team.alone:
        exchange = team.exchange
    else:
        settings = resolve_update(settings, towers)
        if settings.parallel.variable_update == "replicated":
            exchange = local_exchange(settings, towers)
    on_gpus = any(is_gpu(tower.device) for tower in towers)
    is_single_gpu = on_gpus and team.alone and len(towers) == 1 and towers[0].parts is None
    size = max(min_group_bytes(model, on_gpus, exchange is not no_exchange), SINGLE_GPU_BYTES * is_single_gpu)
    groups = group_variables(model, settings.learning, size, by_stage=not is_single_gpu)
    if not team.alone and team.replicas != len(towers):  # On CPUs, tf.distribute has a single replica per machine.
        replicas: Replicas = [(Replica(model, settings.learning, groups), towers)]
    elif team.alone and settings.parallel.variable_update == "parameter_server":
        replicas = [(make_parameter_server(model, settings, groups, towers[0]), towers)]
    else:
        replicas = make_replicas(model, settings, groups, towers)
    arguments = model, settings.learning, replicas, exchange, team
    if settings.parallel.staged_variables:
        from chatbot.training.staged import Staged

        return Staged(*arguments)
    return Synchronous(*arguments)


def resolve_update(settings: Settings, towers: Sequence[Tower]) -> Settings:
    """Set the defaults of --variable-update and --all-reduce for a run on one machine.

    The default variable update is "replicated" on several GPUs, and "parameter_server" otherwise. The default
    all-reduce is "nccl" if each tower has its own GPU, and "one_device" otherwise, because NCCL requires separate GPUs.
    Without replicated variables, the all-reduce is "auto".
    """
    parallel = settings.parallel
    on_gpu = ["GPU" in tower.device for tower in towers]
    update = parallel.variable_update
    all_reduce = parallel.all_reduce
    if update in (None, "distributed_replicated"):  # A cluster with one worker may set distributed_replicated.
        needs_single_copy = parallel.model_parallel or parallel.local_parameter_device is not None
        wants_copies = sum(on_gpu) > 1 or all_reduce != "auto"
        update = "replicated" if wants_copies and not needs_single_copy else "parameter_server"
    if update != "replicated":
        all_reduce = "auto"
    elif all_reduce == "auto":
        all_reduce = "nccl" if all(on_gpu) and not any(tower.virtual for tower in towers) else "one_device"
    # --worker-hosts is removed, because the settings do not allow it with these variable updates.
    return replace(settings, variable_update=update, all_reduce=all_reduce, worker_hosts=None)


def make_parameter_server(model: Seq2Seq, settings: Settings, groups: Sequence[Group], first: Tower) -> Replica:
    """Create a single replica of the weights for all towers.

    The weights are stored on the device of the first tower, or on the CPU with --local-parameter-device cpu. With
    --model-parallel, each weight is stored on the device where the first tower uses it.

    Raises:
        UserError: If --local-parameter-device gpu is used without a GPU.
    """
    device = settings.parallel.local_parameter_device
    if device == "gpu" and "GPU" not in first.device:
        raise UserError(
            "--local-parameter-device gpu: the towers run on the CPU; leave it out, or select GPUs with --gpus"
        )
    if first.parts is not None:
        return Replica(model, settings.learning, groups)
    is_on_cpu = device == "cpu"
    return Replica(model, settings.learning, groups, "/CPU:0" if is_on_cpu else first.device, copies=is_on_cpu)


def make_replicas(model: Seq2Seq, settings: Settings, groups: Sequence[Group], towers: Sequence[Tower]) -> Replicas:
    """Create a replica of the weights on the device of each tower.

    With --variable-update independent, each replica only learns from its own part of the batch, and only the first
    replica is saved. The purpose is to measure the cost of the gradient exchange.
    """
    return [
        (Replica(model, settings.learning, groups, tower.device, copies=i > 0, keep_average=i == 0), [tower])
        for i, tower in enumerate(towers)
    ]


def local_exchange(settings: Settings, towers: Sequence[Tower]) -> Exchange:
    """Return the all-reduce function for one machine. Raises UserError for NCCL without a GPU for each tower."""
    all_reduce = settings.parallel.all_reduce
    if all_reduce == "nccl" and not all("GPU" in tower.device for tower in towers):
        raise UserError("--all-reduce nccl: NCCL requires GPUs, but the towers run on the CPU; use --all-reduce auto")
    if all_reduce == "nccl" and any(tower.virtual for tower in towers):
        raise UserError(
            "--all-reduce nccl: NCCL requires a GPU for each tower, but the towers are parts of one GPU; "
            "use --all-reduce auto"
        )
    # The default cross_device_ops is not used, because two strategies in one process would use the same collective ids.
    cross_device_ops = ALL_REDUCE[all_reduce]()
    return make_exchange(
        tf.distribute.MirroredStrategy([tower.device for tower in towers], cross_device_ops=cross_device_ops)
    )

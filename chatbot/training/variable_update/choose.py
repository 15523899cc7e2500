"""The variable updates: where the variables are, and how gradients are summed; and which one a run uses."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.exchange import Exchange, exchange_by
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.variable_update.replica import Replica
from chatbot.training.variable_update.synchronous import Synchronous

ALL_REDUCE = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


def parameter_server(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Make a step whose towers share the model's own weights, or a copy on the CPU (--local-parameter-device cpu).

    Every tower reads the variables from one device and sends its gradients there. This needs the least memory and
    starts fastest: no copies, one trace of the update. It is the best choice on CPUs, on one GPU, and between GPUs that
    exchange data only through host memory.

    With --model-parallel each weight is on the device where the first tower uses it.
    Raises UserError for --local-parameter-device gpu without a GPU.
    """
    if settings.parallel.local_parameter_device == "gpu" and "GPU" not in towers[0].device:
        raise UserError(
            "--local-parameter-device gpu: the towers run on the CPU; leave it out, or name GPUs with --gpus"
        )
    copied = settings.parallel.local_parameter_device == "cpu"
    place: str | list[str] = "/CPU:0" if copied else towers[0].device
    parts = towers[0].parts
    if parts is not None:
        device = {id(variable): parts.encoder for variable in model.encoder.trainable_variables}
        device |= {id(variable): parts.decoder for variable in model.decoder.trainable_variables}
        place, copied = [device.get(id(variable), parts.projection) for variable in model.trainable_variables], True
    replica = Replica(model, settings.learning, place, copied)
    return _synchronous(model, settings, [(replica, towers)])


def replicated(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Make a step with a copy of the variables on each device. Every copy gets the same update.

    An all-reduce of tf.distribute, with NCCL on GPUs, sums the gradients. It only sums tensors: towers, weights and
    optimizer are the same as in the other variable updates. Raises UserError for --all-reduce nccl without a GPU for
    each tower.

    settings: from `chosen_update`, so that all_reduce is a key of ALL_REDUCE.
    """
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
    strategy = tf.distribute.MirroredStrategy([tower.device for tower in towers], cross_device_ops=cross_device_ops)
    return _synchronous(model, settings, copies(model, settings, towers), exchange_by(strategy))


def copies(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> list[tuple[Replica, list[Tower]]]:
    """Return a replica on the device of each tower; the first one uses the model's own weights."""
    return [
        (Replica(model, settings.learning, tower.device, copies=i > 0, keeps_average=i == 0), [tower])
        for i, tower in enumerate(towers)
    ]


def independent(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Make a step with a replica for each tower and no exchange: each trains a model on its share of a batch.

    This is for measuring the cost of the exchange. Checkpoints, validation and replies use the first tower's model.
    """
    return _synchronous(model, settings, copies(model, settings, towers))


def distributed_replicated(model: Seq2Seq, settings: Settings, towers: Sequence[Tower], team: Team) -> Synchronous:
    """Make a step over the replicas of this machine: one for each GPU, or one that all towers on the CPU share.

    Every machine has a copy of the variables; gradients are summed over machines, and each copy gets the same update.
    tf.distribute's collectives compute the sums: NCCL's between GPUs, otherwise a ring between hosts. On CPUs
    tf.distribute has one device a process, so the towers of a machine sum their gradients before the exchange.
    """
    if team.replicas == len(towers):
        replicas = copies(model, settings, towers)
    else:
        replicas = [(Replica(model, settings.learning), list(towers))]
    return _synchronous(model, settings, replicas, team.exchange, team)


def _synchronous(
    model: Seq2Seq,
    settings: Settings,
    replicas: Sequence[tuple[Replica, Sequence[Tower]]],
    exchange: Exchange | None = None,
    team: Team = ALONE,
) -> Synchronous:
    return Synchronous(
        model,
        replicas,
        settings.learning.seed,
        exchange,
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
        machine=team.machine,
        machines=team.machines,
    )


Factory = Callable[[Seq2Seq, Settings, Sequence[Tower]], Synchronous]
FACTORIES: dict[str, Factory] = {
    "parameter_server": parameter_server,
    "replicated": replicated,
    "independent": independent,
}


def chosen_update(settings: Settings, towers: Sequence[Tower]) -> Settings:
    """Return the settings with the variable update and the all-reduce of a run on one machine.

    variable_update: replicated by default on several GPUs, else parameter_server. all_reduce: for "auto", nccl on whole
    GPUs, and one_device on CPUs and on parts of a GPU, which TensorFlow's NCCL refuses; it stays "auto" for the
    variable updates that use no all-reduce.
    """
    parallel = settings.parallel
    on_gpu = ["GPU" in tower.device for tower in towers]
    update, all_reduce = parallel.variable_update, parallel.all_reduce
    if update not in FACTORIES:
        needs_single_copy = parallel.model_parallel or parallel.local_parameter_device is not None
        wants_copies = sum(on_gpu) > 1 or all_reduce != "auto"
        update = "replicated" if wants_copies and not needs_single_copy else "parameter_server"
    if update != "replicated":
        all_reduce = "auto"
    elif all_reduce == "auto":
        all_reduce = "nccl" if all(on_gpu) and not any(tower.virtual for tower in towers) else "one_device"
    # A cluster of one worker is a single machine; --worker-hosts excludes these variable updates.
    return replace(settings, variable_update=update, all_reduce=all_reduce, worker_hosts=None)


def open_update(model: Seq2Seq, settings: Settings, towers: Sequence[Tower], team: Team = ALONE) -> Synchronous:
    """Make the synchronous training step of --variable-update. Raises UserError if the devices do not support it."""
    if not team.alone:
        return distributed_replicated(model, settings, towers, team)
    chosen = chosen_update(settings, towers)
    assert chosen.parallel.variable_update is not None
    return FACTORIES[chosen.parallel.variable_update](model, chosen, towers)

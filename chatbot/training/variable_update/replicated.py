"""A copy of the variables on each device; gradients are summed by an all-reduce, and each copy gets the same update.

tf.distribute does the all-reduce, with NCCL on GPUs. It only sums tensors: towers, weights and optimizer are the
same as in the other variable updates.
"""

from collections.abc import Sequence

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.exchange import exchange_by
from chatbot.training.variable_update.replica import Replica
from chatbot.training.variable_update.synchronous import Synchronous

ALL_REDUCE = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


def replicated(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """Make a step with a replica for each tower. Raises UserError for --all-reduce nccl without a GPU for each tower.

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
    return Synchronous(
        model,
        copies(model, settings, towers),
        settings.learning.seed,
        exchange_by(strategy),
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
    )


def copies(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> list[tuple[Replica, list[Tower]]]:
    """Return a replica on the device of each tower; the first one uses the model's own weights."""
    return [
        (Replica(model, settings.learning, tower.device, copies=i > 0, keeps_average=i == 0), [tower])
        for i, tower in enumerate(towers)
    ]

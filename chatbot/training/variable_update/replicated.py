"""A copy of the variables on each device; gradients are summed by an all-reduce, and each copy gets the same update.

tf.distribute does the all-reduce, NCCL's ring where there are GPUs. It sums tensors and knows of nothing else:
towers, weights and optimizer are those of every other way.
"""

from collections.abc import Sequence

import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Tower
from chatbot.training.exchange import exchange_by
from chatbot.training.variable_update.replica import Replica
from chatbot.training.variable_update.synchronous import Synchronous

ALL_REDUCE = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


def replicated(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> Synchronous:
    """A replica a tower. Raises UserError when NCCL is asked for and there are no GPUs."""
    gpus = all("GPU" in tower.device for tower in towers)
    if settings.parallel.all_reduce == "nccl" and not gpus:
        raise UserError("--all-reduce nccl: it needs NVIDIA GPUs, and the towers run on the CPU; leave it at auto")
    # Named, not left to tf.distribute, whose own choice numbers collectives anew in each strategy.
    kind = settings.parallel.all_reduce
    if kind == "auto":
        kind = "nccl" if gpus else "one_device"
    strategy = tf.distribute.MirroredStrategy([tower.device for tower in towers], cross_device_ops=ALL_REDUCE[kind]())
    return Synchronous(
        model,
        copies(model, settings, towers),
        settings.learning.seed,
        exchange_by(strategy),
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
    )


def copies(model: Seq2Seq, settings: Settings, towers: Sequence[Tower]) -> list[tuple[Replica, list[Tower]]]:
    """A replica on the device of each tower; the first is the model's own weights."""
    return [
        (
            Replica(
                model, settings.learning.optimizer, settings.learning.max_gradient_norm, tower.device if i else None
            ),
            [tower],
        )
        for i, tower in enumerate(towers)
    ]

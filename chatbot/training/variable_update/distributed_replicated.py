"""A copy of the variables on each machine; gradients are summed over machines, and each copy gets the same update.

tf.distribute's collectives compute the sums: NCCL's between GPUs, otherwise a ring between hosts. On CPUs
tf.distribute has one device a process, so the towers of a machine sum their gradients before the exchange.
"""

from collections.abc import Sequence

from chatbot.config.training import Settings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import Team
from chatbot.training.variable_update.replica import Replica
from chatbot.training.variable_update.replicated import copies
from chatbot.training.variable_update.synchronous import Synchronous


def distributed_replicated(model: Seq2Seq, settings: Settings, towers: Sequence[Tower], team: Team) -> Synchronous:
    """Make a step over the replicas of this machine: one for each GPU, or one that all towers on the CPU share."""
    if team.replicas == len(towers):
        replicas = copies(model, settings, towers)
    else:
        replicas = [(Replica(model, settings.learning), list(towers))]
    return Synchronous(
        model,
        replicas,
        settings.learning.seed,
        team.exchange,
        accumulate=settings.learning.accumulate,
        staged=settings.parallel.staged_variables,
        machine=team.machine,
        machines=team.machines,
    )

"""The machines of a synchronous run, and what they say to each other beside gradients."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.training.exchange import Exchange, exchange_by

BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class Team:
    """This machine among all of them.

    strategy: of tf.distribute, over all of them; None for one alone. leave: called when the work is done and
    machines may go their own ways.
    """

    machine: int = 0
    machines: int = 1
    strategy: Any = None
    leave: Callable[[], None] = lambda: None

    @property
    def chief(self) -> bool:
        """Whether this machine is the one that validates, reports, and writes checkpoints and curves."""
        return self.machine == 0

    @property
    def alone(self) -> bool:
        """Whether there is one machine only."""
        return self.machines == 1

    @property
    def replicas(self) -> int:
        """How many copies of the weights tf.distribute sees on each machine: its GPUs, or the CPU."""
        return self.strategy.num_replicas_in_sync // self.machines

    @property
    def exchange(self) -> Exchange:
        """Sums over all replicas of all machines."""
        return exchange_by(self.strategy, self.machine * self.replicas)

    def all_gather_text(self, text: str) -> list[str]:
        """What every machine says, in their order. All of them must call it at the same point."""
        if self.alone:
            return [text]
        words = text.encode()
        lengths = np.zeros(self.machines)
        lengths[self.machine] = len(words)
        lengths = self._summed(lengths)
        # In whole blocks, so that few shapes are traced; nothing was said is the most frequent case.
        spoken = np.zeros((self.machines, BLOCK * math.ceil(lengths.max() / BLOCK)))
        if not spoken.size:
            return [""] * self.machines
        spoken[self.machine, : len(words)] = list(words)
        heard = self._summed(spoken).astype(np.uint8)
        return [row[: int(length)].tobytes().decode() for row, length in zip(heard, lengths, strict=True)]

    def broadcast_text(self, text: str) -> str:
        """The chief's text, on every machine. All of them must call it at the same point."""
        return self.all_gather_text(text if self.chief else "")[0]

    def agree(self, reason: str) -> str:
        """The first reason that a machine has, on all of them; "" when none has one."""
        return next(filter(None, self.all_gather_text(reason)), "")

    def _summed(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        tensor = tf.constant(numbers, tf.float32)  # small whole numbers, which every device and link can add
        parts = [[tensor], *([tf.zeros_like(tensor)] for _ in range(self.replicas - 1))]
        return np.asarray(self._sum(parts)[0][0].numpy(), np.float64)

    @functools.cached_property
    def _sum(self) -> Any:
        return tf.function(self.exchange, autograph=False)


ALONE = Team()


def tower_names(team: Team, names: Sequence[str]) -> list[str]:
    """The towers of all machines as TensorBoard shows them."""
    if team.alone:
        return list(names)
    return [
        f"worker_{i}_{name}" for i, said in enumerate(team.all_gather_text(",".join(names))) for name in said.split(",")
    ]

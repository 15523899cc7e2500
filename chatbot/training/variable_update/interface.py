"""What a run asks of a variable update, and the result of a step."""

from typing import NamedTuple, Protocol

import tensorflow as tf

from chatbot.corpus.batches import GlobalBatch
from chatbot.training.share import Prepared
from chatbot.training.variable_update.replica import Values


class StepResult(NamedTuple):
    """The result of a step, on the devices; reading it copies it to the host."""

    loss_sums: tf.Tensor  # [towers of all machines] float32, nats
    weight_sums: tf.Tensor  # [towers of all machines] float32, real target tokens
    examples: tf.Tensor  # scalar float32, pairs in the global batch
    gradient_norm: tf.Tensor  # scalar float32, of the averaged gradient before clipping
    finite: tf.Tensor  # scalar bool; false if the update was skipped, since its loss or gradient was not finite
    overflow: tf.Tensor | None = None  # scalar bool, in float16: a smaller loss scale may prevent what was not finite


def step_result(report: tf.Tensor, norm: tf.Tensor, finite: tf.Tensor, overflow: tf.Tensor | None = None) -> StepResult:
    """Make the result from a report, [3, towers]: losses, target tokens and pairs."""
    losses, tokens, pairs = tf.unstack(report, num=3)
    return StepResult(losses, tokens, tf.reduce_sum(pairs), norm, finite, overflow)


class VariableUpdate(Protocol):
    """A training step and its state, on devices of one or several machines."""

    @property
    def tower_names(self) -> list[str]:
        """The names of the towers, in the order of the losses in a result."""

    @property
    def num_shares(self) -> int:
        """The number of shares of a global batch that a step takes in this process."""

    @property
    def is_tracing(self) -> bool:
        """Whether a graph of the step is being traced. Any thread may ask."""

    def prepare(self, batch: GlobalBatch, number: int) -> Prepared:
        """Prepare the global batch of step `number`, counted from 0. Any thread may call this."""

    def __call__(self, prepared: Prepared, rate: float) -> None:
        """Train on a global batch. rate: the learning rate."""

    def finished_steps(self) -> list[StepResult]:
        """Return the results of the steps that finished since the last call, at least one."""

    def gather_state(self) -> Values:
        """Copy the weights into the model; return the rest of a checkpoint."""

    def scatter_state(self, state: Values) -> None:
        """Continue from the model's weights and a state as `gather_state` returns it."""

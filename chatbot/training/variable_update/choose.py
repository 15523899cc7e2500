"""Which way of updating variables a run takes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from chatbot.config.training import Settings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Tower
from chatbot.training.gradients import Share
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.variable_update.distributed_replicated import distributed_replicated
from chatbot.training.variable_update.independent import independent
from chatbot.training.variable_update.parameter_server import parameter_server
from chatbot.training.variable_update.replica import Values
from chatbot.training.variable_update.replicated import replicated
from chatbot.training.variable_update.synchronous import StepResult, Synchronous


class VariableUpdate(Protocol):
    """A training step, and the state it keeps wherever it keeps it."""

    @property
    def tower_names(self) -> list[str]:
        """What its towers are called; each result has a loss for each of them."""

    @property
    def num_shares(self) -> int:
        """How many shares of a batch a step takes in this process."""

    def __call__(self, shares: Sequence[Share], number: int, rate: float) -> None:
        """Train on the global batch of step `number`."""

    def finished_steps(self) -> list[StepResult]:
        """The results, at least one, of steps that ended since this was asked last."""

    def gather_state(self) -> Values:
        """Put the weights into the model; returns what else a checkpoint must hold."""

    def scatter_state(self, state: Values) -> None:
        """Begin with the model's weights and a state as `gather_state` returns it."""


Way = Callable[[Seq2Seq, Settings, Sequence[Tower]], Synchronous]
WAYS: dict[str | None, Way] = {
    "parameter_server": parameter_server,
    "replicated": replicated,
    "independent": independent,
}


def way_of(settings: Settings, towers: Sequence[Tower]) -> Way:
    """What --variable-update names on one machine; by default replicated on several GPUs, else parameter_server."""
    if settings.parallel.variable_update in WAYS:
        return WAYS[settings.parallel.variable_update]
    gpus = sum("GPU" in tower.device for tower in towers)
    one_copy = settings.parallel.model_parallel or settings.parallel.local_parameter_device is not None
    copied = (gpus > 1 or settings.parallel.all_reduce != "auto") and not one_copy
    return replicated if copied else parameter_server


def open_update(model: Seq2Seq, settings: Settings, towers: Sequence[Tower], team: Team = ALONE) -> Synchronous:
    """The way that --variable-update names. Raises UserError where the devices do not allow it."""
    if not team.alone:
        return distributed_replicated(model, settings, towers, team)
    return way_of(settings, towers)(model, settings, towers)

"""Choice of the variable update of a run."""

from collections.abc import Callable, Sequence
from typing import Protocol

from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import GlobalBatch
from chatbot.flags import replace
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.share import Prepared
from chatbot.training.variable_update.distributed_replicated import distributed_replicated
from chatbot.training.variable_update.independent import independent
from chatbot.training.variable_update.parameter_server import parameter_server
from chatbot.training.variable_update.replica import Values
from chatbot.training.variable_update.replicated import replicated
from chatbot.training.variable_update.step_result import StepResult
from chatbot.training.variable_update.synchronous import Synchronous


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

"""Settings of devices, processes and machines, and of the exchange of gradients."""

import dataclasses

from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, setting

UPDATES = ("parameter_server", "replicated", "independent", "distributed_replicated")


@dataclasses.dataclass(frozen=True)
class ParallelSettings(Flags, stored=False):
    """Settings of devices and machines. A resumed run can change all of them except --staged-variables."""

    gpus: str | None = setting(
        None,
        "ids of the GPUs to train on, as shown by nvidia-smi",
        unset="all GPUs",
        group="devices",
        metavar="0,1,2,3",
    )
    towers: int | None = setting(None, "number of towers on the CPU or on a single GPU", unset="1", minimum=1)
    selftest: bool = setting(
        False, "check that several towers on these devices train like a single tower, print the verdict and exit"
    )

    variable_update: str | None = setting(
        None,
        f"method for placing variables and summing gradients: {', '.join(UPDATES)}",
        unset="replicated with several GPUs, distributed_replicated with several machines, otherwise parameter_server",
        group="parallel",
        choices=UPDATES,
        metavar="UPDATE",
    )
    all_reduce: str = setting(
        "auto", "algorithm that sums the gradients of replicas", choices=("auto", "nccl", "hierarchical", "one_device")
    )
    local_parameter_device: str | None = setting(
        None,
        "device that stores the variables with --variable-update parameter_server",
        unset="the first tower's device",
        choices=("cpu", "gpu"),
    )
    staged_variables: bool = setting(
        False,
        "apply gradients one step late, so their exchange overlaps with the next step",
        fixed=True,
        stored=True,
    )
    model_parallel: bool = setting(
        False, "split each tower across two or three devices: encoder, decoder and projection"
    )
    asynchronous: bool = setting(
        False, "let workers update variables on parameter servers without waiting for each other"
    )

    worker_hosts: str | None = setting(
        None,
        "addresses of all workers, in the same order on every machine",
        unset="from TF_CONFIG or Slurm",
        group="machines",
        metavar="HOST:PORT,...",
    )
    ps_hosts: str | None = setting(
        None, "addresses of the parameter servers for --asynchronous", metavar="HOST:PORT,..."
    )
    chief_host: str | None = setting(None, "address of the chief process for --asynchronous", metavar="HOST:PORT")
    job_name: str | None = setting(None, "role of this process with --asynchronous", choices=("chief", "worker", "ps"))
    task_index: int | None = setting(
        None,
        "zero-based index of this machine in the list of hosts",
        unset="from TF_CONFIG, Slurm, MPI or Kubernetes",
        minimum=0,
    )
    local_workers: int | None = setting(
        None, "number of workers to start on this machine, for trying out a cluster", minimum=1
    )
    restarts: int = setting(0, "maximum number of restarts from the last checkpoint after a machine is lost", minimum=0)
    start_timeout: float = setting(30, "minutes to wait for all machines at each start or restart", above=0)
    least_workers: int | None = setting(
        None,
        "continue with N workers, including worker 0, if other workers do not connect within --start-timeout",
        unset="all",
        minimum=1,
    )
    step_timeout: float = setting(
        10,
        "exit if a step on several GPUs or machines hangs for R minutes; 0 disables this timeout",
        minimum=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()

        def conflicting_update(kind: str | None) -> str:
            """Return --variable-update and its value, or "" if the value is unset or `kind`."""
            update = self.variable_update
            return "" if update in (None, kind) else f"--variable-update {update}"

        exclusive = [
            ("asynchronous", conflicting_update(None)),
            ("asynchronous", self.staged_variables and "--staged-variables"),
            ("asynchronous", self.model_parallel and "--model-parallel"),
            ("model_parallel", conflicting_update("parameter_server")),
            ("model_parallel", (self.worker_hosts or self.local_workers) and "several machines"),
            ("local_parameter_device", conflicting_update("parameter_server")),
            ("all_reduce", conflicting_update("replicated")),
            ("local_workers", self.worker_hosts and "--worker-hosts"),
            ("worker_hosts", conflicting_update("distributed_replicated")),
        ]
        for name, excluded in exclusive:
            if excluded and getattr(self, name) not in (None, False, "auto"):
                raise UserError(f"{flag_of(name)} and {excluded} are mutually exclusive; use only one")
        for name in ("ps_hosts", "chief_host", "job_name") if not self.asynchronous else ():
            if getattr(self, name) is not None:
                raise UserError(f"{flag_of(name)}: only for --asynchronous; add --asynchronous, or leave it out")

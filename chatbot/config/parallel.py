"""Settings of the devices, processes and machines, and of the exchange of gradients between them."""

import dataclasses

from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, setting

DEVICES = "devices"
PARALLEL = "parallel"
MACHINES = "machines"

UPDATES = ("parameter_server", "replicated", "independent", "distributed_replicated")


@dataclasses.dataclass(frozen=True)
class ParallelSettings(Flags, stored=False):
    """Devices and machines. A resumed run may change every setting except --staged-variables."""

    gpus: str | None = setting(
        None, "GPUs to train on, by their ids in nvidia-smi", unset="all GPUs", group=DEVICES, metavar="0,1,2,3"
    )
    towers: int | None = setting(None, "split the CPU, or a single GPU, into this many towers", unset="1", least=1)
    selftest: bool = setting(
        False, "check that several towers on these devices train as one does, print the verdict and exit"
    )

    variable_update: str | None = setting(
        None,
        f"where variables live and how gradients are summed: {', '.join(UPDATES)}",
        unset="replicated with several GPUs, distributed_replicated with several machines, else parameter_server",
        group=PARALLEL,
        choices=UPDATES,
        metavar="UPDATE",
    )
    all_reduce: str = setting(
        "auto", "how the gradients of copies are summed", choices=("auto", "nccl", "hierarchical", "one_device")
    )
    local_parameter_device: str | None = setting(
        None, "device of the variables with parameter_server", unset="the first tower's", choices=("cpu", "gpu")
    )
    staged_variables: bool = setting(
        False, "apply gradients one step late: their exchange overlaps with the next step", fixed=True, stored=True
    )
    model_parallel: bool = setting(
        False, "spread each tower over two or three devices: encoder, decoder and projection"
    )
    asynchronous: bool = setting(False, "workers update variables on parameter servers without waiting for each other")

    worker_hosts: str | None = setting(
        None,
        "workers, in the same order on every machine",
        unset="by TF_CONFIG or Slurm",
        group=MACHINES,
        metavar="A:P,B:P",
    )
    ps_hosts: str | None = setting(None, "with --asynchronous: the parameter servers", metavar="A:P,B:P")
    chief_host: str | None = setting(None, "with --asynchronous: address of the chief", metavar="A:P")
    job_name: str | None = setting(None, "with --asynchronous: job of this process", choices=("chief", "worker", "ps"))
    task_index: int | None = setting(
        None, "index of this machine among the hosts, from 0", unset="by TF_CONFIG, Slurm, MPI or Kubernetes", least=0
    )
    local_workers: int | None = setting(None, "start this many workers on this machine, to try out a cluster", least=1)
    restarts: int = setting(0, "restart from the last checkpoint up to N times after a machine is lost", least=0)
    start_timeout: float = setting(
        30, "minutes in which all machines must start, also after a restart; then the run ends", above=0
    )
    least_workers: int | None = setting(
        None,
        "go on with N workers, worker 0 among them, if no more have come within --start-timeout",
        unset="all",
        least=1,
    )
    step_timeout: float = setting(
        10,
        "where GPUs or machines wait for each other: end, to be started again, after this many minutes without "
        "progress of a step; 0: never",
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()

        def update_but(kind: str | None) -> str:
            """Return --variable-update with its value, "" if it is not given or of this kind."""
            update = self.variable_update
            return "" if update in (None, kind) else f"--variable-update {update}"

        exclusive = [
            ("asynchronous", update_but(None)),
            ("asynchronous", self.staged_variables and "--staged-variables"),
            ("asynchronous", self.model_parallel and "--model-parallel"),
            ("model_parallel", update_but("parameter_server")),
            ("model_parallel", (self.worker_hosts or self.local_workers) and "several machines"),
            ("local_parameter_device", update_but("parameter_server")),
            ("all_reduce", update_but("replicated")),
            ("local_workers", self.worker_hosts and "--worker-hosts"),
            ("worker_hosts", update_but("distributed_replicated")),
        ]
        for name, excluded in exclusive:
            if excluded and getattr(self, name) not in (None, False, "auto"):
                raise UserError(f"{flag_of(name)} and {excluded} exclude each other; leave out one of the two")
        for name in ("ps_hosts", "chief_host", "job_name") if not self.asynchronous else ():
            if getattr(self, name) is not None:
                raise UserError(f"{flag_of(name)}: only for --asynchronous; add --asynchronous, or leave it out")

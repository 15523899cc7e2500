"""Which devices, processes and machines train, and how they do it together."""

import dataclasses

from chatbot.config.learning import LearningSettings
from chatbot.errors import UserError
from chatbot.flags import flag_of, setting

DEVICES, PARALLEL, MACHINES = "devices", "training in parallel", "several machines"


@dataclasses.dataclass(frozen=True)
class ParallelSettings(LearningSettings):
    """What a run may change from one start to the next, but for staged variables. Raises UserError."""

    gpus: str | None = setting(
        None,
        DEVICES,
        "GPUs to train on, by the ids nvidia-smi shows; default: every GPU found",
        metavar="0,1,2,3",
        stored=False,
    )
    towers: int | None = setting(
        None,
        DEVICES,
        "without GPUs: split the CPU into this many towers; with one GPU: split that",
        kind=int,
        least=1,
        stored=False,
    )
    log_device_placement: bool = setting(False, DEVICES, "print the device of each operation", kind=bool, stored=False)
    selftest: bool = setting(
        False,
        DEVICES,
        "prove on these devices that many towers train as one does, print the verdict and leave",
        kind=bool,
        stored=False,
    )

    variable_update: str | None = setting(
        None,
        PARALLEL,
        "where variables live and how gradients meet: on one device that all towers read; a copy a tower, summed by "
        "all-reduce; a copy a tower, never summed, for measuring; a copy a machine, summed by a ring. Default: "
        "replicated on two GPUs and more, distributed_replicated on several machines, else parameter_server",
        choices=("parameter_server", "replicated", "independent", "distributed_replicated"),
        stored=False,
    )
    all_reduce: str = setting(
        "auto",
        PARALLEL,
        "how copies are summed: by NCCL's ring, in two levels, or on one device",
        choices=("auto", "nccl", "hierarchical", "one_device"),
        stored=False,
    )
    local_parameter_device: str | None = setting(
        None,
        PARALLEL,
        "where the variables of parameter_server are; default: where the first tower is",
        choices=("cpu", "gpu"),
        stored=False,
    )
    staged_variables: bool = setting(
        False,
        PARALLEL,
        "apply gradients one step late, so that their exchange hides behind the next step's computing",
        kind=bool,
        fixed=True,
    )
    model_parallel: bool = setting(
        False,
        PARALLEL,
        "spread each tower over two or three devices: encoder, decoder and projection",
        kind=bool,
        stored=False,
    )
    asynchronous: bool = setting(
        False,
        PARALLEL,
        "workers update variables on parameter servers without waiting for each other; alone it starts them here",
        kind=bool,
        stored=False,
    )

    worker_hosts: str | None = setting(
        None,
        MACHINES,
        "the machines that train, host:port of each, in the same order everywhere; TF_CONFIG may say it instead",
        metavar="A:P,B:P",
        stored=False,
    )
    ps_hosts: str | None = setting(
        None, MACHINES, "with --asynchronous: the parameter servers", metavar="A:P,B:P", stored=False
    )
    chief_host: str | None = setting(
        None, MACHINES, "with --asynchronous: the chief, as the others reach it", metavar="A:P", stored=False
    )
    job_name: str | None = setting(
        None,
        MACHINES,
        "with --asynchronous: what this machine is",
        choices=("chief", "worker", "ps"),
        stored=False,
    )
    task_index: int | None = setting(
        None, MACHINES, "which of the hosts this machine is, from 0", kind=int, least=0, stored=False
    )
    local_workers: int | None = setting(
        None, MACHINES, "practise on this machine: so many worker processes", kind=int, least=1, stored=False
    )
    start_limit: int = setting(
        600, MACHINES, "seconds to wait for machines that have not started", kind=int, least=1, stored=False
    )
    restarts: int = setting(
        0,
        MACHINES,
        "how often to start again by itself, from the checkpoint, after a machine was lost",
        kind=int,
        least=0,
        stored=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        update = self.variable_update
        if self.asynchronous:
            self._refuse(
                "asynchronous",
                update is not None and f"--variable-update {update}",
                self.staged_variables and "--staged-variables",
                self.model_parallel and "--model-parallel",
                self.accumulate > 1 and "--accumulate",
            )
        if self.model_parallel and update not in (None, "parameter_server"):
            self._refuse("model_parallel", f"--variable-update {update}")
        if self.model_parallel and (self.worker_hosts or self.local_workers):
            self._refuse("model_parallel", "several machines")
        if self.local_parameter_device and update not in (None, "parameter_server"):
            self._refuse("local_parameter_device", f"--variable-update {update}")
        if self.all_reduce != "auto" and update not in (None, "replicated"):
            self._refuse("all_reduce", f"--variable-update {update}")
        if self.worker_hosts and self.local_workers:
            self._refuse("local_workers", "--worker-hosts")
        if not self.asynchronous:
            for name in ("ps_hosts", "chief_host", "job_name"):
                if getattr(self, name) is not None:
                    raise UserError(f"{flag_of(name)}: it belongs to --asynchronous; give that, or leave it out")
        if self.worker_hosts and update not in (None, "distributed_replicated"):
            self._refuse("worker_hosts", f"--variable-update {update}")

    @staticmethod
    def _refuse(name: str, *others: str | bool) -> None:
        """Raises UserError when one of the others is given beside this flag."""
        for other in filter(None, others):
            raise UserError(f"{flag_of(name)} and {other} do not go together; leave out one of the two")

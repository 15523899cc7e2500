"""Determines the machines of a training run and the role of this machine.

The sources are flags, the environment variable TF_CONFIG, and the environment variables of launchers such as Slurm.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from chatbot.config.parallel import ParallelSettings
from chatbot.display import pluralize
from chatbot.errors import UserError

WORKER = "worker"
PS = "ps"
CHIEF = "chief"
# A host name, an IPv4 address, or an IPv6 address in brackets.
HOST = r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\[[0-9A-Fa-f:.]+(%\w+)?\]"
# The environment variables with the rank of a process and with the number of processes, for each launcher. Kubernetes
# sets only the rank. MPI comes first because it can use Slurm to start its processes.
#   Open MPI            docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
#   PMI                 MPICH, Intel MPI, and srun with --mpi=pmi2
#   Slurm               slurm.schedmd.com/srun.html; SLURM_NTASKS is unsuitable, since batch scripts have it, too
#   Kubeflow Trainer    github.com/kubeflow/trainer/blob/master/pkg/constants/constants.go
#   Kubernetes          kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
LAUNCHERS = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "Kubeflow Trainer": ("PET_NODE_RANK", "PET_NNODES"),
    "Kubernetes": ("JOB_COMPLETION_INDEX", ""),
}
# On Slurm, the port of the workers depends on the job id, so that jobs on the same node use different ports.
FIRST_SLURM_PORT = 12_000
SLURM_PORTS = 10_000


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses (host:port) of all workers and parameter servers, and the role (job and index) of this machine."""

    workers: tuple[str, ...]
    job: str
    index: int
    ps: tuple[str, ...] = ()
    chief: str | None = None
    source: str = dataclasses.field(default="flags", compare=False)  # where the addresses come from, for messages

    @property
    def hosts(self) -> dict[str, list[str]]:
        """The addresses of each job that has machines, in the format of TensorFlow's ClusterSpec."""
        hosts = {WORKER: [*self.workers], PS: [*self.ps], CHIEF: [self.chief] if self.chief else []}
        return {job: addresses for job, addresses in hosts.items() if addresses}

    @property
    def own(self) -> str | None:
        """The address of this machine; None for a chief without --chief-host."""
        return self.hosts[self.job][self.index] if self.job in self.hosts else None

    @property
    def others(self) -> dict[str, str]:
        """The addresses of the other workers and parameter servers, keyed by names such as "worker 1"."""
        named = {f"{job} {i}": host for job, hosts in self.hosts.items() for i, host in enumerate(hosts)}
        return {name: host for name, host in named.items() if name not in (f"{self.job} {self.index}", f"{CHIEF} 0")}


def find_cluster(settings: ParallelSettings, environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the cluster defined by flags, TF_CONFIG or a launcher, in this order; None for a single machine.

    Raises UserError if values are missing, malformed, duplicated or out of range.
    """
    flags = (settings.worker_hosts, settings.ps_hosts, settings.chief_host, settings.job_name, settings.task_index)
    by_flags = flags != (None,) * 5
    if by_flags:
        cluster: Cluster | None = _cluster_from_flags(settings, environment)
    else:
        cluster = _cluster_from_tf_config(settings, environment) or _cluster_from_launcher(settings, environment)
    if cluster is None:
        if settings.variable_update == "distributed_replicated" and settings.local_workers is None:
            raise UserError(
                "--variable-update distributed_replicated: no machines are given; set --worker-hosts, TF_CONFIG or "
                "--local-workers"
            )
        return None
    job = cluster.job
    index = cluster.index
    count = len(cluster.hosts.get(job, [None] if job == CHIEF else []))
    if not 0 <= index < count:
        source = {"flags": "--task-index", "TF_CONFIG": "TF_CONFIG: task index"}.get(cluster.source, cluster.source)
        raise UserError(f"{source} {index}: expected 0 to {count - 1}, since the number of {job} hosts is {count}")
    if not settings.asynchronous and len(cluster.workers) == 1:
        return None
    addresses = [*itertools.chain.from_iterable(cluster.hosts.values())]
    for address in addresses:
        host_and_port(address)
        if addresses.count(address) > 1:
            raise UserError(f"{address}: listed twice among the hosts; each process needs its own port")
    return cluster


def host_and_port(address: str) -> tuple[str, int]:
    """Split an address such as "a.b:2222" into ("a.b", 2222). Raises UserError for other formats."""
    host, _, port = address.rpartition(":")
    if not (re.fullmatch(HOST, host) and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise UserError(f"{address!r}: expected host:port, such as 10.0.0.1:2222")
    return host.strip("[]"), int(port)


def check_port(cluster: Cluster) -> None:
    """Raise UserError if the port of this machine is in use."""
    if cluster.own is not None:
        _, port = host_and_port(cluster.own)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise UserError(
                    f"port {port} of {cluster.own}, this machine's address, cannot be used ({error.strerror}); "
                    "end the process that uses it, or set another port on all machines"
                ) from None


def free_addresses(count: int) -> list[str]:
    """Return `count` loopback addresses with ports that are currently free."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


def _cluster_from_flags(settings: ParallelSettings, environment: Mapping[str, str]) -> Cluster:
    workers = _split_hosts(settings.worker_hosts)
    ps = _split_hosts(settings.ps_hosts)
    if not workers:
        raise UserError("--worker-hosts: missing; list the host:port of every worker, on every machine")
    job = settings.job_name or WORKER
    if settings.asynchronous and not ps:
        raise UserError("--ps-hosts: missing; --asynchronous on several machines needs a parameter server")
    if settings.asynchronous and settings.job_name is None:
        raise UserError("--job-name: missing; set the job of this machine: chief, worker or ps")
    if settings.task_index is None and not settings.asynchronous and (rank := _rank_of(environment)):
        if rank.processes not in (None, len(workers)):
            raise UserError(
                f"--worker-hosts: {pluralize(len(workers), 'worker')}, and {rank.launcher} has started "
                f"{rank.processes} processes; list the host:port of every worker"
            )
        return Cluster(workers, job, rank.number, source=rank.launcher)
    if settings.task_index is None and job != CHIEF:
        raise UserError("--task-index: missing; set the index of this machine among the hosts, from 0")
    return Cluster(workers, job, settings.task_index or 0, ps, settings.chief_host)


def _cluster_from_tf_config(settings: ParallelSettings, environment: Mapping[str, str]) -> Cluster | None:
    """Read TF_CONFIG in the format of Kubeflow's TFJob."""
    text = environment.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        hosts = {job: config["cluster"].get(job, []) for job in (CHIEF, WORKER, PS)}
        job = str(config["task"]["type"])
        index = int(config["task"]["index"])
        if not all(
            isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)
            for addresses in hosts.values()
        ):
            raise TypeError("expected lists of strings")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise UserError(
            'TF_CONFIG: expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    chiefs = hosts[CHIEF]
    workers = hosts[WORKER]
    ps = hosts[PS]
    if job not in hosts or (job == CHIEF and not chiefs):
        raise UserError(f"TF_CONFIG: task type {job!r} is not in its cluster; add it there, or correct the task type")
    if settings.asynchronous:
        if not (workers and ps and len(chiefs) <= 1):
            raise UserError(
                "TF_CONFIG: --asynchronous needs workers, at least one ps, and at most one chief; correct it"
            )
        return Cluster(tuple(workers), job, index, tuple(ps), next(iter(chiefs), None), "TF_CONFIG")
    if ps or job == PS:
        raise UserError("TF_CONFIG: lists a ps, which only --asynchronous uses; add --asynchronous, or remove the ps")
    if not chiefs + workers:
        raise UserError("TF_CONFIG: lists no worker; list the host:port of every worker")
    # In a synchronous run, the chief of TF_CONFIG becomes worker 0.
    return Cluster((*chiefs, *workers), WORKER, index + (len(chiefs) if job == WORKER else 0), source="TF_CONFIG")


class Rank(NamedTuple):
    """The rank of this process, counted from 0, among the processes that a launcher started."""

    launcher: str
    number: int
    processes: int | None  # None if the launcher does not set it


def _rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank according to the first launcher whose variables are set; None for a single process."""
    for launcher, variables in LAUNCHERS.items():
        number, processes = (environment.get(variable, "") for variable in variables)
        if number.isdecimal() and (processes.isdecimal() or not variables[1]):
            return None if processes == "1" else Rank(launcher, int(number), int(processes) if processes else None)
    return None


def _cluster_from_launcher(settings: ParallelSettings, environment: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of the processes that a launcher started. Only Slurm provides the host names."""
    rank = None if settings.asynchronous else _rank_of(environment)
    if rank is None or rank.processes is None:
        return None
    workers: tuple[str, ...] = ()
    if environment.get("SLURM_PROCID") == str(rank.number):
        nodes = expand_nodes(environment.get("SLURM_STEP_NODELIST", ""))
        port = FIRST_SLURM_PORT + int(environment.get("SLURM_JOB_ID", "0")) % SLURM_PORTS
        workers = tuple(f"{node}:{port}" for node in nodes)
    if len(workers) != rank.processes:
        raise UserError(
            f"{rank.launcher} has started {rank.processes} processes: add --worker-hosts with the host:port of each, "
            "in the order of ranks (not needed with Slurm and --ntasks-per-node=1), or start one process"
        )
    return Cluster(workers, WORKER, rank.number, source=rank.launcher)


def expand_nodes(nodes: str) -> list[str]:
    """Expand a Slurm node list: "gpu[01-02,7],login" becomes ["gpu01", "gpu02", "gpu7", "login"]."""
    names: list[str] = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        texts_and_ranges = re.split(r"\[([^\]]*)\]", name)
        choices = [_expand_ranges(part) if i % 2 else [part] for i, part in enumerate(texts_and_ranges)]
        names += map("".join, itertools.product(*choices))
    return names


def _expand_ranges(ranges: str) -> list[str]:
    """Expand ranges such as "01-03,7", keeping leading zeros."""
    numbers = []
    for entry in ranges.split(","):
        first, _, last = entry.partition("-")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def _split_hosts(hosts: str | None) -> tuple[str, ...]:
    return tuple(host.strip() for host in hosts.split(",") if host.strip()) if hosts else ()

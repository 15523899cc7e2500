"""The machines of a run and the job of this machine, from flags or from TF_CONFIG."""

import contextlib
import dataclasses
import json
import os
import re
import socket
from collections.abc import Mapping

from chatbot.config.parallel import ParallelSettings
from chatbot.errors import UserError

WORKER, PS, CHIEF = "worker", "ps", "chief"
# A name, an IPv4 address, or an IPv6 address in brackets, which both resolvers and gRPC accept.
HOST = r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\[[0-9A-Fa-f:.]+(%\w+)?\]"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses, host:port, of each job, and the job and index of this machine."""

    workers: tuple[str, ...]
    job: str
    index: int
    ps: tuple[str, ...] = ()
    chief: str | None = None

    @property
    def own(self) -> str | None:
        """The address of this machine; None for a chief without --chief-host."""
        if self.job == CHIEF:
            return self.chief
        return (self.workers if self.job == WORKER else self.ps)[self.index]

    @property
    def others(self) -> dict[str, str]:
        """The addresses of the other workers and parameter servers, by name, such as worker 1."""
        named = {f"{WORKER} {i}": address for i, address in enumerate(self.workers)}
        named |= {f"{PS} {i}": address for i, address in enumerate(self.ps)}
        return {name: address for name, address in named.items() if name != f"{self.job} {self.index}"}


def cluster_of(settings: ParallelSettings, environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the cluster from the flags, else from TF_CONFIG; None for a single machine.

    Raises UserError for values that are missing, malformed, repeated, or out of range.
    """
    flags = (settings.worker_hosts, settings.ps_hosts, settings.chief_host, settings.job_name, settings.task_index)
    by_flags = flags != (None,) * 5
    cluster = _of_flags(settings) if by_flags else _of_environment(settings, environment)
    if cluster is None:
        if settings.variable_update == "distributed_replicated" and settings.local_workers is None:
            raise UserError(
                "--variable-update distributed_replicated: the machines are missing; set --worker-hosts, TF_CONFIG or "
                "--local-workers"
            )
        return None
    job, index = cluster.job, cluster.index
    count = {CHIEF: 1, WORKER: len(cluster.workers), PS: len(cluster.ps)}[job]
    if not 0 <= index < count:
        source = "--task-index" if by_flags else "TF_CONFIG: task index"
        raise UserError(f"{source} {index}: expected 0 to {count - 1}, since the number of {job} hosts is {count}")
    if not settings.asynchronous and len(cluster.workers) == 1:
        return None
    addresses = [*cluster.workers, *cluster.ps, *([cluster.chief] if cluster.chief else [])]
    for address in addresses:
        host_and_port(address)
        if addresses.count(address) > 1:
            raise UserError(f"{address}: listed twice among the hosts; each process needs its own port")
    return cluster


def host_and_port(address: str) -> tuple[str, int]:
    """Split 'a.b:2222' into ('a.b', 2222). Raises UserError for anything else."""
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
    """Return loopback addresses with ports that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


def _of_flags(settings: ParallelSettings) -> Cluster | None:
    workers, ps = _listed(settings.worker_hosts), _listed(settings.ps_hosts)
    if not workers:
        raise UserError("--worker-hosts: missing; list the host:port of every worker, on every machine")
    job = settings.job_name or WORKER
    if settings.asynchronous and not ps:
        raise UserError("--ps-hosts: missing; --asynchronous on several machines needs a parameter server")
    if settings.asynchronous and settings.job_name is None:
        raise UserError("--job-name: missing; set the job of this machine: chief, worker or ps")
    if settings.task_index is None and job != CHIEF:
        raise UserError("--task-index: missing; set the index of this machine among the hosts, from 0")
    return Cluster(workers, job, settings.task_index or 0, ps, settings.chief_host)


def _of_environment(settings: ParallelSettings, environment: Mapping[str, str]) -> Cluster | None:
    """Read TF_CONFIG, in the form that Kubeflow's TFJob sets."""
    text = environment.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        hosts = {job: config["cluster"].get(job, []) for job in (CHIEF, WORKER, PS)}
        job, index = str(config["task"]["type"]), int(config["task"]["index"])
        if not all(
            isinstance(listed, list) and all(isinstance(host, str) for host in listed) for listed in hosts.values()
        ):
            raise TypeError("expected lists of strings")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise UserError(
            'TF_CONFIG: expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    chiefs, workers, ps = hosts[CHIEF], hosts[WORKER], hosts[PS]
    if job not in hosts or (job == CHIEF and not chiefs):
        raise UserError(f"TF_CONFIG: task type {job!r} is not in its cluster; add it there, or correct the task type")
    if settings.asynchronous:
        if not (workers and ps and len(chiefs) <= 1):
            raise UserError(
                "TF_CONFIG: --asynchronous needs workers, at least one ps, and at most one chief; correct it"
            )
        return Cluster(tuple(workers), job, index, tuple(ps), *chiefs)
    if ps or job == PS:
        raise UserError("TF_CONFIG: lists a ps, which only --asynchronous uses; add --asynchronous, or remove the ps")
    if not chiefs + workers:
        raise UserError("TF_CONFIG: lists no worker; list the host:port of every worker")
    # A chief is the first worker.
    return Cluster((*chiefs, *workers), WORKER, index + (len(chiefs) if job == WORKER else 0))


def _listed(hosts: str | None) -> tuple[str, ...]:
    return tuple(host.strip() for host in hosts.split(",") if host.strip()) if hosts else ()

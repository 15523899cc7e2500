"""Which machines there are and which of them this is, from flags or from TF_CONFIG."""

import dataclasses
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence

from chatbot.config.parallel import ParallelSettings
from chatbot.errors import UserError

WORKER, PS, CHIEF = "worker", "ps", "chief"
# A name, an IPv4 address, or an IPv6 address in brackets; all that resolvers and gRPC agree on.
HOST = r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\[[0-9A-Fa-f:.]+(%\w+)?\]"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses, host:port, of each job, and this machine's place among them."""

    workers: tuple[str, ...]
    job: str
    index: int
    ps: tuple[str, ...] = ()
    chief: str | None = None

    @property
    def own(self) -> str | None:
        """This machine's address; None for a chief that nobody needs to reach."""
        if self.job == CHIEF:
            return self.chief
        return (self.workers if self.job == WORKER else self.ps)[self.index]

    @property
    def others(self) -> dict[str, str]:
        """The address of every other machine, by what it is called: worker 1."""
        named = {f"{WORKER} {i}": address for i, address in enumerate(self.workers)}
        named |= {f"{PS} {i}": address for i, address in enumerate(self.ps)}
        return {name: address for name, address in named.items() if name != f"{self.job} {self.index}"}


def cluster_of(settings: ParallelSettings, environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that flags or TF_CONFIG describe; None for one machine.

    Raises UserError for what is missing, malformed, repeated, or out of range.
    """
    told = (
        settings.worker_hosts,
        settings.ps_hosts,
        settings.chief_host,
        settings.job_name,
        settings.task_index,
    )
    cluster = _of_environment(settings, environment) if told == (None,) * 5 else _of_flags(settings)
    if cluster is None:
        if settings.variable_update == "distributed_replicated" and settings.local_workers is None:
            raise UserError(
                "--variable-update distributed_replicated: no machines are named; give --worker-hosts and "
                "--task-index, or TF_CONFIG, or --local-workers 2 to practise"
            )
        return None
    if not settings.asynchronous and len(cluster.workers) == 1:
        return None
    addresses = [*cluster.workers, *cluster.ps, *([cluster.chief] if cluster.chief else [])]
    for address in addresses:
        host_and_port(address)
        if addresses.count(address) > 1:
            raise UserError(f"{address}: stands twice among the hosts; each process needs a port of its own")
    return cluster


def host_and_port(address: str) -> tuple[str, int]:
    """'a.b:2222' -> ('a.b', 2222). Raises UserError."""
    host, _, port = address.rpartition(":")
    if not (re.fullmatch(HOST, host) and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise UserError(f"{address!r}: host:port expected, such as 10.0.0.1:2222")
    return host.strip("[]"), int(port)


def check_addresses(cluster: Cluster, environment: Mapping[str, str] = os.environ) -> None:
    """Raises UserError for hosts that nobody knows, and when this machine's own port is taken."""
    chief = {CHIEF: cluster.chief} if cluster.chief and cluster.job != CHIEF else {}
    for name, address in (cluster.others | chief).items():
        host, port = host_and_port(address)
        try:
            socket.getaddrinfo(host, port)
        except OSError as error:
            # In Kubernetes a name comes with its pod, which may start later.
            if "KUBERNETES_SERVICE_HOST" not in environment:
                raise UserError(
                    f"{name} ({address}): the host cannot be resolved ({error.strerror}); correct its name"
                ) from None
    if cluster.own is not None:
        _, port = host_and_port(cluster.own)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise UserError(
                    f"port {port} of {cluster.own}, this machine's own, cannot be used ({error.strerror}); "
                    "end what holds it, or give another port, on all machines"
                ) from None


def free_addresses(count: int) -> list[str]:
    """Loopback addresses with ports that nobody uses now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _of_flags(settings: ParallelSettings) -> Cluster | None:
    workers, ps = _listed(settings.worker_hosts), _listed(settings.ps_hosts)
    if not workers:
        raise UserError("--worker-hosts: missing; name all workers, host:port of each, on every machine")
    job = settings.job_name or WORKER
    if settings.asynchronous and not ps:
        raise UserError("--ps-hosts: missing; --asynchronous on several machines needs a parameter server")
    if settings.asynchronous and settings.job_name is None:
        raise UserError("--job-name: missing; say what this machine is: chief, worker or ps")
    if settings.task_index is None and job != CHIEF:
        raise UserError("--task-index: missing; say which of the hosts this machine is, from 0")
    return _checked("--task-index", workers, ps, settings.chief_host, job, settings.task_index or 0)


def _of_environment(settings: ParallelSettings, environment: Mapping[str, str]) -> Cluster | None:
    """TF_CONFIG as Kubeflow's TFJob sets it."""
    text = environment.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        hosts = {job: config["cluster"].get(job, []) for job in (CHIEF, "master", WORKER, PS)}
        job, index = str(config["task"]["type"]), int(config["task"]["index"])
        if not all(isinstance(some, list) and all(isinstance(host, str) for host in some) for some in hosts.values()):
            raise TypeError("lists of texts expected")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise UserError(
            'TF_CONFIG: {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}} expected'
        ) from None
    chiefs, workers, ps = hosts[CHIEF] + hosts["master"], hosts[WORKER], hosts[PS]
    if job not in (CHIEF, "master", WORKER, PS):
        raise UserError(f"TF_CONFIG: task type {job!r}; chief, worker or ps expected")
    if job in (CHIEF, "master") and not chiefs:
        raise UserError(f"TF_CONFIG: task type {job!r}, which its cluster does not name; correct one of the two")
    job = CHIEF if job == "master" else job
    if settings.asynchronous:
        if len(chiefs) > 1:
            raise UserError(f"TF_CONFIG: names {len(chiefs)} chiefs; --asynchronous has one")
        if not ps:
            raise UserError("TF_CONFIG: names no ps; --asynchronous on several machines needs a parameter server")
    else:
        if ps or job == PS:
            raise UserError("TF_CONFIG: names parameter servers, which only --asynchronous has; give that, or no ps")
        # A chief is a worker that has the first number.
        workers, index, job = chiefs + workers, index + (len(chiefs) if job == WORKER else 0), WORKER
    if not workers:
        raise UserError("TF_CONFIG: names no worker; name all of them, host:port of each")
    return _checked(
        "TF_CONFIG: task index",
        workers,
        ps,
        chiefs[0] if settings.asynchronous and chiefs else None,
        job,
        index,
    )


def _checked(said: str, workers: Sequence[str], ps: Sequence[str], chief: str | None, job: str, index: int) -> Cluster:
    count = {CHIEF: 1, WORKER: len(workers), PS: len(ps)}[job]
    if not 0 <= index < count:
        raise UserError(f"{said} {index}: there are {count} of the job {job}, numbered from 0 to {count - 1}")
    return Cluster(tuple(workers), job, index, tuple(ps), chief)


def _listed(hosts: str | None) -> tuple[str, ...]:
    return tuple(host.strip() for host in hosts.split(",") if host.strip()) if hosts else ()

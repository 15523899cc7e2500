"""The entry point of train.py, which trains in this process or starts several processes."""

import contextlib
import os
import sys
import time
from typing import Any

from chatbot.attempts.opening import attempt_lock
from chatbot.config.parallel import ParallelSettings
from chatbot.config.run import check_client, parse_time_limit
from chatbot.config.training import Settings
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.quiet import quiet
from chatbot.training.data import Data, prepare, read_probe
from chatbot.training.devices.gpus import Gpu, silent_gpus, warn_without_gpu
from chatbot.training.devices.towers import Tower, choose_gpus, cpu_name, open_towers, spread, table
from chatbot.training.machines.cluster import CHIEF, PS, WORKER, Cluster, check_port, find_cluster, free_addresses
from chatbot.training.machines.peers import PEER_TIMEOUT, Peers, print_status
from chatbot.training.machines.processes import Job, run_jobs
from chatbot.training.result import TrainingResult

# The default number of workers of --asynchronous on a single machine without GPUs.
LOCAL_WORKERS = 2
# The maximum number of restarts of each worker of --asynchronous on a single machine.
WORKER_RESTARTS = 20
WINDOWS = os.name == "nt"


def start(settings: Settings) -> int:
    """Run train.py with the given settings, and return the exit code.

    Raises:
        UserError: If the settings, the data or the devices cannot be used.
    """
    settings = with_deadline(settings)
    if settings.parallel.selftest:
        if settings.run.dry_run:
            raise UserError("--dry-run and --selftest cannot be combined; leave out one of the two")
        towers = open_and_print_towers(settings, select_gpus(settings), min_towers=2)
        from chatbot.training.selftest import selftest

        return selftest(settings, towers)
    parallel = settings.parallel
    cluster = check_cluster(settings)
    if parallel.asynchronous and cluster is None:
        return run_local_asynchronous(settings)
    if parallel.local_workers is not None:
        return run_local_workers(settings, parallel.local_workers)
    if parallel.restarts:
        # Workers and parameter servers wait longer for a chief that does not respond, because it may be restarting.
        arguments = for_one_process(settings), 60 * parallel.start_timeout
        return run_jobs([Job("training", run_process, arguments, parallel.restarts)])
    return run_process(settings)


def with_deadline(settings: Settings) -> Settings:
    """Set the deadline of --time-limit, counted from now. A deadline that is already set is not changed."""
    run = settings.run
    if run.time_limit is None or run.deadline is not None:
        return settings
    return replace(settings, deadline=time.time() + parse_time_limit(run.time_limit))


def starts_processes(parallel: ParallelSettings) -> bool:
    """Return whether the settings require several processes, or a process that is restarted after failures."""
    return bool(parallel.local_workers is not None or parallel.asynchronous or parallel.restarts)


def check_cluster(settings: Settings) -> Cluster | None:
    """Return the cluster that the settings describe, or None for a single machine.

    Called before any process is started, so each error is reported only once.

    Raises:
        UserError: If settings contradict each other, or a port is already in use.
    """
    parallel = settings.parallel
    run = settings.run
    cluster = find_cluster(parallel)
    if starts_processes(parallel) or cluster is not None:  # Child processes require POSIX.
        reason = "--dry-run supports only one machine" if run.dry_run else "not supported on Windows" if WINDOWS else ""
        if reason:
            raise UserError(f"{reason}: leave out --local-workers, --asynchronous, --restarts and other machines")
    if cluster is None:
        check_client(run.report_to)  # An error should be reported before any process is started.
    elif parallel.local_workers is not None:
        raise UserError(f"--local-workers: {cluster.source} already defines the machines; leave out --local-workers")
    else:
        check_port(cluster)
    return cluster


def run_local_workers(settings: Settings, workers: int) -> int:
    """Train synchronously with several worker processes on this machine, and return the exit code."""
    hosts = ",".join(free_addresses(workers))
    jobs = []
    for i, gpus in enumerate(divide_gpus(choose_gpus(settings.parallel.gpus), workers)):
        worker = for_one_process(settings, worker_hosts=hosts, task_index=i, gpus=gpus)
        jobs.append(Job(f"worker {i}", run_process, (worker,), settings.parallel.restarts, quiet=i > 0))
    return run_jobs(jobs)


def run_local_asynchronous(settings: Settings) -> int:
    """Train asynchronously with a parameter server, workers and a chief on this machine, and return the exit code."""
    parallel = settings.parallel
    gpus = choose_gpus(parallel.gpus)
    workers = parallel.local_workers or parallel.towers or len(gpus) or LOCAL_WORKERS
    ps, chief, *hosts = free_addresses(2 + workers)
    common = for_one_process(
        settings, worker_hosts=",".join(hosts), ps_hosts=ps, chief_host=chief, task_index=0, towers=None
    )
    worker_gpus = divide_gpus(gpus, workers)
    warn_without_gpu(gpus)
    server = for_one_process(common, job_name=PS)
    jobs = [Job("ps 0", run_process, (server, None), parallel.restarts, quiet=True, server=True)]
    for i, flag in enumerate(worker_gpus):
        worker = for_one_process(common, job_name=WORKER, task_index=i, gpus=flag)
        jobs.append(Job(f"worker {i}", run_process, (worker, None), WORKER_RESTARTS, quiet=True, server=True))
    jobs.append(Job("chief", run_process, (for_one_process(common, job_name=CHIEF),), parallel.restarts))
    return run_jobs(jobs)


def divide_gpus(gpus: list[Gpu], workers: int) -> list[str | None]:
    """Return the value of --gpus for each worker process on this machine.

    Raises:
        UserError: If the GPUs cannot be divided evenly among the workers.
    """
    if len(gpus) % workers:
        worker_count = pluralize(workers, "worker")
        raise UserError(
            f"{pluralize(len(gpus), 'GPU')} cannot be divided evenly among {worker_count}; select some with --gpus"
        )
    if any(gpu.is_instance for gpu in gpus):
        return [None] * workers  # A MIG instance is selected by CUDA_VISIBLE_DEVICES instead of --gpus.
    return [",".join(str(gpu.number) for gpu in gpus[i::workers]) or None for i in range(workers)]


def select_gpus(settings: Settings) -> list[Gpu]:
    """Return the GPUs that this process trains on. Raises UserError if --gpus or --towers is invalid."""
    return choose_gpus(settings.parallel.gpus, settings.parallel.towers)


def for_one_process(settings: Settings, **changes: Any) -> Settings:
    """Return the settings of a child process, without the flags that would start further processes."""
    return replace(settings, local_workers=None, restarts=0, **changes)


def run_process(settings: Settings, peer_timeout: float | None = PEER_TIMEOUT) -> int:
    """Run one process of a cluster, or the only process of a run.

    Args:
        settings: The settings of the process.
        peer_timeout: See `serve`.

    Returns:
        The exit code.
    """
    cluster = find_cluster(settings.parallel)
    if cluster is not None and settings.parallel.asynchronous and cluster.job != CHIEF:
        return serve(settings, cluster, peer_timeout)
    return train_here(settings, cluster).exit_code


def serve(settings: Settings, cluster: Cluster, peer_timeout: float | None) -> int:
    """Run a worker or parameter server of an asynchronous cluster.

    Args:
        settings: The settings of the process.
        cluster: The cluster, as seen from this process.
        peer_timeout: The process exits if the chief has not responded for this many seconds. With None, it runs until
            the parent process terminates it.
    """
    on_gpu = cluster.job == WORKER
    gpus = choose_gpus(settings.parallel.gpus)[:1] if on_gpu else []
    if on_gpu and not cluster.index and peer_timeout is not None:  # A parent process would print this warning itself.
        warn_without_gpu(gpus)
    towers = open_towers(gpus, None)
    if on_gpu:
        print(table(towers))
    import tensorflow as tf

    def exit_after_chief(_: str) -> None:
        print("The chief has exited.", flush=True)
        os._exit(0)

    server = tf.distribute.Server(cluster.hosts, job_name=cluster.job, task_index=cluster.index, protocol="grpc")
    print(f"{cluster.job} {cluster.index} is listening on {cluster.own}.", flush=True)
    if peer_timeout is not None and cluster.chief is not None:
        limit = 60 * settings.parallel.start_timeout
        Peers({CHIEF: cluster.chief}, exit_after_chief, timeout=peer_timeout, limit=limit).start()
    server.join()
    return 0


def train_here(settings: Settings, cluster: Cluster | None = None) -> TrainingResult:
    """Train in this process. Settings and data are checked first, before TensorFlow is imported.

    Raises:
        UserError: If the settings, the data or the devices cannot be used.
    """
    settings = with_deadline(settings)
    chief = cluster is None or cluster.index == 0
    if chief:
        check_client(settings.run.report_to)
    gpus = select_gpus(settings)  # Checks --gpus before the data are read.
    needs_lock = chief and not settings.run.dry_run
    with quiet(settings.run.quiet), attempt_lock(settings) if needs_lock else contextlib.nullcontext():
        machines = 1 if cluster is None else len(cluster.workers)
        data = prepare(settings, read_probe(settings.run.probe) if chief else (), len(gpus) * machines)
        settings = replace(settings, **data.chosen)
        if cluster is None:
            return train_on(settings, data, open_and_print_towers(settings, gpus))
        workers = pluralize(len(cluster.workers), "worker")
        print(f"This process is {cluster.job} {cluster.index} in a cluster with {workers}, as set by {cluster.source}.")
        if settings.parallel.asynchronous:
            return train_as_chief(settings, data, cluster)
        return train_as_worker(settings, data, open_and_print_towers(settings, gpus), cluster)


def train_as_worker(settings: Settings, data: Data, towers: list[Tower], cluster: Cluster) -> TrainingResult:
    """Train as one worker of a synchronous cluster."""
    from chatbot.training.machines.meeting import meet, shared_facts
    from chatbot.training.machines.team import join

    parallel = settings.parallel
    facts = shared_facts(settings, data, towers)
    cluster = meet(cluster, facts, 60 * parallel.start_timeout, parallel.least_workers)
    if len(cluster.workers) == 1:
        return train_on(settings, data, towers)
    peers = Peers(cluster.others, lambda name: peers.exit_process(f"{name} ({cluster.others[name]}) was lost"))
    with peers.errors():
        team = join(cluster, peers, towers)
        workers = pluralize(team.machines, "worker")
        print(f"Synchronous training on {workers} with {pluralize(len(towers), 'tower')} each.")
        return train_on(settings, data, towers, team)


def train_as_chief(settings: Settings, data: Data, cluster: Cluster) -> TrainingResult:
    """Train as the chief of an asynchronous cluster."""
    open_towers([], None)  # The chief uses no GPU, because it does not train; it validates on the CPU.
    from chatbot.training.asynchronous import CHIEF_DEVICE
    from chatbot.training.machines.team import Team, connect

    def lost(name: str) -> None:
        address = cluster.others[name]
        if name.startswith(PS):
            peers.exit_process(f"{name} ({address}) was lost, and with it the newest weights")
        print_status(f"\n{name} ({address}) does not answer; the other workers continue without it until it returns.")

    peers = Peers(cluster.others, lost, limit=60 * settings.parallel.start_timeout)
    peers.start()
    with peers.errors():
        coordinator = connect(cluster, peers)
        workers = len(cluster.workers)
        servers = len(cluster.ps)
        print(f"Asynchronous training on {pluralize(workers, 'worker')}; {pluralize(servers, 'parameter server')}.")
        team = Team(leave=peers.stop, coordinator=coordinator, workers_and_servers=(workers, servers))
        return train_on(settings, data, [Tower(CHIEF, CHIEF_DEVICE, cpu_name(), None)], team)


def train_on(settings: Settings, data: Data, towers: list[Tower], team: Any = None) -> TrainingResult:
    """Train on the devices of this machine, or estimate memory and time with --dry-run.

    Args:
        settings: The settings of the run.
        data: The pairs and their vocabulary.
        towers: The towers of this machine.
        team: The machines of the run; None for a single machine.
    """
    from chatbot.training.devices.failures import device_errors
    from chatbot.training.dry_run import dry_run
    from chatbot.training.loop import train
    from chatbot.training.machines.team import ALONE
    from chatbot.training.run import open_run

    with device_errors(towers):
        run = open_run(settings, data, towers, team or ALONE)
        return dry_run(run) if settings.run.dry_run else train(run)


def open_and_print_towers(settings: Settings, gpus: list[Gpu], min_towers: int = 1) -> list[Tower]:
    """Create the towers of this machine, and print a table of them.

    A tower is a device, or a part of a device, that computes the gradients of one part of each batch.

    Args:
        settings: The settings of the run.
        gpus: The GPUs to use.
        min_towers: The minimum number of towers, unless --towers is used.
    """
    parallel = settings.parallel
    if not parallel.selftest and not parallel.task_index:  # Only the first of several processes prints this warning.
        warn_without_gpu(gpus)
    for number, reason in silent_gpus().items():
        print(f"GPU {number} does not answer and is skipped: {reason}", file=sys.stderr)
    count = parallel.towers or (min_towers if len(gpus) < min_towers else None)
    towers = open_towers(gpus, count)
    if settings.learning.deterministic:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    print(table(towers))
    if parallel.model_parallel:
        towers = spread(towers)
        text = "tower {}: encoder on {}, decoder and attention on {}, embedding, projection and loss on {}"
        for i, tower in enumerate(towers):
            print(text.format(i, *tower.parts or ()))
    return towers

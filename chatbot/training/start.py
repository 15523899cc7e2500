"""Start of a run: starts its processes, and in each prepares data, devices and machines, and trains."""

import contextlib
import os
import sys
import time
from typing import Any

from chatbot.attempts.opening import attempt_lock
from chatbot.config.parallel import ParallelSettings
from chatbot.config.run import check_client, seconds_of
from chatbot.config.training import Settings
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.quiet import quiet
from chatbot.training.data import Data, prepare, read_probe
from chatbot.training.devices.gpus import Gpu, find_gpus, silent_gpus, warn_without_gpu
from chatbot.training.devices.towers import Tower, choose_gpus, cpu_name, open_towers, spread, table
from chatbot.training.machines.cluster import CHIEF, PS, WORKER, Cluster, check_port, cluster_of, free_addresses
from chatbot.training.machines.peers import PEER_TIMEOUT, Peers, print_status
from chatbot.training.machines.processes import Job, run_jobs
from chatbot.training.result import TrainingResult

# --asynchronous without host flags: the number of workers without --local-workers, --towers and GPUs, and their
# restarts.
LOCAL_WORKERS = 2
WORKER_RESTARTS = 20
WINDOWS = os.name == "nt"


def start(settings: Settings) -> int:
    """Run train.py with these settings and return its exit code. Raises UserError."""
    settings = with_deadline(settings)
    if settings.parallel.selftest:
        if settings.run.dry_run:
            raise UserError("--dry-run and --selftest exclude each other; leave out one of the two")
        towers = open_and_print_towers(settings, chosen_gpus(settings), fewest=2)
        from chatbot.training.selftest import selftest

        return selftest(settings, towers)
    parallel = settings.parallel
    cluster = checked_cluster(settings)
    if parallel.asynchronous and cluster is None:
        return run_local_asynchronous(settings)
    if parallel.local_workers is not None:
        return run_local_workers(settings, parallel.local_workers)
    if parallel.restarts:
        # A server waits for a chief that may be started again.
        arguments = for_one_process(settings), 60 * parallel.start_timeout
        return run_jobs([Job("training", run_process, arguments, parallel.restarts)])
    return run_process(settings)


def with_deadline(settings: Settings) -> Settings:
    """Return the settings with the time at which --time-limit is over, counted from now unless it is there already."""
    run = settings.run
    if run.time_limit is None or run.deadline is not None:
        return settings
    return replace(settings, deadline=time.time() + seconds_of(run.time_limit))


def starts_processes(parallel: ParallelSettings) -> bool:
    """Return whether the settings start processes, or serve other machines."""
    return bool(parallel.local_workers is not None or parallel.asynchronous or parallel.restarts)


def checked_cluster(settings: Settings) -> Cluster | None:
    """Return the cluster of the settings; None for a single machine.

    Raises UserError, once and not in each process, for settings that exclude each other and a port that is in use.
    """
    parallel = settings.parallel
    run = settings.run
    cluster = cluster_of(parallel)
    if starts_processes(parallel) or cluster is not None:  # they need POSIX's signals and process groups
        reason = "--dry-run plans one machine" if run.dry_run else "not on Windows" if WINDOWS else ""
        if reason:
            raise UserError(f"{reason}: leave out --local-workers, --asynchronous, --restarts and other machines")
    if cluster is None:
        check_client(run.report_to)  # here, too, to report an error before processes are started
    elif parallel.local_workers is not None:
        raise UserError(f"--local-workers: {cluster.source} names machines already; leave it out")
    else:
        check_port(cluster)
    return cluster


def run_local_workers(settings: Settings, workers: int) -> int:
    """Run a synchronous cluster of processes on this machine. Return the exit code."""
    hosts = ",".join(free_addresses(workers))
    jobs = []
    visible = choose_gpus(settings.parallel.gpus, None, find_gpus())
    for i, gpus in enumerate(divide_gpus(visible, workers)):
        worker = for_one_process(settings, worker_hosts=hosts, task_index=i, gpus=gpus)
        jobs.append(Job(f"worker {i}", run_process, (worker,), settings.parallel.restarts, quiet=i > 0))
    return run_jobs(jobs)


def run_local_asynchronous(settings: Settings) -> int:
    """Run an asynchronous cluster on this machine: a parameter server, workers and the chief. Return the exit code."""
    parallel = settings.parallel
    gpus = choose_gpus(parallel.gpus, None, find_gpus())
    workers = parallel.local_workers or parallel.towers or len(gpus) or LOCAL_WORKERS
    ps, chief, *hosts = free_addresses(2 + workers)
    common = for_one_process(
        settings, worker_hosts=",".join(hosts), ps_hosts=ps, chief_host=chief, task_index=0, towers=None
    )
    gpus_of_workers = divide_gpus(gpus, workers)
    warn_without_gpu(gpus)
    server = for_one_process(common, job_name=PS)
    jobs = [Job("ps 0", run_process, (server, None), parallel.restarts, quiet=True, server=True)]
    for i, gpus_of_worker in enumerate(gpus_of_workers):
        worker = for_one_process(common, job_name=WORKER, task_index=i, gpus=gpus_of_worker)
        jobs.append(Job(f"worker {i}", run_process, (worker, None), WORKER_RESTARTS, quiet=True, server=True))
    jobs.append(Job("chief", run_process, (for_one_process(common, job_name=CHIEF),), parallel.restarts))
    return run_jobs(jobs)


def divide_gpus(gpus: list[Gpu], workers: int) -> list[str | None]:
    """Return the --gpus of each worker process of this machine. Raises UserError for an uneven division."""
    if len(gpus) % workers:
        among = counted(workers, "worker")
        raise UserError(f"{counted(len(gpus), 'GPU')} cannot be divided evenly among {among}; select some with --gpus")
    if any(gpu.is_instance for gpu in gpus):
        return [None] * workers  # a single instance and worker, which reads the same CUDA_VISIBLE_DEVICES
    return [",".join(str(gpu.number) for gpu in gpus[i::workers]) or None for i in range(workers)]


def chosen_gpus(settings: Settings) -> list[Gpu]:
    """Return the GPUs that this process trains on. Raises UserError for a wrong --gpus or --towers."""
    return choose_gpus(settings.parallel.gpus, settings.parallel.towers, find_gpus())


def for_one_process(settings: Settings, **changes: Any) -> Settings:
    """Return the settings of a child process, without the settings that start child processes."""
    return replace(settings, local_workers=None, restarts=0, **changes)


def run_process(settings: Settings, peer_timeout: float | None = PEER_TIMEOUT) -> int:
    """Serve an asynchronous cluster, or train, in this process. Return the exit code. peer_timeout: see `serve`."""
    cluster = cluster_of(settings.parallel)
    if cluster is not None and settings.parallel.asynchronous and cluster.job != CHIEF:
        return serve(settings, cluster, peer_timeout)
    return train_here(settings, cluster).exit_code


def serve(settings: Settings, cluster: Cluster, peer_timeout: float | None) -> int:
    """Run a worker or a server until the chief has not answered for these seconds; None: until the parent ends it."""
    on_gpu = cluster.job == WORKER
    gpus = choose_gpus(settings.parallel.gpus, None, find_gpus())[:1] if on_gpu else []
    if on_gpu and not cluster.index and peer_timeout is not None:  # else the parent prints it
        warn_without_gpu(gpus)
    towers = open_towers(gpus, None)
    if on_gpu:
        print(table(towers))
    import tensorflow as tf

    def exit_after_chief(_: str) -> None:
        print("The chief has ended.", flush=True)
        os._exit(0)

    server = tf.distribute.Server(cluster.hosts, job_name=cluster.job, task_index=cluster.index, protocol="grpc")
    print(f"{cluster.job} {cluster.index} serves at {cluster.own}.", flush=True)
    if peer_timeout is not None and cluster.chief is not None:
        limit = 60 * settings.parallel.start_timeout
        Peers({CHIEF: cluster.chief}, exit_after_chief, timeout=peer_timeout, limit=limit).start()
    server.join()
    return 0


def train_here(settings: Settings, cluster: Cluster | None = None) -> TrainingResult:
    """Train in this process. TensorFlow is imported after settings and data are checked. Raises UserError."""
    settings = with_deadline(settings)
    chief = cluster is None or cluster.index == 0
    if chief:
        check_client(settings.run.report_to)
    gpus = chosen_gpus(settings)  # reports a wrong --gpus at once
    locks = chief and not settings.run.dry_run
    with quiet(settings.run.quiet), attempt_lock(settings) if locks else contextlib.nullcontext():
        data = prepare(settings, read_probe(settings.run.probe) if chief else ())
        settings = replace(settings, **data.chosen)
        if cluster is None:
            return train_on(settings, data, open_and_print_towers(settings, gpus))
        print(f"{cluster.job} {cluster.index} of {len(cluster.workers)} workers, by {cluster.source}.")
        if settings.parallel.asynchronous:
            return train_as_chief(settings, data, cluster)
        return train_as_worker(settings, data, open_and_print_towers(settings, gpus), cluster)


def train_as_worker(settings: Settings, data: Data, towers: list[Tower], cluster: Cluster) -> TrainingResult:
    """Train as one worker of a synchronous cluster."""
    from chatbot.training.machines.meeting import facts_of, meet
    from chatbot.training.machines.team import join

    parallel = settings.parallel
    facts = facts_of(settings, data, towers)
    cluster = meet(cluster, facts, 60 * parallel.start_timeout, parallel.least_workers)
    if len(cluster.workers) == 1:
        return train_on(settings, data, towers)
    peers = Peers(cluster.others, lambda name: peers.exit_process(f"{name} ({cluster.others[name]}) was lost"))
    with peers.errors():
        team = join(cluster, peers, towers)
        workers = counted(team.machines, "worker")
        print(f"Synchronous training on {workers} with {counted(len(towers), 'tower')} each.")
        return train_on(settings, data, towers, team)


def train_as_chief(settings: Settings, data: Data, cluster: Cluster) -> TrainingResult:
    """Train as the chief of an asynchronous cluster."""
    open_towers([], None)  # the chief only validates, on the CPU
    from chatbot.training.asynchronous import CHIEF_DEVICE
    from chatbot.training.machines.team import Team, connect

    def lost(name: str) -> None:
        address = cluster.others[name]
        if name.startswith(PS):
            peers.exit_process(f"{name} ({address}) was lost, and with it the newest weights")
        print_status(f"\n{name} ({address}) does not answer; the others go on without it until it is back.")

    peers = Peers(cluster.others, lost, limit=60 * settings.parallel.start_timeout)
    peers.start()
    with peers.errors():
        coordinator = connect(cluster, peers)
        workers = len(cluster.workers)
        servers = len(cluster.ps)
        print(f"Asynchronous training on {counted(workers, 'worker')}; {counted(servers, 'parameter server')}.")
        team = Team(leave=peers.stop, coordinator=coordinator, workers_and_servers=(workers, servers))
        return train_on(settings, data, [Tower(CHIEF, CHIEF_DEVICE, cpu_name(), None)], team)


def train_on(settings: Settings, data: Data, towers: list[Tower], team: Any = None) -> TrainingResult:
    """Train on the towers of this machine, or with --dry-run plan to. team: None for a single machine."""
    from chatbot.training.devices.failures import device_errors
    from chatbot.training.dry_run import dry_run
    from chatbot.training.loop import train
    from chatbot.training.machines.team import ALONE
    from chatbot.training.run import open_run

    with device_errors(towers):
        run = open_run(settings, data, towers, team or ALONE)
        return dry_run(run) if settings.run.dry_run else train(run)


def open_and_print_towers(settings: Settings, gpus: list[Gpu], fewest: int = 1) -> list[Tower]:
    """Create and print the towers of this machine. fewest: their number with fewer GPUs and no --towers."""
    parallel = settings.parallel
    if not parallel.selftest and not parallel.task_index:  # the first of several processes prints it
        warn_without_gpu(gpus)
    for number, reason in silent_gpus().items():
        print(f"GPU {number} does not answer, and is left out: {reason}", file=sys.stderr)
    count = parallel.towers or (fewest if len(gpus) < fewest else None)
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

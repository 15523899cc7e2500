"""From settings to running processes: data, devices, machines, training."""

import contextlib
import sys
from typing import Any

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.training.attempt import attempt_lock
from chatbot.training.data import Data, prepare
from chatbot.training.devices import Gpu, Tower, choose_gpus, find_gpus, open_towers, table
from chatbot.training.machines.cluster import (
    CHIEF,
    PS,
    WORKER,
    Cluster,
    check_addresses,
    cluster_of,
    free_addresses,
)
from chatbot.training.machines.processes import Job, run_jobs
from chatbot.training.machines.servers import connect, serve
from chatbot.training.machines.watch import PATIENCE, Watch, say
from chatbot.training.model_parallel import plan, spread

# --asynchronous alone: so many workers where neither flags nor GPUs say, started again so often.
LOCAL_WORKERS, WORKER_RESTARTS = 2, 20


def start(settings: Settings) -> int:
    """What train.py does with its settings; returns its exit code. Raises UserError."""
    if settings.parallel.selftest:
        towers = devices(settings, fewest=2)
        from chatbot.training.selftest import selftest

        return selftest(settings, towers)
    cluster = cluster_of(settings.parallel)  # what is wrong with it is said once, before processes are started
    if cluster is not None and settings.parallel.local_workers is not None:
        raise UserError("--local-workers: TF_CONFIG names machines already; leave it out, or unset TF_CONFIG")
    if settings.parallel.asynchronous and cluster is None:
        return run_local_servers(settings)
    if settings.parallel.local_workers is not None:
        return run_local(settings, settings.parallel.local_workers)
    if settings.parallel.restarts:
        # A server stays for a chief that may be started again.
        return run_jobs(
            [Job("training", train_here, (_once(settings), settings.parallel.start_limit), settings.parallel.restarts)]
        )
    return train_here(settings)


def run_local(settings: Settings, workers: int) -> int:
    """A synchronous cluster of processes on this machine."""
    told = _once(settings, worker_hosts=",".join(free_addresses(workers)))
    jobs = [
        Job(f"worker {i}", train_here, (_once(told, task_index=i, gpus=gpus),), settings.parallel.restarts, quiet=i > 0)
        for i, gpus in enumerate(shared_gpus(settings, workers))
    ]
    return run_jobs(jobs)


def run_local_servers(settings: Settings) -> int:
    """An asynchronous cluster of processes on this machine: a parameter server, workers and the chief."""
    workers = (
        settings.parallel.local_workers or settings.parallel.towers or len(visible_gpus(settings)) or LOCAL_WORKERS
    )
    ps, chief, *hosts = free_addresses(2 + workers)
    told = _once(settings, worker_hosts=",".join(hosts), ps_hosts=ps, chief_host=chief, task_index=0, towers=None)
    jobs = [
        Job("ps 0", train_here, (_once(told, job_name=PS), None), settings.parallel.restarts, quiet=True, server=True)
    ]
    for i, gpus in enumerate(shared_gpus(settings, workers)):
        worker = _once(told, job_name=WORKER, task_index=i, gpus=gpus)
        jobs.append(Job(f"worker {i}", train_here, (worker, None), WORKER_RESTARTS, quiet=True, server=True))
    jobs.append(Job("chief", train_here, (_once(told, job_name=CHIEF),), settings.parallel.restarts))
    return run_jobs(jobs)


def shared_gpus(settings: Settings, workers: int) -> list[str | None]:
    """--gpus for each worker process of this machine. Raises UserError when they cannot be shared out evenly."""
    gpus = visible_gpus(settings)
    if len(gpus) % workers:
        raise UserError(f"{len(gpus)} GPUs cannot be shared out among {workers} workers; name some with --gpus")
    return [",".join(str(gpu.number) for gpu in gpus[i::workers]) or None for i in range(workers)]


def visible_gpus(settings: Settings) -> list[Gpu]:
    """Those of this machine that the run may use. Raises UserError for GPUs that are not there."""
    return choose_gpus(settings.parallel.gpus, None, find_gpus())


def _once(settings: Settings, **told: Any) -> Settings:
    """The settings of one process, that starts no others."""
    return replace(settings, local_workers=None, restarts=0, **told)


def train_here(settings: Settings, patience: float | None = PATIENCE) -> int:
    """Be what the settings say, in this process: train alone, be one of a cluster, or serve one.

    TensorFlow is imported once settings and data are right. patience: see `serve`.
    """
    cluster = cluster_of(settings.parallel)
    if cluster is not None:
        check_addresses(cluster)
        if settings.parallel.asynchronous and cluster.job != CHIEF:
            return serve(settings, cluster, patience)
    # A wrong --gpus is reported before pairs are encoded.
    choose_gpus(settings.parallel.gpus, settings.parallel.towers, find_gpus())
    data = prepare(settings)
    with attempt_lock(settings) if cluster is None or cluster.index == 0 else contextlib.nullcontext():
        if cluster is not None and settings.parallel.asynchronous:
            return train_asynchronously(settings, data, cluster)
        towers = devices(settings)
        if cluster is not None:
            return train_together(settings, data, towers, cluster)
        from chatbot.training.trainer import train
        from chatbot.training.variable_update.choose import open_update

        return train(settings, data, towers[0].device, lambda model: open_update(model, settings, towers))


def train_together(settings: Settings, data: Data, towers: list[Tower], cluster: Cluster) -> int:
    """Train as one worker of a synchronous cluster."""
    import tensorflow as tf

    from chatbot.training.machines.ring import compare, join
    from chatbot.training.trainer import train
    from chatbot.training.variable_update.choose import open_update

    watch = Watch(cluster.others, settings.parallel.start_limit)
    watch.start()
    try:
        team = join(cluster, watch)
        compare(team, settings, data, towers)
        print(f"{team.machines} workers with {len(towers)} towers each train together.")
        return train(settings, data, towers[0].device, lambda model: open_update(model, settings, towers, team), team)
    except tf.errors.OpError as error:
        watch.explain(error)
        raise


def train_asynchronously(settings: Settings, data: Data, cluster: Cluster) -> int:
    """Train as the chief of an asynchronous cluster."""
    open_towers([], None, settings.parallel.log_device_placement)  # the chief computes little: validation, on the CPU
    import tensorflow as tf

    from chatbot.training.machines.team import Team
    from chatbot.training.trainer import train
    from chatbot.training.variable_update.asynchronous import HERE, Asynchronous

    def lost(name: str) -> None:
        address = cluster.others[name]
        if name.startswith(PS):
            watch.leave(f"{name} ({address}) was lost, and with it the newest weights")
        say(f"\n{name} ({address}) does not answer; the others go on without it until it is back.")

    watch = Watch(cluster.others, settings.parallel.start_limit, lost)
    watch.start()
    try:
        coordinator = connect(cluster, watch)
        workers, servers = len(cluster.workers), len(cluster.ps)
        print(f"{workers} workers train without waiting for each other; {servers} parameter servers.")
        return train(
            settings,
            data,
            HERE,
            lambda model: Asynchronous(model, settings.learning, coordinator, workers, servers),
            Team(leave=watch.stop),
        )
    except tf.errors.OpError as error:
        watch.explain(error)
        raise


def devices(settings: Settings, fewest: int = 1) -> list[Tower]:
    """The towers of this machine, printed."""
    gpus = choose_gpus(settings.parallel.gpus, settings.parallel.towers, find_gpus())
    if (
        not gpus and not settings.parallel.selftest and not settings.parallel.task_index
    ):  # of several processes here the first says it
        print("NO GPU: training on the CPU, many times slower than on a GPU.", file=sys.stderr)
    count = settings.parallel.towers or (fewest if len(gpus) < fewest else None)
    towers = open_towers(gpus, count, settings.parallel.log_device_placement)
    print(table(towers))
    if settings.parallel.model_parallel:
        towers = spread(towers)
        print(plan(towers))
    return towers

"""From settings to running processes: data, devices, machines, training."""

import contextlib
import dataclasses
import sys

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.training.attempt import attempt_lock
from chatbot.training.data import Data, prepare
from chatbot.training.devices import Tower, choose_gpus, find_gpus, open_towers, table
from chatbot.training.machines.cluster import Cluster, check_addresses, cluster_of, free_addresses
from chatbot.training.machines.processes import Job, run_jobs
from chatbot.training.machines.watch import Watch
from chatbot.training.model_parallel import plan, spread


def start(settings: Settings) -> int:
    """What train.py does with its settings; returns its exit code. Raises UserError."""
    if settings.selftest:
        towers = devices(settings, fewest=2)
        from chatbot.training.selftest import selftest

        return selftest(settings, towers)
    cluster_of(settings)  # what is wrong with it is said once, before processes are started
    if settings.local_workers is not None:
        return run_local(settings, settings.local_workers)
    if settings.restarts:
        alone = dataclasses.replace(settings, restarts=0)
        return run_jobs([Job("training", train_here, (alone,))], settings.restarts)
    return train_here(settings)


def run_local(settings: Settings, workers: int) -> int:
    """A cluster of processes on this machine, each with its share of the GPUs."""
    gpus = choose_gpus(settings.gpus, None, find_gpus())
    if len(gpus) % workers:
        raise UserError(
            f"--local-workers {workers}: {len(gpus)} GPUs cannot be shared out evenly; name some with --gpus"
        )
    shares = [",".join(str(gpu.number) for gpu in gpus[i::workers]) or None for i in range(workers)]
    told = dataclasses.replace(settings, local_workers=None, restarts=0, worker_hosts=",".join(free_addresses(workers)))
    jobs = [
        Job(f"worker {i}", train_here, (dataclasses.replace(told, task_index=i, gpus=share),), quiet=i > 0)
        for i, share in enumerate(shares)
    ]
    return run_jobs(jobs, settings.restarts)


def train_here(settings: Settings) -> int:
    """Train in this process, alone or as one of a cluster. TensorFlow is imported once settings and data are right."""
    cluster = cluster_of(settings)
    if cluster is not None:
        check_addresses(cluster)
    data = prepare(settings)
    towers = devices(settings)
    if cluster is not None:
        return train_together(settings, data, towers, cluster)
    from chatbot.training.trainer import train

    with attempt_lock(settings):
        return train(settings, data, towers)


def train_together(settings: Settings, data: Data, towers: list[Tower], cluster: Cluster) -> int:
    """Train as one worker of a synchronous cluster."""
    import tensorflow as tf

    from chatbot.training.machines.ring import compare, join
    from chatbot.training.trainer import train

    watch = Watch(cluster.others, settings.start_limit)
    with attempt_lock(settings) if cluster.index == 0 else contextlib.nullcontext():
        watch.start()
        try:
            team = join(cluster, watch.stop)
            compare(team, settings, data, towers)
            print(f"{team.machines} workers with {len(towers)} towers each train together.")
            return train(settings, data, towers, team)
        except tf.errors.OpError as error:
            watch.explain(error)
            raise


def devices(settings: Settings, fewest: int = 1) -> list[Tower]:
    """The towers of this machine, printed."""
    gpus = choose_gpus(settings.gpus, settings.towers, find_gpus())
    if not gpus and not settings.selftest:
        print("NO GPU: training on the CPU, many times slower than on a GPU.", file=sys.stderr)
    count = settings.towers or (fewest if len(gpus) < fewest else None)
    towers = open_towers(gpus, count, settings.log_device_placement)
    print(table(towers))
    if settings.model_parallel:
        towers = spread(towers)
        print(plan(towers))
    return towers

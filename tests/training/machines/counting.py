"""An asynchronous cluster whose gradients are all 1: every step lowers every weight by 1.

`python -m tests.training.machines.counting` trains until the file `stop` exists, then writes counts.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

from chatbot.config.training import Settings
from chatbot.errors import exit_code_of
from chatbot.flags import compose, replace
from chatbot.training.devices.towers import open_towers
from chatbot.training.machines.cluster import CHIEF, PS, WORKER, find_cluster, free_addresses
from chatbot.training.machines.peers import Peers
from chatbot.training.machines.processes import Job, run_jobs
from chatbot.training.start import run_process

SERVERS, WORKERS = 2, 2


def main() -> int:
    """Run the processes of --asynchronous, with two parameter servers and `count_steps` as the chief."""
    *hosts, chief = free_addresses(SERVERS + WORKERS + 1)
    shared = compose(
        Settings,
        rnn_size=16,
        embedding_size=8,
        optimizer="sgd",
        max_gradient_norm=1e9,
        asynchronous=True,
        ps_hosts=",".join(hosts[:SERVERS]),
        worker_hosts=",".join(hosts[SERVERS:]),
        chief_host=chief,
        task_index=0,
    )
    jobs = []
    for job, count, restarts in ((PS, SERVERS, 0), (WORKER, WORKERS, 20)):
        for i in range(count):
            settings = replace(shared, job_name=job, task_index=i)
            jobs.append(Job(f"{job} {i}", run_process, (settings, None), restarts, quiet=True, server=True))
    return run_jobs([*jobs, Job(CHIEF, count_steps, (replace(shared, job_name=CHIEF),))])


def count_steps(settings: Settings) -> int:
    """Train, then write the numbers of steps, results and updates to counts.json."""
    open_towers([], None)
    import numpy as np
    import tensorflow as tf

    from chatbot.corpus.batches import GlobalBatch, pad_batch
    from chatbot.training import asynchronous
    from chatbot.training.gradients import Sums
    from chatbot.training.machines.team import connect
    from chatbot.training.new_model import build_model
    from chatbot.training.selftest import VOCABULARY, random_pairs

    def constant_gradients(*_: Any) -> Any:
        def gradients(weights: list[tf.Tensor], share: Any, _: None) -> Sums:
            *groups, embedding = weights
            rows = tf.zeros([tf.shape(share.lookup_ids)[0], embedding.shape[1]])
            ones = [tf.ones_like(weight) for weight in groups]
            return Sums(tf.constant(1.0), tf.constant(1.0), [tf.ones_like(embedding)], ones, rows)

        return gradients

    vars(asynchronous)["gradient_function"] = constant_gradients
    cluster = find_cluster(settings.parallel)
    assert cluster is not None
    watch = Peers(cluster.others, lambda name: None)
    watch.start()
    coordinator = connect(cluster, watch)
    with tf.device(asynchronous.CHIEF_DEVICE):
        model = build_model(settings.model, VOCABULARY, settings.learning.seed)
    update = asynchronous.Asynchronous(model, settings.learning, coordinator, WORKERS, SERVERS)
    update.scatter_state(update.gather_state())
    before = [variable.numpy() for variable in model.trainable_variables]
    batch = GlobalBatch((pad_batch(random_pairs(4, 1), np.arange(4), 12, 12),), 4, np.arange(VOCABULARY))
    number, results = 0, 0.0
    while not Path("stop").exists():
        update(update.prepare(batch, number), 1.0)
        number += 1
        if number % 20 == 0:
            results += sum(float(result.loss_sums.sum()) for result in update.finished_steps())
            Path("steps").write_text(str(number))
    update.gather_state()
    results += sum(float(result.loss_sums.sum()) for result in update.finished_steps())
    decrease = [old - new.numpy() for old, new in zip(before, model.trainable_variables, strict=True)]
    counts = {
        "steps": number,
        "results": results,
        "updates": [int(server.updates.numpy()) for server in update.servers],
        "weights": [len(server.weights) for server in update.servers],
        "smallest_decrease": min(float(x.min()) for x in decrease),
        "largest_decrease": max(float(x.max()) for x in decrease),
    }
    Path("counts.json").write_text(json.dumps(counts))
    watch.stop()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))

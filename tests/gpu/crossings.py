"""The copies that steps on stand-in GPUs make, which the static count of `benchmarks crossings` must predict."""

import tensorflow as tf

from benchmarks.crossings import UPDATES, CrossingsBenchmark, opened_step
from chatbot.flags import replace
from chatbot.training.devices.towers import choose_gpus, open_towers
from tests.gpu import standin

VOCABULARY = 300
BENCHMARK = CrossingsBenchmark(rnn_size=8, embedding_size=4, vocabulary_size=VOCABULARY, batch_size=8, max_length=9)
SETTINGS = replace(BENCHMARK.settings, num_layers=1)
STEPS: dict[str, tuple[int, str, dict[str, str]]] = {
    "1 float32": (1, "float32", {}),
    "1 float16": (1, "float16", {}),
    **{" ".join(update.values()): (4, "float32", update) for update in UPDATES},
}
DIRECTIONS = ("device_to_host", "host_to_device", "device_to_device")


def real_copies() -> dict[str, dict[str, int]]:
    """Return the copies of each step, of all GPUs together. The batch has been prepared, and the graph traced."""
    gpus = open_towers(choose_gpus(), None)
    copies = {}
    for i, (name, (towers, precision, changes)) in enumerate(STEPS.items()):
        opened = opened_step(replace(SETTINGS, **changes), VOCABULARY, gpus[:towers], precision)
        update, batch = opened.update, opened.first_batch()
        prepared = [update.prepare(batch, number) for number in range(3)]
        for of_step in prepared:
            update.preparation.device_shares(of_step)
        for number in range(2):  # one graph, once a batch of this size has not run out of memory
            update(prepared[number], 0.1)
        tf.test.experimental.sync_devices()
        before = [standin.counts(gpu) for gpu in range(towers)]
        update(prepared[2], 0.2 + i)  # TensorFlow keeps the copies of a number that it has seen
        tf.test.experimental.sync_devices()
        counts = [standin.counts(gpu).since(earlier) for gpu, earlier in enumerate(before)]
        copies[name] = {direction: sum(getattr(count, direction) for count in counts) for direction in DIRECTIONS}
    return copies

"""`chatbot.train` in a thread, as a framework calls it, as a worker of TF_CONFIG; prints the result.

`python -m tests.training.machines.in_thread TF_CONFIG FOLDER FAILS` trains in a folder; with FAILS, a step fails.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chatbot
from chatbot.corpus import batches
from chatbot.corpus.batches import Batch, pad_batch


def with_unknown_ids(pairs: Any, rows: Any, *lengths: int) -> Batch:
    """As `pad_batch`, with ids that are not in the vocabulary."""
    batch = pad_batch(pairs, rows, *lengths)
    batch.source[:] = 10**6
    return batch


if __name__ == "__main__":
    config, folder, fails = sys.argv[1:]
    os.environ["TF_CONFIG"] = config
    data = Path("pairs.tsv").absolute()
    os.mkdir(folder)
    os.chdir(folder)
    if fails:
        vars(batches)["pad_batch"] = with_unknown_ids
    sizes = {"rnn_size": 16, "embedding_size": 8, "vocabulary_size": 300, "precision": "float32"}
    with ThreadPoolExecutor(1) as threads:
        print(threads.submit(chatbot.train, data=data, steps=3, **sizes).result(), flush=True)

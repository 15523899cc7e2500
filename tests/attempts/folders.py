"""Attempts as small folders in checkpoints/, without training."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.attempts.checkpoint import write_checkpoint
from chatbot.attempts.opening import write_attempt
from chatbot.attempts.trained import weights_of
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.durable import write_json
from chatbot.flags import compose
from chatbot.model.seq2seq import Seq2Seq

SIZES: dict[str, Any] = {"rnn_size": 4, "embedding_size": 4}


def save_attempt(name: str, steps: dict[int, float], best: int | None = None, **settings: Any) -> Path:
    """Write an attempt with a checkpoint for each step; all of its weights have the same value.

    best: the step that `best` names, if there was a validation.
    """
    whole = compose(Settings, **{**SIZES, "attempt": name, "data": ("talk.tsv",), **settings})
    directory, vocabulary = Path("checkpoints", name), Vocabulary(["你", "好", *BYTES])
    description = {"pairs": 2000, "vocabulary": vocabulary.fingerprint(), "fingerprint": "1", "both_directions": False}
    write_attempt(whole, vocabulary, description)
    model = Seq2Seq(whole.model, len(vocabulary))
    for step, value in steps.items():
        weights = [np.full(weight.shape, value, np.float32) for weight in weights_of(model)]
        tensors = {"weights": weights, "optimizer": [np.asarray(step, np.int64)]}
        write_checkpoint(directory / f"ckpt-{step}", tensors, {"progress": {"step": step}})
    values = {"best_step": best or 0, "best_nats": 4.5 if best else None, "validation": "v" if best else None}
    for pointer, step in {"last": max(steps), **({"best": best} if best else {})}.items():
        write_json(directory / pointer, {"checkpoint": f"ckpt-{step}", "step": step, **values})
    record = {"step": max(steps), "loss": 3.5, "validation.nats_per_character": 4.5}
    (directory / "metrics.jsonl").write_text(json.dumps(record) + "\n{bro")
    return directory

"""Checkpoints whose weights and state all have the value of their step."""

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import xxhash

from chatbot.config.model import ModelSettings
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.replica import TrainState

VOCABULARY = 9
DIRECTORY = Path("checkpoints/default")


class KilledError(BaseException):
    """Stands for SIGKILL: no handler of an Exception or OSError sees it."""


@contextmanager
def kill_at(limit: int | None = None, error: BaseException | None = None) -> Iterator[list[str]]:
    """Yield the calls that sync, name or remove files, in order. The process is killed at number `limit`, from 0.

    error: what each that syncs or names raises from there on, while the process lives.
    """
    calls: list[str] = []

    def record(owner: Any, name: str, text: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            if len(calls) == limit:
                raise error or KilledError
            calls.append(text(*arguments))
            return original(*arguments, **keywords)

        patch.setattr(owner, name, call)

    with pytest.MonkeyPatch.context() as patch:
        record(os, "fsync", lambda descriptor: f"sync {synced_name(descriptor)}")
        record(Path, "replace", lambda path, target: f"name {Path(target).name}")
        if error is None:
            record(Path, "unlink", lambda path, **_: f"remove {path.name}")
        yield calls


def synced_name(descriptor: int) -> str:
    name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
    return "a part" if name.endswith(".part") else name


def flip_a_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def state_of(step: int) -> TrainState:
    """The state of a run without slots after this many updates."""
    return TrainState([np.asarray(step, np.int64)])


@functools.cache
def _model() -> Seq2Seq:
    return Seq2Seq(ModelSettings(rnn_size=4, embedding_size=4), VOCABULARY)


def model_of(value: float) -> Seq2Seq:
    """The model of all tests, whose weights are set to this value."""
    fill(_model(), value)
    return _model()


def fill(model: Seq2Seq, value: float) -> None:
    """Set every weight to a value."""
    for weight in model.trainable_variables:
        weight.assign(tf.fill(weight.shape, value))


def values_of(weights: Sequence[Any]) -> set[float]:
    """The distinct values of all weights."""
    return {float(value) for weight in weights for value in np.unique(weight)}


def save(step: int, best: bool = True, **options: Any) -> None:
    """Save the checkpoint of a step. options: of Checkpoints."""
    progress = Progress(step=step, best_step=1, best_nats=1.0)
    checkpoints = Checkpoints(DIRECTORY, model_of(step), **options)
    checkpoints.save(progress, state_of(step))
    if best:
        progress.best_step = step
        checkpoints.amend(progress, best)
    checkpoints.finish()


def restored(**options: Any) -> Progress:
    """Restore the last checkpoint; weights and state must have the value of its step."""
    model = model_of(0)
    progress, state = Checkpoints(DIRECTORY, model, **options).restore(state_of(0))
    assert values_of(model.trainable_variables) == {float(progress.step)}
    assert int(*state.optimizer) == progress.step
    return progress


def steps_on_disk() -> set[int]:
    """The steps of all files of checkpoints in the attempt."""
    return {int(path.name.split(".")[0].removeprefix("ckpt-")) for path in DIRECTORY.glob("ckpt-*")}


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest, and give it its own checksum again."""
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    change(manifest)
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())
    path.write_text(json.dumps({**manifest, "checksum": checksum}))

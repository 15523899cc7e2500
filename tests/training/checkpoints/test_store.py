"""Checkpoints: the order of the writes, a full disk, and files of other versions."""

import json
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from chatbot.errors import UserError
from chatbot.training.checkpoints import store
from chatbot.training.checkpoints.progress import Progress, read_progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.replica import TrainState
from tests.training.checkpoints.step_checkpoints import (
    DIRECTORY,
    kill_at,
    model_of,
    save,
)


def test_data_are_synced_before_they_are_named_and_old_files_go_last(directory: Path) -> None:
    save(1)
    with kill_at() as calls:
        save(2)
    assert calls[:20] == [
        "remove ckpt-2.json",
        *("sync a part", "name ckpt-2.safetensors", "sync default"),
        *("sync a part", "name ckpt-2.json", "sync default"),
        *("sync a part", "name last", "sync default"),
        "remove saving",
        *("sync a part", "name ckpt-2.json", "sync default"),  # the result of its validation
        *("sync a part", "name last", "sync default"),
        *("sync a part", "name best", "sync default"),
    ]
    assert sorted(calls[20:]) == ["remove ckpt-1.json", "remove ckpt-1.safetensors", "remove saving"]


def test_progress_with_other_fields_or_types_is_refused(work_dir: Path) -> None:
    path = Path("last")
    whole = {"checkpoint": "ckpt-5", "step": 5, "best_step": 3, "best_nats": 4.5, "validation": "f"}
    path.write_text(json.dumps(whole))
    assert read_progress(path) == Progress(5, 3, 4.5, validation="f")
    path.write_text(json.dumps({**whole, "tempo": 1}))
    with pytest.raises(UserError, match=r"last: written by another version of the program .it contains 'tempo'"):
        read_progress(path)
    path.write_text(json.dumps({**whole, "best_step": "3"}))
    with pytest.raises(UserError, match="last: damaged"):
        read_progress(path)


def test_space_is_checked_before_the_first_checkpoint(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(1)
    state = TrainState([np.zeros(1000, np.float32)])
    size = 4000 + 4 * sum(weight.shape.num_elements() for weight in model.trainable_variables)
    usage = namedtuple("usage", "free")
    written = Checkpoints(DIRECTORY, model)

    def free(space: int) -> None:
        monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage(space))

    free(2 * size)
    written.check_space(state, keeps_best=False)
    with pytest.raises(UserError, match=r"default: not enough space on the disk; checkpoints of \d+\.\d MB each"):
        written.check_space(state, keeps_best=True)
    DIRECTORY.mkdir(parents=True)
    (DIRECTORY / "ckpt-1.json").touch()
    written.check_space(state, keeps_best=True)
    free(size - 1)
    with pytest.raises(UserError, match="not enough space"):
        written.check_space(state, keeps_best=False)


@pytest.mark.parametrize(
    ("then", "now", "scale"),
    [("float16", "float16", [[-3, 7]]), ("float16", "float32", []), ("float32", "float16", [[0, 0]])],
)
def test_loss_scale_is_resumed_by_float16_alone(then: str, now: str, scale: list[list[int]], directory: Path) -> None:
    """Without one in the checkpoint, it begins anew. Pending gradients are resumed by every precision."""

    def state_of(precision: str) -> TrainState:
        loss_scale = [np.array([-3, 7], np.float32)] if precision == "float16" else []
        return TrainState(
            [np.asarray(5, np.int64), np.array([1, 2, 3], np.float32)], [], loss_scale, [np.array([4, 5], np.float32)]
        )

    checkpoints = Checkpoints(directory, model_of(5))
    checkpoints.save(Progress(step=5), state_of(then))
    checkpoints.finish()
    new = tf.nest.map_structure(np.zeros_like, state_of(now))
    _, ((updates, slot), _, loss_scale, (pending,)) = checkpoints.restore(new)
    assert (int(updates), slot.tolist(), pending.tolist()) == (5, [1, 2, 3], [4, 5])
    assert [value.tolist() for value in loss_scale] == scale

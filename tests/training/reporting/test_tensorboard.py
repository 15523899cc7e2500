"""The curves, read back through the HTTP API of TensorBoard."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

from chatbot.config.training import Settings
from chatbot.evaluation.samples import Sample
from chatbot.flags import compose
from chatbot.inference.attention import WordAttention
from chatbot.training.reporting.tensorboard import BLUE, CELL, TensorBoard, heat_map
from chatbot.training.reporting.tower_curves import MOST_TOWERS_EACH_STEP
from chatbot.training.validator import Validation


@pytest.fixture
def tensorboard(work_dir: Path) -> Iterator[str]:
    """The address of a TensorBoard that serves a run of two towers."""
    settings = compose(Settings, attempt="a")
    settings.run.directory.mkdir(parents=True)
    written = TensorBoard(settings, ["gpu_2", "gpu_0"], 0)
    for step in (1, 2):
        record = {"step": step, "loss": 1.5 / step, "tower_losses": [1.0 / step, 2.0 / step]}
        written.record({**record, "gradient_norm": 3.0, "validation.nats_per_character": 5.0 - step})
    attention = WordAttention(["问", "题"], ["回复"], np.array([[0.25, 0.75]], np.float32))
    written.validation(Validation({}, None, ["回复"], [attention]), [Sample([], "问|题", "答案")], 2)
    written.warning("one tower is slow", 2)
    written.close("")
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        "tensorboard",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            lines = iter(server.stderr.readline, "")
            yield next(m[0] for line in lines if (m := re.search(r"http://[\d.:]+", line)))
        finally:
            server.terminate()


def get(address: str, path: str, **query: str) -> Any:
    """The JSON response of TensorBoard."""
    with urllib.request.urlopen(f"{address}/{path}?{urllib.parse.urlencode(query)}", timeout=30) as response:
        return json.load(response)


def test_one_chart_shows_the_curves_of_all_towers(tensorboard: str) -> None:
    plugin = "data/plugin/scalars"
    deadline = time.monotonic() + 60
    while len(tags := get(tensorboard, f"{plugin}/tags")) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert set(tags) == {"a/gpu_2", "a/gpu_0", "a/all"}
    assert all("loss" in tags[run] for run in tags)
    assert set(tags["a/all"]) == {"loss", "gradient_norm", "validation/nats_per_character"}
    curves = {run: get(tensorboard, f"{plugin}/scalars", run=run, tag="loss") for run in tags}
    assert {run: [(step, value) for _, step, value in curve] for run, curve in curves.items()} == {
        "a/gpu_2": [(1, 1.0), (2, 0.5)],
        "a/gpu_0": [(1, 2.0), (2, 1.0)],
        "a/all": [(1, 1.5), (2, 0.75)],
    }
    (text,) = get(tensorboard, "data/plugin/text/text", run="a/all", tag="replies")
    assert "回复" in text["text"]
    assert "<table>" in text["text"]
    (text,) = get(tensorboard, "data/plugin/text/text", run="a/all", tag="warnings")
    assert "one tower is slow" in text["text"]
    (image,) = get(tensorboard, "data/plugin/images/images", run="a/all", tag="attention/1", sample="0")
    assert image["step"] == 2
    (text,) = get(tensorboard, "data/plugin/text/text", run="a/all", tag="attention_words/1")
    assert "columns: 1 <code>问</code>" in text["text"]


def test_heat_map_is_white_at_0_and_blue_at_1() -> None:
    image = heat_map(np.array([[0, 1], [0.5, 0]], np.float32))
    assert image.shape == (2 * CELL, 2 * CELL, 3)
    cells = image.reshape(2, CELL, 2, CELL, 3).swapaxes(1, 2).reshape(4, CELL * CELL, 3)
    assert [np.unique(cell, axis=0).tolist() for cell in cells] == [
        *([[255] * 3], [[*BLUE]], [[round((255 + part) / 2) for part in BLUE]], [[255] * 3])
    ]


def points(run: str) -> list[tuple[int, float]]:
    """The step and the value of each point of a loss curve, as TensorBoard reads them."""
    reader = EventAccumulator(f"tensorboard/a/{run}", size_guidance={TENSORS: 0}, purge_orphaned_data=True)
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in reader.Reload().Tensors("loss")]


def test_points_after_the_restored_step_are_removed(work_dir: Path) -> None:
    """A run is killed at step 35, within an event, and resumed at step 20 with other devices and a longer interval."""
    settings = compose(Settings, attempt="a")
    settings.run.directory.mkdir(parents=True)

    def write(towers: list[str], first: int, steps: range) -> None:
        tensorboard = TensorBoard(settings, towers, first)
        for step in steps:
            tensorboard.record({"step": step, "loss": float(first), "tower_losses": [1.0] * len(towers)})
        tensorboard.close("")

    write(["cpu_0", "cpu_1"], 0, range(1, 36))
    for file in Path("tensorboard").glob("a/*/events*"):
        file.write_bytes(file.read_bytes()[:-3])
    write(["cpu_0"], 20, range(30, 41, 10))
    assert points("all") == [*((step, 0.0) for step in range(1, 21)), (30, 20.0), (40, 20.0)]
    assert [step for step, _ in points("cpu_0")] == [*range(1, 21), 30, 40]
    assert [step for step, _ in points("cpu_1")] == [*range(1, 21)]

    before = {path: path.read_bytes() for path in Path("tensorboard").glob("a/*/events*")}
    write([], 40, range(0))
    assert all(path.read_bytes() == content for path, content in before.items())  # nothing to remove


def test_curves_of_an_earlier_version_go_on(work_dir: Path) -> None:
    """Earlier versions wrote each tower's curve with a writer of TensorFlow's."""
    settings = compose(Settings, attempt="a")
    settings.run.directory.mkdir(parents=True)
    with tf.summary.create_file_writer("tensorboard/a/cpu_0").as_default():
        for step in (1, 2, 3):
            tf.summary.scalar("loss", float(step), step)
    tensorboard = TensorBoard(settings, ["cpu_0"], 2)
    tensorboard.record({"step": 3, "loss": 1.0, "tower_losses": [5.0]})
    tensorboard.close("")
    assert points("cpu_0") == [(1, 1.0), (2, 2.0), (3, 5.0)]


def test_many_towers_have_a_point_a_minute(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 100.0, 159.0, 160.0, 160.0, 161.0, 161.0])  # now, and once more after each point
    monkeypatch.setattr(
        "chatbot.training.reporting.tower_curves.time", SimpleNamespace(**{**vars(time), "monotonic": seconds.__next__})
    )
    towers = [f"gpu_{i}" for i in range(MOST_TOWERS_EACH_STEP + 1)]
    settings = compose(Settings, attempt="a")
    settings.run.directory.mkdir(parents=True)
    open_files = len(os.listdir("/dev/fd"))
    tensorboard = TensorBoard(settings, towers, 0)
    for step in (1, 2, 3, 4):
        losses = [*[float(step)] * (len(towers) - 1), None]
        tensorboard.record({"step": step, "loss": float(step), "tower_losses": losses})
    assert len(os.listdir("/dev/fd")) < open_files + 10
    tensorboard.close("")
    assert points("gpu_0") == [(1, 1.0), (3, 2.5), (4, 4.0)]
    assert points("all") == [(step, float(step)) for step in (1, 2, 3, 4)]
    assert not Path("tensorboard/a", towers[-1]).exists()  # its tower had no tokens

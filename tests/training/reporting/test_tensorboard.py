"""TensorBoard's pages, read through its HTTP API from one server."""

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.config.training import Settings
from chatbot.evaluation.samples import Sample
from chatbot.flags import compose
from chatbot.inference.attention import WordAttention
from chatbot.training.reporting.tensorboard import TensorBoard
from chatbot.training.reporting.tensorboard_pages.attention import BLUE, CELL, heat_map
from chatbot.training.validator import Validation

Get = Callable[..., Any]


def write_attempt(name: str, **changes: Any) -> None:
    """Write what TensorBoard shows of an attempt with two towers."""
    settings = compose(Settings, attempt=name, **changes)
    written = TensorBoard(settings, ["gpu_2", "gpu_0"], 0)
    for step in (1, 2):
        towers = {"tower_losses": [1.0 / step, 2.0 / step], "tower_target_tokens_per_s": [10.0, 20.0]}
        best = {"validation.nats_per_character": 5.0 - step, "best.nats_per_character": 5.0 - step}
        written.record({"step": step, "loss": 1.5 / step, **towers, "gradient_norm": 3.0, "padding": 0.25, **best})
    attention = WordAttention(["问", "题"], ["回复"], np.array([[0.25, 0.75]], np.float32))
    written.validation(Validation({}, None, ["回复"], [attention]), [Sample([], "问|题", "答案")], 2)
    written.warning("one tower is slow", 2)
    written.close("")


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """Reads JSON from a TensorBoard that shows two attempts."""
    folder = tmp_path_factory.mktemp("tensorboard")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_attempt("a", rnn_size=64)
        write_attempt("b", rnn_size=32, copy=True)
    with serving(folder / "tensorboard") as address:

        def get(path: str, body: Any = None, **query: str) -> Any:
            url = f"{address}/data/{path}?{urllib.parse.urlencode(query)}"
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)

        yield get


@contextlib.contextmanager
def serving(logs: Path) -> Iterator[str]:
    """A TensorBoard. Yields its address as soon as it has read the files."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            lines = iter(server.stderr.readline, "")
            address = next(m[0] for line in lines if (m := re.search(r"http://[\d.:]+", line)))
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                with urllib.request.urlopen(f"{address}/data/plugin/scalars/tags", timeout=30) as response:
                    if len(json.load(response)) >= len({file.parent for file in logs.glob("*/*/events*")}):
                        break
                time.sleep(0.2)
            yield address
        finally:
            server.terminate()


def test_one_chart_shows_the_curves_of_all_towers(get: Get) -> None:
    plugin = "plugin/scalars"
    tags = get(f"{plugin}/tags")
    assert set(tags) == {f"{attempt}/{run}" for attempt in "ab" for run in ("gpu_2", "gpu_0", "all")}
    assert all("loss" in tags[run] for run in tags)
    names = {"loss", "optimisation/gradient_norm", "throughput/padding"}
    assert set(tags["a/all"]) == {*names, "validation/nats_per_character", "best/nats_per_character"}
    curves = {run: get(f"{plugin}/scalars", run=f"a/{run}", tag="loss") for run in ("gpu_2", "gpu_0", "all")}
    assert {run: [(step, value) for _, step, value in curve] for run, curve in curves.items()} == {
        "gpu_2": [(1, 1.0), (2, 0.5)],
        "gpu_0": [(1, 2.0), (2, 1.0)],
        "all": [(1, 1.5), (2, 0.75)],
    }


def test_custom_scalars_show_a_chart_of_all_towers_and_one_of_each_measure(get: Get) -> None:
    layout = get("plugin/custom_scalars/layout")
    charts = {chart["title"]: chart["multiline"]["tag"] for chart in layout["category"][0]["chart"]}
    assert len(charts) == 9  # those of both attempts are equal, and merged

    def curves(chart: str, run: str) -> set[str]:
        title = next(title for title in charts if title.startswith(chart))
        payloads = [get("plugin/custom_scalars/scalars", run=run, tag=tag)["tag_to_events"] for tag in charts[title]]
        return {tag for payload in payloads for tag in payload}

    assert all(curves("Loss", f"b/{run}") == {"loss"} for run in ("gpu_2", "gpu_0", "all"))
    assert curves("Target tokens/s", "a/gpu_2") == {"throughput/tower_target_tokens_per_s"}
    assert curves("Padding", "a/all") == {"throughput/padding"}
    assert curves("Validation", "a/all") == {"validation/nats_per_character", "best/nats_per_character"}
    assert curves("Gradient norm", "a/all") == {"optimisation/gradient_norm"}


def test_hyperparameters_of_all_attempts_are_side_by_side(get: Get) -> None:
    experiment = get("plugin/hparams/experiment", {"experimentName": "", "includeMetrics": True})
    assert [h["name"] for h in experiment["hparamInfos"] if h.get("differs")] == ["copy", "rnn_size"]
    metrics = [metric["name"]["tag"] for metric in experiment["metricInfos"]]
    assert metrics[:2] == ["best/nats_per_character", "loss"]  # the page shows the first five
    columns = [{"hparam": "rnn_size", "includeInResult": True}]
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    query = {"experimentName": "", "allowedStatuses": statuses, "colParams": columns, "startIndex": 0, "sliceSize": 9}
    groups = get("plugin/hparams/session_groups", query)["sessionGroups"]
    assert {group["name"]: group["hparams"]["rnn_size"] for group in groups} == {"a": 64, "b": 32}


def test_texts_and_images(get: Get) -> None:
    (text,) = get("plugin/text/text", run="a/all", tag="replies")
    assert "回复" in text["text"]
    assert "<table>" in text["text"]
    (text,) = get("plugin/text/text", run="a/all", tag="warnings")
    assert "one tower is slow" in text["text"]
    (image,) = get("plugin/images/images", run="a/all", tag="reply_attention/1", sample="0")
    assert image["step"] == 2
    (text,) = get("plugin/text/text", run="a/all", tag="reply_attention_words/1")
    assert "columns: 1 <code>问</code>" in text["text"]


def test_heat_map_is_white_at_0_and_blue_at_1() -> None:
    image = heat_map(np.array([[0, 1], [0.5, 0]], np.float32))
    assert image.shape == (2 * CELL, 2 * CELL, 3)
    cells = image.reshape(2, CELL, 2, CELL, 3).swapaxes(1, 2).reshape(4, CELL * CELL, 3)
    assert [np.unique(cell, axis=0).tolist() for cell in cells] == [
        *([[255] * 3], [[*BLUE]], [[round((255 + part) / 2) for part in BLUE]], [[255] * 3])
    ]

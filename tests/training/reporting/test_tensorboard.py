"""TensorBoard's pages, read through its HTTP API from one server."""

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

import pytest

from chatbot.evaluation.measures import Sample
from chatbot.training.reporting.tensorboard import TensorBoard
from tests.training.conftest import write_pairs
from tests.training.untraced_update import train_untraced

Get = Callable[..., Any]


def write_attempt(name: str) -> None:
    """Write what TensorBoard shows of an attempt with two towers."""
    written = TensorBoard(name, ["gpu_2", "gpu_0"], 0)
    for step in (1, 2):
        towers = {"tower_losses": [1.0 / step, 2.0 / step], "tower_target_tokens_per_s": [10.0, 20.0]}
        best = {"validation.nats_per_character": 5.0 - step, "best.nats_per_character": 5.0 - step}
        written.record({"step": step, "loss": 1.5 / step, **towers, "gradient_norm": 3.0, "padding": 0.25, **best})
        written.replies([Sample([], "问|题", "答案")], [f"回复{step}"], step)
    written.warning("one tower is slow", 2)
    written.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard of such attempts, and of `real`, which a small run writes; its address once it has read all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        write_attempt("a")
        write_attempt("b")
        write_pairs(Path("pairs.tsv"))
        Path("held_out.tsv").write_text("甲乙\t子\n")
        run = {"validation": "held_out.tsv", "both_directions": "off", "validate_every": 2, "steps": 3}
        train_untraced(**run, attempt="real", report_to="tensorboard")
        logs = Path("tensorboard").absolute()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            lines = iter(server.stderr.readline, "")
            served = next(m[0] for line in lines if (m := re.search(r"http://[\d.:]+", line)))
            runs = {file.parent for file in logs.glob("*/*/events*")}
            deadline = time.monotonic() + 240
            while len(read(f"{served}/data/plugin/scalars/tags")) < len(runs) and time.monotonic() < deadline:
                time.sleep(0.2)
            yield served
        finally:
            server.kill()  # its handler of SIGTERM can wait for ever


def read(url: str, body: Any = None) -> Any:
    """The JSON response of a server. body: of a POST request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=240) as response:
        content = response.read()
    return json.loads(content) if response.headers.get_content_type() == "application/json" else content


@pytest.fixture(scope="module")
def get(address: str) -> Get:
    """Reads the response of a plugin of that TensorBoard."""

    def get(path: str, body: Any = None, **query: Any) -> Any:
        return read(f"{address}/data/plugin/{path}?{urllib.parse.urlencode(query)}", body)

    return get


def test_one_chart_shows_the_curves_of_all_towers(get: Get) -> None:
    tags = get("scalars/tags")
    written = {f"{attempt}/{run}" for attempt in "ab" for run in ("gpu_2", "gpu_0", "all")}
    assert set(tags) == {*written, "real/cpu_0", "real/all"}
    assert all("loss" in tags[run] for run in tags)
    names = {"loss", "optimisation/gradient_norm", "throughput/padding"}
    assert set(tags["a/all"]) == {*names, "validation/nats_per_character", "best/nats_per_character"}
    curves = {run: get("scalars/scalars", run=f"a/{run}", tag="loss") for run in ("gpu_2", "gpu_0", "all")}
    assert {run: [(step, value) for _, step, value in curve] for run, curve in curves.items()} == {
        "gpu_2": [(1, 1.0), (2, 0.5)],
        "gpu_0": [(1, 2.0), (2, 1.0)],
        "all": [(1, 1.5), (2, 0.75)],
    }


def test_custom_scalars_show_a_chart_of_all_towers_and_one_of_each_measure(get: Get) -> None:
    layout = get("custom_scalars/layout")
    charts = {chart["title"]: chart["multiline"]["tag"] for chart in layout["category"][0]["chart"]}
    assert len(charts) == 10  # those of both attempts are equal, and merged

    def curves(chart: str, run: str) -> set[str]:
        title = next(title for title in charts if title.startswith(chart))
        payloads = [get("custom_scalars/scalars", run=run, tag=tag)["tag_to_events"] for tag in charts[title]]
        return {tag for payload in payloads for tag in payload}

    assert all(curves("Loss", f"b/{run}") == {"loss"} for run in ("gpu_2", "gpu_0", "all"))
    assert curves("Target tokens/s", "a/gpu_2") == {"throughput/tower_target_tokens_per_s"}
    assert curves("Padding", "a/all") == {"throughput/padding"}
    assert curves("Validation", "a/all") == {"validation/nats_per_character", "best/nats_per_character"}
    assert curves("Gradient norm", "a/all") == {"optimisation/gradient_norm"}


def test_text_page_has_replies_and_warnings(get: Get) -> None:
    texts = get("text/text", run="a/all", tag="replies")
    assert [text["step"] for text in texts] == [1, 2]
    assert "<td>问|题</td>\n<td>回复2</td>\n<td>答案</td>" in texts[-1]["text"]
    (text,) = get("text/text", run="a/all", tag="warnings")
    assert "one tower is slow" in text["text"]
    assert [text["step"] for text in get("text/text", run="real/all", tag="replies")] == [2, 3]  # its validations

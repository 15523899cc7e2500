"""TensorBoard's pages, read through its HTTP API from one server."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from chatbot.evaluation.measures import Sample
from chatbot.training.reporting.tensorboard import TensorBoard
from tests.training.reporting.fake_run import wait_for_next_second
from tests.training.small_run import train_small

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two attempts that are written for TensorBoard, and `real`, which a small run writes."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_attempt("a")
        write_attempt("b")
        Path("pairs.tsv").write_text("甲甲\t子\n乙乙\t丑\n丙丙\t寅\n丁丁\t卯\n")
        Path("held_out.tsv").write_text("甲乙\t子\n")
        run = {"data": ("pairs.tsv",), "validation": "held_out.tsv", "both_directions": "off"}
        assert train_small(2, **run, attempt="real", steps=3, validate_every=2, profile="2:3") == 0
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A TensorBoard that shows all of them."""
    with serving(folder / "tensorboard") as served:
        yield served


@contextlib.contextmanager
def serving(logs: Path) -> Iterator[str]:
    """A TensorBoard. Yields its address as soon as it has read all runs."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            lines = iter(server.stderr.readline, "")
            served = next(m[0] for line in lines if (m := re.search(r"http://[\d.:]+", line)))
            runs = {file.parent for file in logs.glob("*/*/events*")}
            deadline = time.monotonic() + 60
            while len(read(f"{served}/data/plugin/scalars/tags")) < len(runs) and time.monotonic() < deadline:
                time.sleep(0.2)
            yield served
        finally:
            server.kill()  # its handler of SIGTERM can wait for ever


def read(url: str, body: Any = None) -> Any:
    """The JSON response of a server. body: of a POST request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        content = response.read()
    return json.loads(content) if response.headers.get_content_type() == "application/json" else content


@pytest.fixture(scope="module")
def get(address: str) -> Get:
    """Reads the response of a plugin of that TensorBoard."""

    def get(path: str, body: Any = None, **query: Any) -> Any:
        return read(f"{address}/data/plugin/{path}?{urllib.parse.urlencode(query)}", body)

    return get


def test_one_chart_shows_the_curves_of_all_towers(get: Get) -> None:
    plugin = "scalars"
    tags = get(f"{plugin}/tags")
    written = {f"{attempt}/{run}" for attempt in "ab" for run in ("gpu_2", "gpu_0", "all")}
    assert set(tags) == {*written, "real/cpu_0", "real/cpu_1", "real/all"}
    assert all("loss" in tags[run] for run in tags)
    names = {"loss", "optimisation/gradient_norm", "throughput/padding"}
    assert set(tags["a/all"]) == {*names, "validation/nats_per_character", "best/nats_per_character"}
    curves = {run: get(f"{plugin}/scalars", run=f"a/{run}", tag="loss") for run in ("gpu_2", "gpu_0", "all")}
    assert {run: [(step, value) for _, step, value in curve] for run, curve in curves.items()} == {
        "gpu_2": [(1, 1.0), (2, 0.5)],
        "gpu_0": [(1, 2.0), (2, 1.0)],
        "all": [(1, 1.5), (2, 0.75)],
    }


def test_curves_of_a_resumed_run_have_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's default reader, which knows no start of a session, forgets what a curve that goes back had."""
    monkeypatch.chdir(tmp_path)
    for restored, steps in ((0, range(1, 7)), (4, range(5, 6))):
        wait_for_next_second()
        written = TensorBoard("a", ["cpu_0"], restored)
        for step in steps:
            towers = {"tower_losses": [float(restored)], "tower_target_tokens_per_s": [10.0]}
            written.record({"step": step, "loss": float(restored), **towers})
        written.close()
    with serving(tmp_path / "tensorboard") as served:
        for run in ("all", "cpu_0"):
            query = urllib.parse.urlencode({"run": f"a/{run}", "tag": "loss"})
            curve = read(f"{served}/data/plugin/scalars/scalars?{query}")
            assert [(step, value) for _, step, value in curve] == [*((step, 0.0) for step in range(1, 5)), (5, 4.0)]


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


def test_texts(get: Get) -> None:
    texts = get("text/text", run="a/all", tag="replies")
    assert [text["step"] for text in texts] == [1, 2]
    assert "<td>问|题</td>\n<td>回复2</td>\n<td>答案</td>" in texts[-1]["text"]
    (text,) = get("text/text", run="a/all", tag="warnings")
    assert "one tower is slow" in text["text"]
    assert [text["step"] for text in get("text/text", run="real/all", tag="replies")] == [2, 3]  # its validations


def test_profile_has_the_operations_of_its_steps(folder: Path) -> None:
    (file,) = (folder / "tensorboard/real/plugins/profile").glob("*/*")
    assert file.name.endswith(".xplane.pb")
    planes = XSpace.FromString(file.read_bytes()).planes
    names = [plane.event_metadata[e.metadata_id].name for plane in planes for line in plane.lines for e in line.events]
    assert names.count("train") == 2
    assert any("MatMul" in name for name in names)


@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_pages_in_a_browser(address: str) -> None:
    """The page that shows first begins with the best validation and the loss; the other one has all charts."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "window-size=1400,1000"):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))

    def lines(page: str, element: str, wanted: set[str]) -> list[str]:
        """The lines of an element's text as soon as the wanted ones are among them."""
        browser.get(f"{address}/{page}")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = [part for e in browser.find_elements("css selector", element) for part in e.text.splitlines()]
            if wanted <= {*found}:
                return found
            time.sleep(0.3)
        raise TimeoutError(f"{wanted} is not in {found}")

    try:
        shown = lines("", "metrics-main-view", {"best", "loss", "/nats_per_character"})
        assert shown.index("best") < shown.index("loss")
        titles = {"Loss: the whole batch and every tower", "Skipped updates"}
        curves = "Matches (9)"  # of the loss: three runs of three attempts
        lines("?#custom_scalars", "tf-custom-scalar-dashboard", {*titles, curves})
    finally:
        browser.quit()

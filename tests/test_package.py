"""The installed package: the content of the wheel, its commands in another directory, and its extra `run`."""

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from packaging.requirements import Requirement

from chatbot.config.export import ExportSettings
from chatbot.export.write import export as write_export
from chatbot.version import __version__
from tests.export.untrained import write_attempt

ROOT = Path(__file__).parents[1]
TINY = ("--rnn-size", "8", "--embedding-size", "8", "--steps", "2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed wheel only; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, timeout=300)


def run_installed(site: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run the installed command in the current directory, which is not the project's."""
    environment = {**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"}
    return subprocess.run(
        [str(site / "bin" / "duida"), *arguments],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env=environment,
        check=False,
        timeout=300,
    )


def test_wheel_contains_only_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = f"duida-{__version__}.dist-info"
    tree = {path.relative_to(ROOT).as_posix() for path in (ROOT / "chatbot").rglob("*.py")}
    parts = (
        path for path in (ROOT / "chatbot/chat/page").rglob("*") if path.suffix in {".html", ".css", ".js", ".json"}
    )
    tables = (ROOT / "chatbot/corpus/reading").glob("*.yaml")
    files = {path.relative_to(ROOT).as_posix() for path in (*parts, *tables)}
    data = {"chatbot/py.typed", "chatbot/evaluation/report.html", *files}
    assert {name for name in names if name.startswith("chatbot/")} == tree | data
    assert {name.split("/")[0] for name in names} == {"chatbot", metadata}
    assert f"{metadata}/licenses/LICENSE" in names


def test_installed_command_shows_its_own_name(site: Path, work_dir: Path) -> None:
    assert [path.name for path in (site / "bin").iterdir()] == ["duida"]
    assert run_installed(site).stdout.startswith("usage: duida COMMAND ")
    assert run_installed(site, "--version").stdout == f"duida {__version__}\n"
    refused = run_installed(site, "data", "inspect", "--nonsense")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: unrecognized arguments: --nonsense (see duida data inspect --help)\n"


def test_installed_commands_run_in_another_directory(site: Path, work_dir: Path) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n早上好\t早\n", encoding="utf-8")
    inspected = run_installed(site, "data", "inspect", "pairs.tsv")
    assert inspected.returncode == 0, inspected.stderr
    assert run_installed(site, "init-config", "own.yaml").returncode == 0
    trained = run_installed(site, "train", "--config", "own.yaml", "--data", "pairs.tsv", *TINY)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.splitlines()[-1] == "Talk to it: duida chat --attempt default"
    replied = run_installed(site, "chat", text="你好\n早上好\n")
    assert replied.returncode == 0, replied.stderr
    assert replied.stdout.count("\n") == 2


def packages_of(name: str, extra: str) -> set[str]:
    """The distributions that an extra of this one needs, by their metadata."""
    found: set[tuple[str, str]] = set()
    waiting = [(name, extra), (name, "")]
    while waiting:
        wanted = name, extra = waiting.pop()
        if wanted in found:
            continue
        found.add(wanted)
        for needed in map(Requirement, importlib.metadata.requires(name) or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, each) for each in ("", *needed.extras)]
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def small(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of Python with the wheel and what its extra `run` needs, as on a friend's machine."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        names = packages_of("duida", "run") - {"duida"}
    for name in names:
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    assert (folder / "onnxruntime").exists()
    assert not (folder / "tensorflow").exists()
    path = os.pathsep.join(map(str, (site, folder)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1"}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    directory = write_attempt(folder / "tiny", retrieves=True, copy=True, ngrams=3)
    write_export(ExportSettings("tiny", "onnx"), directory, folder / "onnx")
    return folder / "onnx"


def command(*words: str) -> list[str]:
    """A command of an interpreter that does not see the packages of this environment."""
    return [sys.executable, "-S", "-W", "ignore", "-m", "chatbot", *words]


PYTHON_API = "import sys, chatbot; print(*chatbot.load(sys.argv[1], beam_size=2).replies(['你好', '在吗']), sep='\\n')"


def test_replies_of_an_export_without_tensorflow(small: dict[str, str], export: Path, work_dir: Path) -> None:
    """In a pipe, from one file, and by the Python API."""
    shutil.make_archive("weibo", "zip", export)
    for words, replies in (
        (command("chat", "--export", str(export)), 2),
        (command("ask", "你好", "weibo.zip"), 1),
        ([sys.executable, "-S", "-c", PYTHON_API, str(export)], 2),
    ):
        replied = subprocess.run(words, input="你好\n在吗\n".encode(), capture_output=True, env=small, timeout=240)
        assert (replied.returncode, replied.stderr) == (0, b"")
        assert replied.stdout.count(b"\n") == replies


def test_chat_in_a_terminal(small: dict[str, str], export: Path, work_dir: Path) -> None:
    first, *words = command("chat", "--export", str(export))
    with pexpect.spawn(first, words, env=small, encoding="utf-8", timeout=240) as terminal:
        terminal.expect("/help")
        terminal.send("/why\r/exit\r")
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0


@contextmanager
def server(small: dict[str, str], *words: str) -> Iterator[str]:
    """The address of a server, which is ended afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    arguments = command("serve", "--serve", f"127.0.0.1:{port}", *words)
    with subprocess.Popen(arguments, env=small, stdout=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                assert process.poll() is None
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def test_server(small: dict[str, str], export: Path, work_dir: Path) -> None:
    with server(small, "--export", str(export)) as address:
        body = json.dumps({"model": "onnx", "messages": [{"role": "user", "content": "你好"}]}).encode()
        request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as response:
            assert json.load(response)["choices"][0]["message"]["content"]
        with urllib.request.urlopen(f"{address}/", timeout=240) as page:
            assert b"<html" in page.read()


def test_what_trains_names_its_extra(small: dict[str, str], work_dir: Path) -> None:
    Path("a.tsv").write_text("你好\t你好呀\n", encoding="utf-8")
    words = command("train", "--data", "a.tsv")
    refused = subprocess.run(words, capture_output=True, env=small, timeout=240)
    assert refused.returncode == 2
    assert refused.stderr.count(b"\n") == 1
    assert b'pip install ".[train]"' in refused.stderr

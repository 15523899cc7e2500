"""The installed package: the content of the wheel, and its commands in another directory."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chatbot.version import __version__

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


def test_installed_command_is_duida_alone(site: Path) -> None:
    assert [path.name for path in (site / "bin").iterdir()] == ["duida"]


def test_installed_command_shows_its_own_name(site: Path, work_dir: Path) -> None:
    assert run_installed(site).stdout.startswith("usage: duida COMMAND ")
    assert run_installed(site, "--version").stdout == f"duida {__version__}\n"
    for command in ("train", "data inspect", "bot telegram"):
        usage = run_installed(site, *command.split(), "--help")
        assert usage.returncode == 0
        assert usage.stdout.startswith(f"usage: duida {command} ")
        refused = run_installed(site, *command.split(), "--nonsense")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == f"error: unrecognized arguments: --nonsense (see duida {command} --help)\n"


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

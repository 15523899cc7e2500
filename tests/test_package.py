"""The package as it is installed: what the wheel holds, and its commands from another folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chatbot.version import __version__

ROOT = Path(__file__).parents[1]
TINY = ("--rnn-size", "8", "--embedding-size", "8", "--steps", "2")
COMMANDS = ("chatbot-train", "chatbot-chat", "chatbot-data")

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
    """A folder with the installed wheel and nothing else; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, timeout=300)


def installed(site: Path, command: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run an installed command in the current folder, which is not the project's."""
    environment = {**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"}
    return subprocess.run(
        [str(site / "bin" / command), *arguments],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env=environment,
        check=False,
        timeout=300,
    )


def test_the_wheel_holds_the_package_only(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = f"chatbot-{__version__}.dist-info"
    tree = {path.relative_to(ROOT).as_posix() for path in (ROOT / "chatbot").rglob("*.py")}
    assert {name for name in names if name.startswith("chatbot/")} == tree | {"chatbot/py.typed"}
    assert {name.split("/")[0] for name in names} == {"chatbot", metadata}
    assert f"{metadata}/licenses/LICENSE" in names


@pytest.mark.parametrize("command", COMMANDS)
def test_an_installed_command_names_itself(site: Path, workplace: Path, command: str) -> None:
    usage = installed(site, command, "--help")
    assert usage.returncode == 0
    assert usage.stdout.startswith(f"usage: {command} ")
    assert installed(site, command, "--version").stdout == f"chatbot {__version__}\n"
    wrong = installed(site, command, *(["inspect"] if command == "chatbot-data" else []), "--nonsense")
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    named = f"{command} inspect" if command == "chatbot-data" else command
    assert wrong.stderr == f"error: unrecognized arguments: --nonsense (see {named} --help)\n"


def test_installed_commands_inspect_train_and_reply_in_another_folder(site: Path, workplace: Path) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n早上好\t早\n", encoding="utf-8")
    inspected = installed(site, "chatbot-data", "inspect", "pairs.tsv")
    assert inspected.returncode == 0, inspected.stderr
    trained = installed(site, "chatbot-train", "--data", "pairs.tsv", *TINY)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.splitlines()[-1] == "Talk to it: chatbot-chat --attempt default"
    replied = installed(site, "chatbot-chat", text="你好\n早上好\n")
    assert replied.returncode == 0, replied.stderr
    assert replied.stdout.count("\n") == 2

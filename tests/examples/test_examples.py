"""Each example, run from its folder in a copy of the project, prints its expected output."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.commands import ENVIRONMENT, ROOT

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def examples(work_dir: Path) -> Path:
    """A copy of the examples beside links to the scripts, where attempts are written."""
    for name in ("train.py", "chat.py"):
        (work_dir / name).symlink_to(ROOT / name)
    return Path(shutil.copytree(ROOT / "examples", work_dir / "examples"))


def run(script: Path, **variables: str) -> str:
    """Return the standard output of a script, started in another folder with the Python of this environment."""
    completed = subprocess.run(
        [str(script)],
        cwd="/",
        env={**ENVIRONMENT, "PATH": PATH, **variables},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=540,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def expected(folder: Path) -> str:
    return (folder / "expected.txt").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shop", "friend"])
def test_replies_are_looked_up(name: str, examples: Path, chat_file: Path) -> None:
    """The attempt begins anew if the pairs have changed."""
    before = commands.run("train.py", "--data", str(chat_file), "--attempt", f"example-{name}", "--steps", "1")
    assert before.returncode == 0
    assert run(examples / name / "run.sh") == expected(examples / name)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_guide_states_the_figures_of_the_expected_output(page: str) -> None:
    found = re.match(r"(--min-score \S+): (\d+%)", expected(ROOT / "examples/shop"))
    text = (ROOT / "examples/shop" / page).read_text(encoding="utf-8")
    assert found
    assert all(figure in text for figure in found.groups())


@pytest.mark.slow
def test_messenger_receives_the_replies_of_the_server(examples: Path) -> None:
    """Replies to questions from the corpus are looked up, so a model trained for two steps suffices."""
    trained = commands.run("train.py", "--steps", "2", "--rnn-size", "8")
    assert trained.returncode == 0
    folder = examples / "platform"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as webhook:
        ports = {"8000": str(server.getsockname()[1]), "9000": str(webhook.getsockname()[1])}
    for file in (folder / "run.sh", folder / "webhook.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub("8000|9000", lambda port: ports[port[0]], text), encoding="utf-8")
    assert run(folder / "run.sh") == expected(folder)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "none"])
def test_four_towers_train(compiler: str, examples: Path) -> None:
    """On simulated GPUs, or on the CPU without a compiler."""
    Path("data").mkdir()
    assert run(examples / "four-gpus/run.sh", CXX=compiler) == expected(examples / "four-gpus")

"""A directory with a few pairs; all processes of a test are killed after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.machines.running import TIMEOUT, Command, kill, running_processes, write_pairs


@pytest.fixture
def pairs_folder(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory with pairs.tsv."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    write_pairs(work_dir / "pairs.tsv")
    yield work_dir
    for pid in running_processes():
        kill(pid)
    for command in Command.started:
        command.process.wait(TIMEOUT)
    Command.started.clear()

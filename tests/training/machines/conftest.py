"""A folder with a few pairs, where no process is left when the test ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.machines.running import Command, kill, marked, write_pairs


@pytest.fixture
def place(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with pairs.tsv."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    write_pairs(workplace / "pairs.tsv")
    yield workplace
    for pid in marked():
        kill(pid)
    for command in Command.started:
        command.process.wait(10)
    Command.started.clear()

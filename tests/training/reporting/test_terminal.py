"""The progress bar says "compiling" on a terminal only."""

import io
from pathlib import Path

import pytest

from tests.training.small_run import train_small


class Screen(io.StringIO):
    """A text stream that claims to be a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("terminal", "times"), [(True, 2), (False, 0)])
def test_first_use_of_each_graph_is_announced_on_a_terminal(
    terminal: bool, times: int, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs are in one bucket; validation has a graph of its own."""
    held_out = pairs_file.with_name("held_out.tsv")
    held_out.write_text("甲甲\t癸癸癸\n")
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    run = {"data": (str(pairs_file),), "both_directions": "off"}
    train_small(1, **run, validation=str(held_out), validate_every=3, steps=6)
    frames = screen.getvalue().split("\r")
    assert sum("compiling" in frame for frame in frames) == times
    assert "compiling" not in frames[-1]
    assert "loss" in frames[-1]

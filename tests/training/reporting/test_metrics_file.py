"""metrics.jsonl holds complete JSON lines, whatever the numbers and the disk."""

import json
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from chatbot.training.reporting.reporter import append_record, drop_after


def test_non_finite_numbers_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record = {"step": 1, "loss": 1.0, "gradient_norm": np.float64("inf"), "tower_losses": [None, float("nan")]}
    append_record(path, record)
    assert json.loads(path.read_text()) == {"step": 1, "loss": 1.0, "gradient_norm": None, "tower_losses": [None, None]}


def test_full_disk_leaves_complete_lines(tmp_path: Path) -> None:
    """A limit of the file's size stands for the disk: the first bytes of a line are written, and then no more."""
    path = tmp_path / "metrics.jsonl"
    append_record(path, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_record(path, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    append_record(path, {"step": 3})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def test_lines_after_the_restored_step_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\nbroken\n{"step": 3}\n{"st')
    drop_after(path, 2)
    append_record(path, {"step": 3, "loss": 1.0})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]

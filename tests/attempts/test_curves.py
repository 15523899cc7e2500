"""The picture of learning curves, and the records that it is drawn from."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.attempts import curves
from chatbot.attempts.curves import LOSS, VALIDATION, curve_of, draw, read_records, smooth


def test_broken_and_repeated_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_records(path) == []
    lines = [
        {"step": 1, "loss": 9},
        {"step": 10, "loss": 8},
        {"step": 20, "loss": 7},
        {"step": 10, "loss": 6},  # of a run that was killed and resumed
    ]
    broken = ['{"step": 30, "lo', "[1]", "null", '{"step": "40"}', '{"step": true}', '{"step": NaN}', '{"loss": 1}', ""]
    path.write_bytes("\n".join([*map(json.dumps, lines), *broken]).encode() + b"\n\xff\xfe\n")
    assert [(record["step"], record["loss"]) for record in read_records(path)] == [(1, 9), (10, 6)]


def test_curve_leaves_out_missing_values() -> None:
    records: list[dict[str, Any]] = [
        {"step": 1, LOSS: 9.0},
        {"step": 2, LOSS: None},
        {"step": 3, LOSS: math.nan},
        {"step": 4, LOSS: 8},
    ]
    steps, values = curve_of(records, LOSS)
    assert (steps.tolist(), values.tolist()) == ([1, 4], [9, 8])
    assert [len(part) for part in curve_of(records, VALIDATION)] == [0, 0]


def test_smoothed_is_the_mean_of_equal_intervals() -> None:
    curve = curve_of([{"step": step, LOSS: step % 10} for step in range(1000)], LOSS)
    steps, values = smooth(curve, 999)
    assert len(steps) == curves.POINTS
    np.testing.assert_allclose(values, 4.5)
    np.testing.assert_allclose(steps, np.arange(4.5, 1000, 10))
    assert len(smooth(curve, 9999).steps) == curves.POINTS / 10


def records(last: int, validated: bool = True) -> list[dict[str, Any]]:
    return [
        {"step": step, LOSS: 3 + 600 / (step + 100), **({VALIDATION: 4 + abs(step - 500) / 1000} if validated else {})}
        for step in range(10, last, 10)
    ]


def test_any_attempts_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With units and the lowest value. Warnings are errors, such as those about characters that no font has."""
    draw([], tmp_path / "nothing.png")
    assert (tmp_path / "nothing.png").read_bytes().startswith(b"\x89PNG")
    from matplotlib import rcParams

    monkeypatch.setitem(rcParams, "svg.fonttype", "none")
    without = records(2000, validated=False)
    drawn = [("_微博$1$ \U00011fff", records(900)), ("b", without), ("b", [{"step": 3}]), ("none", [])]
    draw(drawn, tmp_path / "curves.svg")
    picture = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    name = "_微博$1$ \U00011fff, lowest 4.000 at step 500"
    titles = ("Training loss", "Validation: lower is better")
    for text in (*titles, "nats per character", "nats per target token", "step", "1,200", name, "b"):
        assert f">{text}</text>" in picture
    assert len([*tmp_path.iterdir()]) == 2

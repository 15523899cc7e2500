"""The table of attempts: states, widths, JSON."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from chatbot.attempts.attempt import Attempt, all_attempts
from chatbot.attempts.table import table
from chatbot.commands import main
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.display import width
from tests.attempts.folders import save_attempt

WHOLE = Attempt(
    "weibo", "ready", "", ("weibo.tsv",), 8000, 256, 2, 4194, 4_100_000, 12_000, 4.424, 9_000,
    "2026-11-22T14:08:36+00:00", 56_000_000,
)  # fmt: skip


@pytest.fixture
def listed(work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs python -m chatbot.attempts in an empty folder, and returns what it prints."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["chatbot.attempts", *arguments])
        assert main("attempts") == 0
        return capsys.readouterr().out

    return run


def test_without_attempts_a_line_says_so(listed: Callable[..., str], work_dir: Path) -> None:
    assert listed() == f"No attempts in {work_dir}/checkpoints; train one with python train.py\n"
    assert listed("--json") == ""


def test_each_attempt_is_listed_with_its_state(listed: Callable[..., str], work_dir: Path) -> None:
    """Broken ones beside whole ones, the newest first."""
    whole = save_attempt("微博", {10: 1.0, 20: 2.0}, best=10)
    for name in ("no last", "cut", "words", "config", "pointer", "values", "no values", "locked"):
        shutil.copytree(whole, f"checkpoints/{name}")
    Path("checkpoints/no last/last").unlink()
    Path("checkpoints/cut/ckpt-10.safetensors").write_bytes(b"1")  # `best` names it
    Path("checkpoints/words/vocabulary.txt").write_bytes(Vocabulary(["你", *BYTES]).content())
    Path("checkpoints/config/config.json").write_text('{"rnn_size": {}}')
    Path("checkpoints/pointer/last").write_text('{"checkpoint": "../ckpt-1", "step": 1}')
    Path("checkpoints/values/ckpt-20.safetensors").write_bytes(b"")
    for file in Path("checkpoints/no values").glob("ckpt-*.safetensors"):
        file.write_bytes(b"")
    Path("checkpoints/empty").mkdir()
    Path("checkpoints/no folder").touch()
    with filelock.FileLock("checkpoints/locked/lock"):
        objects = {each["name"]: each for each in map(json.loads, listed("--json").splitlines())}
        lines = listed().splitlines()
    assert {name: each["state"] for name, each in objects.items()} == {
        "微博": "ready", "locked": "training", "empty": "empty", "cut": "damaged", "values": "damaged",
        **dict.fromkeys(["no last", "words", "config", "pointer", "no values"], "broken"),
    }  # fmt: skip
    assert {name: each["problem"] for name, each in objects.items() if each["problem"]} == {
        "no last": "last: missing, though there are checkpoints beside it",
        "cut": "ckpt-10: checkpoint damaged (header too small); ckpt-20 is used",
        "words": "vocabulary.txt: damaged, not the vocabulary that the attempt was begun with",
        "config": "config.json: --rnn-size {}: expected a whole number",
        "pointer": "last: damaged, it does not name a checkpoint",
        "values": "ckpt-20: checkpoint damaged (header too small); ckpt-10 is used",
        "no values": "ckpt-20: checkpoint damaged (header too small)",
    }
    assert {key: objects["微博"][key] for key in ("data", "pairs", "step", "best_step", "vocabulary", "resumable")} == {
        "data": ["talk.tsv"], "pairs": 2000, "step": 20, "best_step": 10, "vocabulary": 263, "resumable": True,
    }  # fmt: skip
    assert objects["微博"]["weights"] > 1000
    assert objects["微博"]["bytes"] == sum(path.stat().st_size for path in whole.iterdir())
    assert lines[0].split() == ["name", "data", "size", "weights", "step", "nats", "at", "saved", "disk", "state"]
    assert "words is broken: vocabulary.txt: damaged, not the vocabulary that the attempt was begun with" in lines


def test_newest_attempt_is_first(work_dir: Path) -> None:
    for name, day in (("a", 1), ("b", 3), ("c", 2)):
        last = save_attempt(name, {1: 0.0}) / "last"
        os.utime(last, (86400.0 * day, 86400.0 * day))
    assert [attempt.name for attempt in all_attempts()] == ["b", "c", "a"]


def test_any_name_of_a_folder_is_one_line(work_dir: Path) -> None:
    folder = work_dir / "checkpoints" / "a\n\x1b[31mb"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    (folder / "last").write_text("{")
    lines = table(all_attempts())
    assert lines[1].startswith("a↵?[31mb  ")
    assert lines[3:] == ["a↵?[31mb is broken: config.json: damaged, not JSON"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("last", '{"checkpoint": "ckpt-1", "step": 1, "best_nats": 1, "best_step": "x"}'),
        ("last", '{"checkpoint": "ckpt-1", "step": 1, "best_nats": 1' + "0" * 400 + "}"),
        ("data.json", '{"pairs": 1e999, "vocabulary": ""}'),
        ("data.json", "[" * 100_000),
        ("config.json", "[]"),
    ],
)
def test_damage_of_any_kind_is_listed(work_dir: Path, name: str, content: str) -> None:
    (save_attempt("a", {1: 1.0}) / name).write_text(content)
    (attempt,) = all_attempts()
    assert attempt.state == "broken"
    assert attempt.problem
    assert len(table([attempt])) == 4


def test_cells_of_an_attempt() -> None:
    heading, line, other = table([WHOLE, Attempt("很长的名字", data=("甲.tsv", "b"), bytes=10**10)])
    shown = ["weibo", "weibo.tsv", "256x2", "4.1M", "12,000", "4.424", "9,000", "2026-11-22", "56", "MB", "ready"]
    assert line.split() == shown, heading
    assert other.split() == ["很长的名字", "甲.tsv", "+1", *"-" * 6, "10.0", "GB", "empty"]
    assert width(line.partition("ready")[0]) == width(other.partition("empty")[0])

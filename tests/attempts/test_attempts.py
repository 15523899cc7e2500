"""The table of attempts, and compare, rename and delete, run as commands."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from chatbot.attempts.description import Attempt, all_attempts
from chatbot.attempts.table import table
from chatbot.attempts.trained import load_trained
from chatbot.commands import main
from chatbot.config.attempts import RATINGS
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.display import width
from chatbot.durable import write_json
from chatbot.retrieval.ratings import append_rating, given_replies, rating_record
from tests.attempts.folders import save_attempt

Run = Callable[..., str]


@pytest.fixture
def run(work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder, and returns its output, or the line of the error after exit code 2."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["chatbot.attempts", *arguments])
        code = main("attempts")
        out, error = capsys.readouterr()
        if code:
            assert (code, out, error.count("\n"), error[:7]) == (2, "", 1, "error: ")
        return error or out

    return run


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_compare_prints_what_differs_and_draws_the_curves(run: Run) -> None:
    save_attempt("a", {10: 1.0}, best=10)
    save_attempt("微博", {20: 1.0}, keep_prob=0.7, copy=True, columns=("1", "2"))
    rows = dict(line.split("  ", 1) for line in run("compare", "a", "微博").splitlines() if "  " in line)
    shown = {name: value.split() for name, value in rows.items()}
    sizes = {
        name: [float(x.rstrip("M")) for x in shown.pop(name) if x[-1] != "B"] for name in ("weights", "size on disk")
    }
    assert all(second >= first > 0 for first, second in sizes.values())
    assert shown == {
        "": ["a", "微博"], "--columns": ["-", "1", "2"], "--keep-prob": ["0.5", "0.7"], "--copy": ["off", "on"],
        "training pairs": ["2,000", "2,000"], "tokens of the vocabulary": ["263", "263"], "step": ["10", "20"],
        "best nats per character": ["4.500", "-"], "at step": ["10", "-"],
        "last loss, nats per token": ["3.500", "3.500"], "state": ["ready", "ready"],
    }  # fmt: skip
    assert Path("curves-a-微博.png").read_bytes().startswith(b"\x89PNG")
    assert "Curves: b.svg" in run("compare", "checkpoints/a", "微博", "--plot", "b.svg")


def test_compare_names_the_better_one_in_100_columns(run: Run) -> None:
    """Where both were validated on the same pairs, and one is better."""
    folder = "/home/somebody/with/a/long/name/corpora/of/2026/"
    for name, nats, validation in (("a", 4.5, "v"), ("b", 4.25, "v"), ("c", 4.5, "v"), ("d", 4.5, "other")):
        last = save_attempt(name, {1: 1.0}, best=1, data=(f"{folder}{name}.tsv",)) / "last"
        write_json(last, {**json.loads(last.read_text()), "best_nats": nats, "validation": validation})
        last.with_name("metrics.jsonl").unlink()
    lines = run("compare", "a", "b").splitlines()
    assert lines[-2:] == [
        "Better: b, by 0.2500 nats per character on the same held-out pairs.",
        "No curves: no attempt has a metrics.jsonl with records.",
    ]
    shown = next(line for line in lines if line.startswith("--data"))
    assert shown.count("…") == 2
    assert shown.split()[1].endswith("2026/a.tsv")
    assert max(map(len, lines)) <= 100
    assert "Better" not in run("compare", "a", "c")  # they are equally good
    shutil.copy("checkpoints/a/config.json", "checkpoints/d")
    lines = run("compare", "a", "d").splitlines()
    assert lines[1] == "no setting differs"
    assert lines[-2].startswith("The attempts were validated on different pairs, so their nats per character")


def test_rename_moves_both_folders_and_keeps_the_ratings(run: Run) -> None:
    save_attempt("a", {1: 1.0})
    Path("tensorboard/a/all").mkdir(parents=True)
    append_rating(RATINGS, rating_record("问", "答", [], "good", "a", written_to=""))
    moved = "checkpoints/a is now checkpoints/微博, and tensorboard/a is tensorboard/微博"
    assert run("rename", "a", "微博") == f"{moved}\ndata/ratings.jsonl: 1 rating of a, now of 微博\n"
    assert (names("checkpoints"), names("tensorboard")) == (["微博"], ["微博"])
    assert len([*given_replies(RATINGS.read_bytes(), ["微博"])]) == 1
    assert load_trained(Path("checkpoints/微博")).step == 1
    Path("tensorboard/微博/all").rmdir()
    Path("tensorboard/微博").rmdir()
    assert run("rename", "微博", "b") == (
        "checkpoints/微博 is now checkpoints/b\ndata/ratings.jsonl: 1 rating of 微博, now of b\n"
    )


def test_delete_removes_both_folders_with_yes_alone(run: Run) -> None:
    for name in ("a", "b"):
        save_attempt(name, {1: 1.0})
    Path("tensorboard/a").mkdir(parents=True)
    Path("tensorboard/c").mkdir()
    out = run("delete", "a", "c").splitlines()
    assert [line.split()[-1] for line in out[:-1]] == ["checkpoints/a", "tensorboard/a", "tensorboard/c"]
    assert out[-1] == "Nothing was deleted; to delete these folders, add --yes."
    assert (names("checkpoints"), names("tensorboard")) == (["a", "b"], ["a", "c"])
    with filelock.FileLock("checkpoints/b/lock"):
        assert run("delete", "a", "b", "--yes").startswith("error: b: another process is training it")
    assert names("checkpoints") == ["a", "b"]
    assert run("delete", "a", "c", "--yes").endswith("Deleted.\n")
    assert (names("checkpoints"), names("tensorboard")) == (["b"], [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a"], "compare a: give two different attempts or more"),
        (["compare", "a", "none"], "compare none: no such attempt in "),
        (["compare", "a", "broken"], "compare broken: vocabulary.txt: vocabulary damaged"),
        (["compare", "a", "b", "--plot", "x.gif"], "--plot x.gif: give the name of a file that ends in .png"),
        (["compare", "a", "b", "--plot", "none/x.png"], "--plot none/x.png: give the name of a file in an existing"),
        (["compare", "a", "empty"], "compare empty: no checkpoint was saved yet; train it first"),
        (["delete", "none"], "delete none: no such attempt in "),
        (["delete", "x/y"], "delete 'x/y': give a short name"),
        (["rename", "", "x"], "NAME '': expected printable text"),
        (["rename", "a"], "rename a: give the old name and the new one"),
        (["rename", "a", "b"], "rename a b: checkpoints/b exists already; choose another name"),
        (["rename", "a", "c"], "rename a c: tensorboard/c exists already"),
        (["rename", "a", "x/y"], "rename 'x/y': give a short name"),
        (["rename", "none", "x"], "rename none: no such attempt in "),
        (["rename", "locked", "x"], "locked: another process is training it"),
    ],
)
def test_invalid_input_is_a_one_line_error(run: Run, arguments: list[str], message: str) -> None:
    whole = save_attempt("a", {1: 1.0})
    for name in ("b", "broken", "locked"):
        shutil.copytree(whole, f"checkpoints/{name}")
    Path("checkpoints/broken/vocabulary.txt").write_text("")
    Path("checkpoints/locked/lock").touch()
    Path("checkpoints/empty").mkdir()
    shutil.copy(whole / "config.json", "checkpoints/empty")
    Path("tensorboard/c").mkdir(parents=True)
    before = sorted(map(str, Path().rglob("*")))
    with filelock.FileLock("checkpoints/locked/lock"):
        assert run(*arguments).startswith(f"error: {message}")
    assert sorted(map(str, Path().rglob("*"))) == before


def test_each_attempt_is_listed_with_its_state(run: Run, work_dir: Path) -> None:
    """Broken ones beside whole ones. Without attempts, a line says so."""
    assert run() == f"No attempts in {work_dir}/checkpoints; train one with python train.py\n"
    assert run("--json") == ""
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
        objects = {each["name"]: each for each in map(json.loads, run("--json").splitlines())}
        lines = run().splitlines()
    assert {name: each["state"] for name, each in objects.items()} == {
        "微博": "ready", "locked": "training", "empty": "empty", "cut": "damaged", "values": "damaged",
        **dict.fromkeys(["no last", "words", "config", "pointer", "no values"], "broken"),
    }  # fmt: skip
    assert {name: each["problem"] for name, each in objects.items() if each["problem"]} == {
        "no last": "last: missing, though there are checkpoints beside it",
        "cut": "ckpt-10: checkpoint damaged (header too small); ckpt-20 is used",
        "words": "vocabulary.txt: damaged, not the vocabulary that the attempt was started with",
        "config": "config.json: --rnn-size {}: expected a whole number",
        "pointer": "last: damaged, it does not name a checkpoint",
        "values": "ckpt-20: checkpoint damaged (header too small); ckpt-10 is used",
        "no values": "ckpt-20: checkpoint damaged (header too small)",
    }
    assert {key: value for key, value in objects["微博"].items() if key not in ("bytes", "saved")} == {
        "name": "微博", "state": "ready", "problem": None, "data": ["talk.tsv"], "pairs": 2000, "rnn_size": 4,
        "num_layers": 1, "vocabulary": 263, "weights": 1619, "step": 20, "best_nats_per_character": 4.5,
        "best_step": 10, "resumable": True,
    }  # fmt: skip
    assert objects["微博"]["bytes"] == sum(path.stat().st_size for path in whole.iterdir())
    assert lines[0].split() == ["name", "data", "size", "weights", "step", "nats", "at", "saved", "disk", "state"]
    assert "words is broken: vocabulary.txt: damaged, not the vocabulary that the attempt was started with" in lines


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


WHOLE = Attempt(
    "weibo", "ready", "", ("weibo.tsv",), 8000, 256, 2, 4194, 4_100_000, 12_000, 4.424, 9_000,
    "2026-11-22T14:08:36+00:00", 56_000_000,
)  # fmt: skip


def test_table_shows_the_values_of_an_attempt() -> None:
    heading, line, other = table([WHOLE, Attempt("很长的名字", data=("甲.tsv", "b"), bytes=10**10)])
    shown = ["weibo", "weibo.tsv", "256x2", "4.1M", "12,000", "4.424", "9,000", "2026-11-22", "56", "MB", "ready"]
    assert line.split() == shown, heading
    assert other.split() == ["很长的名字", "甲.tsv", "+1", *"-" * 6, "10.0", "GB", "empty"]
    assert width(line.partition("ready")[0]) == width(other.partition("empty")[0]) == heading.index("state")
    assert heading == "name        data       size   weights    step   nats     at  saved          disk  state"

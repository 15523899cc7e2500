"""compare, rename and delete, run as commands."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from chatbot.commands import main
from chatbot.durable import write_json
from chatbot.inference.ratings import RATINGS, append_rating, given_replies, rating_of
from chatbot.model.saved import load_trained
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


def test_compare_warns_of_different_validation_pairs(run: Run) -> None:
    for name in ("a", "b"):
        last = save_attempt(name, {1: 1.0}, best=1) / "last"
        write_json(last, {**json.loads(last.read_text()), "validation": name})
        last.with_name("metrics.jsonl").unlink()
    lines = run("compare", "a", "b").splitlines()
    assert lines[1] == "no setting differs"
    assert lines[-2].startswith("They were validated on different pairs, so their nats per character cannot be")
    assert lines[-1] == "No curves: none of them has a metrics.jsonl with records."


def test_compare_names_the_better_one_in_100_columns(run: Run) -> None:
    folder = "/home/somebody/with/a/long/name/corpora/of/2026/"
    for name, nats in (("a", 4.5), ("b", 4.25), ("c", 4.5)):
        last = save_attempt(name, {1: 1.0}, best=1, data=(f"{folder}{name}.tsv",)) / "last"
        write_json(last, {**json.loads(last.read_text()), "best_nats": nats})
    lines = run("compare", "a", "b").splitlines()
    assert "Better: b, by 0.2500 nats per character on the same held-out pairs." in lines
    shown = next(line for line in lines if line.startswith("--data"))
    assert shown.count("…") == 2
    assert shown.split()[1].endswith("2026/a.tsv")
    assert max(map(len, lines)) <= 100
    assert "Better" not in run("compare", "a", "c")  # they are equally good


def test_rename_moves_both_folders(run: Run) -> None:
    save_attempt("a", {1: 1.0})
    Path("tensorboard/a/all").mkdir(parents=True)
    out = run("rename", "a", "微博")
    assert out == "checkpoints/a is now checkpoints/微博, and tensorboard/a is tensorboard/微博\n"
    assert (names("checkpoints"), names("tensorboard")) == (["微博"], ["微博"])
    assert load_trained(Path("checkpoints/微博")).step == 1


def test_delete_removes_both_folders_with_yes_alone(run: Run) -> None:
    for name in ("a", "b"):
        save_attempt(name, {1: 1.0})
    Path("tensorboard/a").mkdir(parents=True)
    Path("tensorboard/c").mkdir()
    out = run("delete", "a", "c").splitlines()
    assert [line.split()[-1] for line in out[:-1]] == ["checkpoints/a", "tensorboard/a", "tensorboard/c"]
    assert out[-1] == "Nothing was deleted; the same command with --yes deletes it."
    assert (names("checkpoints"), names("tensorboard")) == (["a", "b"], ["a", "c"])
    with filelock.FileLock("checkpoints/b/lock"):
        assert run("delete", "a", "b", "--yes").startswith("error: b: another process is training it")
    assert names("checkpoints") == ["a", "b"]
    assert run("delete", "a", "c", "--yes").endswith("Deleted.\n")
    assert (names("checkpoints"), names("tensorboard")) == (["b"], [])


def test_rename_keeps_the_ratings(run: Run) -> None:
    save_attempt("a", {1: 1.0})
    append_rating(RATINGS, rating_of("问", "答", [], "good", "a", written_to=""))
    out = run("rename", "a", "b")
    assert out == "checkpoints/a is now checkpoints/b\ndata/ratings.jsonl: 1 rating of a, now of b\n"
    assert len(given_replies(RATINGS, ["b"])) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cmpare"], "cmpare: no such command; choose compare, rename or delete"),
        (["compare", "a"], "compare a: give two different attempts or more"),
        (["compare", "a", "none"], "compare none: no such attempt in "),
        (["compare", "a", "broken"], "compare broken: vocabulary.txt: vocabulary damaged"),
        (["compare", "a", "b", "--plot", "x.gif"], "--plot x.gif: give the name of a file that ends in .png"),
        (["compare", "a", "b", "--plot", "none/x.png"], "--plot none/x.png: give the name of a file in an existing"),
        (["compare", "a", "empty"], "compare empty: no checkpoint was saved yet; train it first"),
        (["delete", "none"], "delete none: no such attempt in "),
        (["delete", "x/y"], "delete 'x/y': a short name"),
        (["rename", "", "x"], "NAME '': expected printable text"),
        (["rename", "a"], "rename a: give the old name and the new one"),
        (["rename", "a", "b"], "rename a b: checkpoints/b exists already; choose another name"),
        (["rename", "a", "c"], "rename a c: tensorboard/c exists already"),
        (["rename", "a", "x/y"], "rename 'x/y': a short name"),
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

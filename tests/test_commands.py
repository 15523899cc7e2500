"""The commands as processes: fast help, and a one-line error with exit code 2 for invalid input."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import chatbot
from chatbot import commands
from chatbot.chat.loading import LoadedModel
from chatbot.config.chat import ChatSettings
from chatbot.config.training import Settings
from chatbot.version import __version__
from tests.commands import ENVIRONMENT, run

TINY = ("--rnn-size", "8", "--embedding-size", "8", "--steps", "2")


@pytest.mark.parametrize("script", ["train.py", "chat.py", "chatbot.evaluation"])
def test_help_is_fast_and_shows_defaults(script: str) -> None:
    """The seconds are those of the processor, since the machine may be busy with other tests."""
    seconds = []
    for _ in range(3):
        before = os.times()
        completed = run(script, "--help")
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))  # of child processes
    assert 0 < min(seconds) < 0.5
    assert completed.returncode == 0
    assert b"(default: default)" in b" ".join(completed.stdout.split())


@pytest.mark.parametrize("script", ["train.py", "chat.py", "chatbot.evaluation", "chatbot.corpus", "chatbot.attempts"])
def test_version_flag_prints_package_version(script: str) -> None:
    completed = run(script, "--version")
    assert (completed.returncode, completed.stdout.decode()) == (0, f"chatbot {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "many"], "--steps 'many': expected a whole number"),
        (["--stepz", "1"], "unrecognized arguments: --stepz; the nearest is --steps (see python train.py --help)"),
        (["--steps", "1", "--epochs", "1"], "give one of the two"),
        (["--keep-prob", "0"], "--keep-prob 0.0: must be above 0"),
        (["--cell", "rnn"], "--cell rnn: choose one of lstm, gru"),
        (["--attempt", "../other"], "without slashes"),
        (["--config", "none.json"], "none.json: settings cannot be read"),
        (["--gpus", "0,1"], "requested 0, 1; found none"),
        (["--data", "none.tsv"], "none.tsv: no such file"),
        (["--data", "folder"], "folder: a directory without files of pairs"),
        (["--data", "empty.tsv"], "the file is empty"),
        (["--data", "good.tsv", "--validation", "none.tsv"], "none.tsv: no such file"),
        (
            ["--data", "good.tsv", "--validation", "good.tsv"],
            "1 pair, none of them left: pairs that are in the validation file too: 1",
        ),
        (
            ["--data", "good.tsv", "--max-length", "2"],
            "--max-length 2: every pair is longer, the shortest has 3",
        ),
    ],
)
def test_invalid_train_input_is_a_one_line_error(work_dir: Path, arguments: list[str], message: str) -> None:
    Path("empty.tsv").touch()
    Path("folder").mkdir()
    Path("good.tsv").write_text("你好 你好 你好\t你好 你好\n")
    completed = run("train.py", *arguments)
    errors = [line for line in completed.stderr.decode().splitlines() if not line.startswith("NO GPU")]
    assert completed.returncode == 2
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]
    assert not Path("checkpoints").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attempt", "nope"], "/checkpoints; none is there; train one with python train.py, or give the path of its"),
        (["--attempt", "a/b"], "/a/b has no config.json; check the path"),
        (["--beam-size", "0"], "--beam-size 0: must be at least 1"),
        (
            ["--beam-size", "5", "--n-best", "6"],
            "--n-best 6: the search yields at most 5; raise --beam-size or --candidates",
        ),
    ],
)
def test_invalid_chat_input_is_a_one_line_error(work_dir: Path, arguments: list[str], message: str) -> None:
    completed = run("chat.py", *arguments)
    assert completed.returncode == 2
    assert completed.stderr.decode().startswith("error: ")
    assert message in completed.stderr.decode()
    assert completed.stderr.count(b"\n") == 1
    assert completed.stdout == b""


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("train.py", ["--celll", "gru"], "unrecognized arguments: --celll; the nearest is --cell"),
        ("train.py", ["-cells", "gru"], "unrecognized arguments: -cells; the nearest is --cell"),
        ("chatbot.evaluation", ["--dta", "x.tsv"], "unrecognized arguments: --dta; the nearest is --data"),
        ("chatbot.evaluation", ["--beam-size", "2"], "the following arguments are required: --data"),
    ],
)
def test_wrong_flag_names_the_nearest(script: str, arguments: list[str], message: str) -> None:
    completed = run(script, *arguments)
    assert completed.returncode == 2
    assert completed.stderr.decode().startswith(f"error: {message} (see python ")


def test_chat_and_load_pass_on_beam_size_and_length_penalty(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With values that both flags accept."""
    received: list[tuple[object, ...]] = []
    Path("checkpoints/a").mkdir(parents=True)
    Path("checkpoints/a/config.json").touch()

    def chat(model: LoadedModel, settings: ChatSettings) -> int:
        model.responder_of(settings.decoding)
        received.append((model.card.line(),))
        return 0

    trained = SimpleNamespace(step=3, settings=Settings(), model=None)
    monkeypatch.setattr("chatbot.model.saved.load_trained", lambda directory: trained)
    monkeypatch.setattr("chatbot.inference.responder.TensorFlowModel", lambda model: model)
    monkeypatch.setattr(
        "chatbot.inference.responder.Responder",
        lambda trained, settings, model: received.append((settings.beam_size, settings.length_penalty)),
    )
    monkeypatch.setattr("chatbot.chat.terminal.start.chat", chat)
    monkeypatch.setattr("chatbot.quiet.let_gpu_memory_grow", lambda: None)
    monkeypatch.setattr("sys.argv", ["chat.py", "--attempt", "a", "--beam-size", "7", "--length-penalty", "2"])
    assert commands.chat() == 0
    chatbot.load("checkpoints/a", beam_size=7, length_penalty=2.0)
    assert received == [(7, 2.0), ("a; step 3; not validated",), (7, 2.0)]


CONTROL_FLOW = {"Enter", "Exit", "Merge", "NextIteration", "Switch"}


def test_each_tower_runs_on_its_own_device(work_dir: Path) -> None:
    program = "import sys, tensorflow as tf; tf.debugging.set_log_device_placement(True); import chatbot.commands as c"
    completed = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(c.train())", *TINY, "--towers", "2"],
        capture_output=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert completed.returncode == 0
    assert b"NO GPU: training on the CPU" in completed.stderr
    out = completed.stdout.decode()
    assert re.search(r"^0 +cpu_0 +/CPU:0 +\S.*\n1 +cpu_1 +/CPU:1 +\S", out, re.MULTILINE)
    placed = re.findall(r"^PartitionedCall(_1)?/(\S+): \((\w+)\): .*/device:(\S+)$", out, re.MULTILINE)
    for tower, device in (("", "CPU:0"), ("_1", "CPU:1")):
        operations = [(name, kind) for number, name, kind, _ in placed if number == tower]
        # The control flow of loops has the host's sizes, too, which are arguments on the first device.
        computing = {place for number, _, kind, place in placed if number == tower and kind not in CONTROL_FLOW}
        assert computing == {device}
        products = ["gradient_tape" in name for name, kind in operations if "MatMul" in kind]
        assert True in products  # backward
        assert False in products  # forward

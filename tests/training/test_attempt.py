"""An attempt: its lock, damaged files, and settings and data that do not match it."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.model.saved import load_trained
from chatbot.training import loop
from chatbot.training.attempt import attempt_lock, write_attempt
from chatbot.training.data import prepare
from chatbot.training.start import train_here
from chatbot.training.watch import Interrupts
from tests.commands import ENVIRONMENT
from tests.training.small_run import small_settings, train_small


@pytest.fixture(scope="module")
def one_step_attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an attempt of one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("one_step"))
        Path("one.tsv").write_text("你好\t你好呀\n")
        train_small(1, data=("one.tsv",), steps=1)
        return Path("checkpoints/default").resolve()


def test_mismatch_with_the_attempt_is_refused_and_changes_nothing(pairs_file: Path) -> None:
    data = (str(pairs_file),)
    train_small(data=data, steps=1)
    files = {p: p.read_bytes() for p in Path("checkpoints/default").iterdir()}
    with pytest.raises(UserError, match=r"--rnn-size 16 -> 32; --optimizer adam -> sgd"):
        train_small(data=data, steps=2, rnn_size=32, optimizer="sgd")
    pairs_file.write_text(pairs_file.read_text() + "新\t旧\n")
    with pytest.raises(UserError, match=r"started with other training pairs \(10 then, 11 now; the flags"):
        train_small(data=data, steps=2)
    with pytest.raises(UserError, match="--batch-size 1: less than the 2 towers"):
        train_small(data=data, steps=2, batch_size=1, attempt="other")
    assert {p: p.read_bytes() for p in Path("checkpoints/default").iterdir()} == files


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "ckpt-1.safetensors").unlink(), "checkpoint missing"),
        (lambda d: (d / "ckpt-1.json").unlink(), "checkpoint missing"),
        (lambda d: (d / "ckpt-1.json").write_bytes(b"damaged"), "checkpoint damaged"),
        (lambda d: (d / "ckpt-1.safetensors").write_bytes(b""), "checkpoint damaged"),
        (lambda d: (d / "ckpt-1.safetensors").write_bytes(bytes(90_000)), "checkpoint damaged"),
        (lambda d: (d / "last").write_text("{"), "last: damaged"),
        (lambda d: (d / "last").write_text("[]"), "last: damaged"),
        (lambda d: (d / "last").unlink(), "last: missing, though there are checkpoints beside it"),
        (lambda d: (d / "last").write_text('{"checkpoint": "../x", "step": 1}'), "last: damaged"),
        (lambda d: (d / "config.json").write_text("{"), "config.json: damaged"),
        (lambda d: (d / "config.json").unlink(), "config.json: "),
        (lambda d: (d / "vocabulary.txt").unlink(), "vocabulary.txt: "),
        (
            lambda d: (d / "vocabulary.txt").write_bytes(Vocabulary(["a", *BYTES]).content()),
            "vocabulary.txt: not the vocabulary that ckpt-1 was",
        ),
    ],
)
def test_damaged_attempt_is_reported_on_load(
    pairs_file: Path, damage: Callable[[Path], object], message: str, one_step_attempt: Path
) -> None:
    for file in one_step_attempt.iterdir():
        Path("checkpoints/default").mkdir(parents=True, exist_ok=True)
        Path("checkpoints/default", file.name).write_bytes(file.read_bytes())
    damage(Path("checkpoints/default"))
    with pytest.raises(UserError) as error:
        load_trained(Path("checkpoints/default"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "last").unlink(),
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "data.json").write_text("{}"),
        lambda d: (d / "vocabulary.txt").write_text("甲\n"),
        lambda d: (d / "last").write_text('{"checkpoint": "ckpt-1"}'),
        lambda d: (d / "best").write_text("{"),
    ],
)
def test_damaged_attempt_is_not_overwritten(
    work_dir: Path, damage: Callable[[Path], object], one_step_attempt: Path
) -> None:
    attempt = Path("checkpoints/default")
    shutil.copytree(one_step_attempt, attempt)
    Path("one.tsv").write_text("你好\t你好呀\n")
    damage(attempt)
    before = {path: path.read_bytes() for path in attempt.iterdir()}
    with pytest.raises(UserError):
        train_small(1, data=("one.tsv",), steps=2)
    assert {path: path.read_bytes() for path in attempt.iterdir()} == before


def test_attempt_without_checkpoint_starts_from_scratch(pairs_file: Path) -> None:
    with pytest.raises(UserError, match="less than the 2 towers"):
        train_small(data=(str(pairs_file),), steps=1, batch_size=1)
    settings = small_settings(data=(str(pairs_file),), rnn_size=32)
    Path("checkpoints/default").mkdir(parents=True, exist_ok=True)
    write_attempt(settings, prepare(settings).vocabulary, prepare(settings).description)
    assert train_small(1, data=(str(pairs_file),), steps=1) == 0


def test_attempt_is_locked_by_one_process(work_dir: Path) -> None:
    settings = Settings()
    with (
        attempt_lock(settings),
        pytest.raises(UserError, match="another process is training it"),
        attempt_lock(settings),
    ):
        pass
    with attempt_lock(settings):
        pass


def fail_with_lock(*names: str) -> None:
    """A run that fails after it has written these files."""
    with attempt_lock(Settings()):
        for name in names:
            Path("checkpoints/default", name).touch()
        Path("checkpoints/default/retrieval").mkdir(exist_ok=True)
        raise UserError("failed")


@pytest.mark.parametrize("others", [False, True])
def test_failed_run_leaves_no_attempt_without_a_step(work_dir: Path, others: bool) -> None:
    if others:
        Path("checkpoints/another").mkdir(parents=True)
    with pytest.raises(UserError):
        fail_with_lock("config.json")
    assert Path("checkpoints").exists() == others
    assert not Path("checkpoints/default").exists()
    for kept in ("metrics.jsonl", "ckpt-1.json", "best", "last", "saving", "mine.txt"):
        with pytest.raises(UserError):
            fail_with_lock("config.json", kept)
        assert Path("checkpoints/default/config.json").exists() == (kept != "mine.txt")
        Path("checkpoints/default", kept).unlink()


def test_ctrl_c_while_a_run_is_prepared_leaves_no_attempt(work_dir: Path) -> None:
    """Whether it is pressed in the command, or in a program that has its own handler."""
    for handler, code in (("SIG_DFL", 130), ("default_int_handler", 1)):
        program = (
            "import pathlib, signal; from chatbot.config.training import Settings; "
            "from chatbot.training.attempt import attempt_lock\n"
            f"signal.signal(signal.SIGINT, signal.{handler})\n"
            "with attempt_lock(Settings()):\n"
            "    pathlib.Path('checkpoints/default/config.json').touch()\n"
            "    try: signal.raise_signal(signal.SIGINT)\n"
            "    except KeyboardInterrupt: raise SystemExit(1)"
        )
        completed = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=False)
        assert completed.returncode == code
        assert not Path("checkpoints").exists()


@pytest.mark.parametrize("saved", [False, True])
def test_run_that_is_interrupted_before_its_first_step(
    pairs_file: Path, saved: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leaves no attempt, but one that is resumed stays as it was. A second signal, too, asks for what is left."""
    interrupts = MagicMock(side_effect=loop.interrupts)
    monkeypatch.setattr(loop, "interrupts", interrupts)
    if saved:
        train_here(small_settings(data=(str(pairs_file),), steps=1))
        capsys.readouterr()
    monkeypatch.setattr(Interrupts, "__bool__", lambda self: True)
    assert train_here(small_settings(data=(str(pairs_file),), steps=2)).interrupted
    output = capsys.readouterr().out
    assert Path("checkpoints/default/last").exists() == saved
    assert Path("checkpoints/default").exists() == saved, [*Path("checkpoints").rglob("*")]
    assert ("Stopped at step 0: interrupted. Nothing was saved; the same command begins again." in output) != saved
    assert ("Saved. The same command resumes from here" in output) == saved
    assert interrupts.call_args.args[-1]() != saved


def test_lock_is_exclusive_though_failed_runs_remove_it(work_dir: Path) -> None:
    """Threads lock and fail; a lock file that another thread has just removed locks nothing."""
    inside, errors = [0], []

    def lock_and_fail() -> None:
        for _ in range(50):
            try:
                with attempt_lock(Settings()):
                    inside[0] += 1
                    errors.extend(["two at once"] if inside[0] > 1 else [])
                    inside[0] -= 1
                    raise ZeroDivisionError
            except (ZeroDivisionError, UserError):
                continue
            except BaseException as error:
                errors.append(repr(error))

    threads = [threading.Thread(target=lock_and_fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_file_in_place_of_the_folder_is_reported(work_dir: Path) -> None:
    Path("checkpoints").touch()
    with pytest.raises(UserError, match="cannot be made"), attempt_lock(Settings()):
        pass


def start_racing(name: str) -> "subprocess.Popen[str]":
    """Start training on the file of this name, all in the same attempt."""
    flags = ("--rnn-size", "8", "--embedding-size", "8", "--steps", "2", "--attempt", "both")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.racing", name, "--data", f"{name}.tsv", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        encoding="utf-8",
    )


@pytest.mark.parametrize("at_once", [True, False])
def test_two_runs_with_other_data_are_not_mixed(work_dir: Path, at_once: bool) -> None:
    """Both begin an attempt at once; or b begins while a, which has checked the attempt, pauses before it goes on."""
    words = {"a": "甲乙丙", "b": "子丑寅"}
    for name in words:
        Path(f"{name}.tsv").write_text("".join(f"{word}一\t{word}二\n" for word in words[name]))
    Path("b-go").touch()
    runs = {"a": start_racing("a")}
    if at_once:
        Path("a-go").touch()
    else:
        while not Path("a-checked").exists():
            assert runs["a"].poll() is None
            time.sleep(0.1)
    runs["b"] = start_racing("b")
    errors = {"b": runs["b"].communicate(timeout=300)[1]}
    Path("a-go").touch()
    errors["a"] = runs["a"].communicate(timeout=300)[1]

    codes = {name: run.returncode for name, run in runs.items()}
    assert sorted(codes.values()) == [0, 2], errors
    trained, refused = sorted(codes, key=lambda name: codes[name])
    reasons = r"error: --attempt both(: another process is training it| was started with other training pairs)"
    assert re.match(reasons, errors[refused])
    vocabulary = load_vocabulary(Path("checkpoints/both/vocabulary.txt"))
    assert set(words[trained]) <= set(vocabulary.tokens)
    assert not set(words[refused]) & set(vocabulary.tokens)
    assert json.loads(Path("checkpoints/both/data.json").read_text())["vocabulary"] == vocabulary.fingerprint()
    assert json.loads(Path("checkpoints/both/config.json").read_text())["data"] == [f"{trained}.tsv"]
    assert len(load_trained(Path("checkpoints/both")).vocabulary) == len(vocabulary)


def test_attempt_with_auto_in_its_config_is_resumed(pairs_file: Path) -> None:
    train_small(1, data=(str(pairs_file),), steps=1)
    config = Path("checkpoints/default/config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), "both_directions": "auto"}))
    assert train_small(1, data=(str(pairs_file),), steps=2) == 0

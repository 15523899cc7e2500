"""An attempt: its lock, damaged files, and settings and data that do not match it."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from chatbot.attempts.opening import attempt_lock, has_checkpoint, write_attempt
from chatbot.attempts.trained import load_trained
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import load_vocabulary
from chatbot.errors import UserError
from chatbot.training import data, loop
from chatbot.training.data import prepare
from chatbot.training.start import train_here
from chatbot.training.watch import Interrupts
from tests.commands import ENVIRONMENT
from tests.training.small_run import small_settings, train_small
from tests.training.untraced_update import train_untraced

DEFAULT = Path("checkpoints/default")


def contents() -> dict[Path, bytes]:
    """The files of the attempt."""
    return {path: path.read_bytes() for path in DEFAULT.rglob("*") if path.is_file()}


def test_mismatch_with_the_attempt_is_refused_and_changes_nothing(pairs_file: Path) -> None:
    train_untraced(steps=1, clean=("control", "equal"))
    files = contents()
    clean = ("equal", "control")  # their order does not matter
    with pytest.raises(UserError, match=r"--rnn-size 16 -> 32; --optimizer adam -> sgd"):
        train_untraced(steps=2, clean=clean, rnn_size=32, optimizer="sgd")
    text = pairs_file.read_text()
    pairs_file.write_text(text.replace("丑", "子"))
    with pytest.raises(UserError, match=r"\(10 then, 9 now; changed: --max-reply-frequency None -> 1\)"):
        train_untraced(steps=2, clean=clean, max_reply_frequency=1)
    pairs_file.write_text(text.replace("子", "午", 1))
    with pytest.raises(UserError, match=r"started with other training pairs \(10 then, 10 now; the flags are the same"):
        train_untraced(steps=2, clean=clean)
    with pytest.raises(UserError, match="--batch-size 1: too small for 2 towers"):
        train_small(2, data=("pairs.tsv",), batch_size=1, attempt="other")
    assert contents() == files


def test_attempt_without_checkpoint_starts_from_scratch(pairs_file: Path) -> None:
    """One of a run that has failed, or was killed while it saved the first checkpoint."""
    settings = small_settings(data=("pairs.tsv",), rnn_size=32)
    for leftovers in ((), ("saving", "ckpt-1.json")):
        write_attempt(settings, prepare(settings).vocabulary, prepare(settings).description)
        for name in leftovers:
            (DEFAULT / name).touch()
        train_untraced(steps=1)
        assert has_checkpoint(settings)
        shutil.rmtree(DEFAULT)


def test_attempt_without_a_folder_is_an_error(work_dir: Path) -> None:
    Path("checkpoints").touch()
    with pytest.raises(UserError, match="cannot be created"), attempt_lock(Settings()):
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
        fail_with_lock("config.json", "data.json", "dictionary.txt", "ngrams.npz", "vocabulary.txt")
    assert Path("checkpoints").exists() == others
    assert not DEFAULT.exists()
    for kept in ("metrics.jsonl", "ckpt-1.json", "best", "last", "saving", "mine.txt"):
        with pytest.raises(UserError):
            fail_with_lock("config.json", kept)
        assert (DEFAULT / "config.json").exists() == (kept != "mine.txt")
        (DEFAULT / kept).unlink()


def test_ctrl_c_while_a_run_is_prepared_leaves_no_attempt(work_dir: Path) -> None:
    """Whether it is pressed in the command, or in a program that has its own handler."""
    for handler, code in (("SIG_DFL", 130), ("default_int_handler", 1)):
        program = (
            "import pathlib, signal; from chatbot.config.training import Settings; "
            "from chatbot.attempts.opening import attempt_lock\n"
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
        train_untraced(steps=1)
        capsys.readouterr()
    monkeypatch.setattr(Interrupts, "__bool__", lambda self: True)
    assert train_here(small_settings(data=(str(pairs_file),), steps=2)).interrupted
    output = capsys.readouterr().out
    assert (DEFAULT / "last").exists() == saved
    assert DEFAULT.exists() == saved, [*Path("checkpoints").rglob("*")]
    assert ("Stopped at step 0: interrupted. Nothing was saved; the same command starts again." in output) != saved
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


def test_two_runs_with_other_data_are_not_mixed(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One begins while the other one, which has checked the attempt, has not gone on."""
    words = {"a": "甲乙丙", "b": "子丑寅"}
    for name in words:
        Path(f"{name}.tsv").write_text("".join(f"{word}一\t{word}二\n" for word in words[name]))
    settings = {name: small_settings(data=(f"{name}.tsv",), steps=1) for name in words}
    refused: list[str] = []

    def checked(of_run: Settings) -> bool:
        found = has_checkpoint(of_run)
        if of_run.corpus.data == ("a.tsv",):
            with pytest.raises(UserError) as error:
                train_here(settings["b"])
            refused.append(str(error.value))
        return found

    monkeypatch.setattr(data, "has_checkpoint", checked)
    monkeypatch.setattr("chatbot.training.start.train_on", lambda *_: train_untraced(data=("a.tsv",), steps=1))
    train_here(settings["a"])
    assert "another process is training it" in refused[0]
    vocabulary = load_vocabulary(DEFAULT / "vocabulary.txt")
    assert set(words["a"]) <= set(vocabulary.tokens)
    assert json.loads((DEFAULT / "data.json").read_text())["vocabulary"] == vocabulary.fingerprint()
    with pytest.raises(UserError, match="was started with other training pairs"):
        train_here(settings["b"])
    assert len(load_trained(DEFAULT).vocabulary) == len(vocabulary)

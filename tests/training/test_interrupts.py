"""Signals in real processes, one of them on a pseudo-terminal that is closed."""

import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from chatbot.attempts.attempt import read_attempt
from chatbot.config.run import seconds_of
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus
from chatbot.errors import EXIT_LOST, UserError
from chatbot.model.checkpoint import read_pointer
from chatbot.model.saved import load_trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.data import prepare
from chatbot.training.loop import Window, train
from chatbot.training.share import Prepared
from chatbot.training.validation import Validation, Validator
from tests.commands import ENVIRONMENT
from tests.training.attempts import metrics, saved_step
from tests.training.small_run import open_with, small_settings, train_small
from tests.training.untraced_update import UntracedUpdate

# Runs `interrupts` and then the code of a test, and writes what has happened.
SCRIPT = """
import hashlib, pathlib, sys, time
from chatbot.training.watch import interrupts

def busy(seconds):
    # As within TensorFlow, no Python handler runs meanwhile.
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(seconds * {rounds}))

with interrupts(True, float('{grace}'), leave=pathlib.Path("unused").exists) as received:
    pathlib.Path("started").touch()
    {code}
print("done", received.number, flush=True)
pathlib.Path("result").write_text(str(received.number))
"""


def rounds_per_second() -> int:
    """The rounds of a hash in a second, at most."""
    import hashlib

    started = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    return int(200_000 / (time.perf_counter() - started))


def script(code: str, grace: float = math.inf) -> list[str]:
    """The command line of a process that runs this code while it receives signals."""
    return [sys.executable, "-c", SCRIPT.format(code=code, grace=grace, rounds=rounds_per_second())]


def hang_up_by_default() -> None:
    """Undo the effect of a nohup that runs the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_for_start() -> None:
    """Wait until the handlers are there."""
    deadline = time.monotonic() + 60
    while not Path("started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


WAIT = "while not received: time.sleep(0.02)"


@pytest.mark.parametrize(
    ("code", "grace", "numbers", "code_expected", "text"),
    [
        (WAIT, math.inf, [signal.SIGTERM], 0, f"done {signal.SIGTERM:d}"),
        (WAIT, math.inf, [signal.SIGHUP], 0, f"done {signal.SIGHUP:d}"),
        ("busy(2)", 0.5, [signal.SIGUSR1], 0, f"done {signal.SIGUSR1:d}"),  # the time of a job has an end of its own
        (
            "busy(60)",
            math.inf,
            [signal.SIGINT, signal.SIGINT],
            130,
            "error: a second signal; the last checkpoint is kept",
        ),
        ("busy(60)", math.inf, [signal.SIGINT] * 20, 130, "error: a second signal; the last checkpoint is kept"),
        ("busy(60)", 0.5, [signal.SIGTERM], 130, "error: not finished within 0.5 seconds; the last"),
        ("busy(2)", 0.5, [signal.SIGINT], 0, f"done {signal.SIGINT:d}"),  # a Ctrl-C has no grace time
    ],
    ids=["SIGTERM", "SIGHUP", "SIGUSR1", "second Ctrl-C", "many", "grace time", "Ctrl-C"],
)
def test_signals_end_a_process(
    work_dir: Path, code: str, grace: float, numbers: list[signal.Signals], code_expected: int, text: str
) -> None:
    with subprocess.Popen(
        script(code, grace),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        preexec_fn=hang_up_by_default,
    ) as process:
        wait_for_start()
        for number in numbers:
            process.send_signal(number)  # none once it has ended
            time.sleep(0.3)
        has_ended = process.poll() is not None
        out = process.communicate(timeout=20)[0].decode()
    assert process.returncode == code_expected, out
    assert has_ended or len(numbers) < 20, "further signals must not put off the end"
    assert text in out
    assert out.count("Finishing this step, then saving.") == 1


def test_second_signal_says_that_nothing_was_saved(work_dir: Path) -> None:
    Path("unused").touch()
    with subprocess.Popen(script("busy(60)"), stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        wait_for_start()
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.communicate(timeout=20)[1].decode().endswith("error: a second signal; nothing was saved\n")


def test_closed_terminal_does_not_break_the_output(work_dir: Path) -> None:
    """The process leads the session of the terminal, so it gets a SIGHUP, and can no longer print."""
    pid, terminal = pty.fork()
    if pid == 0:
        hang_up_by_default()
        command = script(WAIT)
        os.execve(command[0], command, ENVIRONMENT)
    wait_for_start()
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    assert Path("result").read_text() == str(int(signal.SIGHUP))


def test_ignored_hangup_stays_ignored(work_dir: Path) -> None:
    """nohup starts a process in this way."""
    with subprocess.Popen(
        script(WAIT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        wait_for_start()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert f"done {signal.SIGTERM:d}" in process.communicate(timeout=20)[0].decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGUSR1, EXIT_LOST)])
def test_run_saves_and_has_the_exit_code_of_the_signal(number: int, code: int, pairs_file: Path) -> None:
    """Slurm sends SIGUSR1 before the end of a job's time."""
    settings = small_settings(data=(str(pairs_file),), validation="none", steps=9)

    def opened(model: Seq2Seq, chosen: Settings) -> UntracedUpdate:
        return UntracedUpdate(model, chosen, strike=lambda step: os.kill(os.getpid(), number) if step == 2 else None)

    result = train(open_with(opened, settings, prepare(settings)))
    assert (result.step, result.interrupted, result.exit_code, saved_step()) == (2, True, code, 2)
    again = train(open_with(UntracedUpdate, settings, prepare(settings)))
    assert (again.step, again.interrupted, again.exit_code) == (9, False, 0)


@pytest.mark.parametrize(
    "text", ["", "90", "0:00", "1:60", "-1:00", "1:5", "1:00:60", "١:٠٠", "1:00 ", "123456:00", "1.5:00"]
)
def test_invalid_time_limits_are_errors(text: str) -> None:
    with pytest.raises(UserError, match=r"--time-limit .*: expected hours:minutes, such as 35:30"):
        seconds_of(text)


@pytest.mark.parametrize(("text", "seconds"), [("35:30", 127_800), ("0:01", 60), ("00:00:05", 5), ("100:00", 360_000)])
def test_time_limit_has_hours_and_minutes(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


def test_run_ends_in_good_order_when_the_time_is_up(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = pairs_file.with_name("held_out.tsv")
    held_out.write_text("甲甲\t癸癸癸\n")
    seconds, next_batch = [0], Window.next_batch

    def after_a_second(window: Window) -> Prepared:
        seconds[0] += 1
        return next_batch(window)

    monkeypatch.setattr(Window, "next_batch", after_a_second)
    clock = SimpleNamespace(time=lambda: seconds[0], monotonic=time.monotonic)
    monkeypatch.setattr("chatbot.training.run.time", clock)
    run = {"data": (str(pairs_file),), "validation": str(held_out), "steps": 10**6, "log_every": 10**6}
    assert train_small(1, **run, time_limit="0:01", deadline=9) == 0
    step = saved_step()
    assert step == 9
    last, out = metrics()[-1], capsys.readouterr().out
    assert last["step"] == step
    assert not [name for name in last if name.startswith("validation.")]
    assert "nats per character, at the end of --time-limit; it does not count\n" in out
    assert f"Stopped at step {step:,}: --time-limit is over; the same command goes on from here." in out
    assert json.loads(Path("checkpoints/default/config.json").read_text()).keys().isdisjoint({"time_limit", "deadline"})


def test_chat_uses_the_better_checkpoint_of_a_limited_run(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a validation at the end of --time-limit shows decides nothing in the run that goes on."""
    held_out = pairs_file.with_name("held_out.tsv")
    held_out.write_text("甲甲\t癸癸癸\n")
    seconds, next_batch = [0], Window.next_batch
    nats = iter([2.2, 2.1, 2.0, 2.05, 2.3])

    def after_a_second(window: Window) -> Prepared:
        seconds[0] += 1
        return next_batch(window)

    monkeypatch.setattr(Window, "next_batch", after_a_second)
    monkeypatch.setattr("chatbot.training.run.time", SimpleNamespace(time=lambda: seconds[0], monotonic=time.monotonic))
    monkeypatch.setattr("chatbot.training.data.FEWEST_DECIDING", 1)
    validate = Validator.validate

    def validated(validator: Validator, corpus: Corpus) -> Validation:
        found = validate(validator, corpus)
        return found._replace(values={**found.values, "nats_per_character": next(nats)})

    monkeypatch.setattr(Validator, "validate", validated)
    directory = Path("checkpoints/default")
    run = {"data": (str(pairs_file),), "validation": str(held_out), "validate_every": 4, "log_every": 4}
    assert train_small(1, **run, steps=10**6, time_limit="0:01", deadline=10) == 0
    out = capsys.readouterr().out
    assert "validation 2.0000 nats per character, at the end of --time-limit; chat uses this checkpoint\n" in out
    assert "Best: 2.0000 nats per character at step 10, the last, in checkpoints/default\n" in out
    assert read_pointer(directory / "best")["step"] == 8
    attempt = read_attempt(directory)
    assert (attempt.best_nats_per_character, attempt.best_step) == (2.0, 10)
    assert load_trained(directory).step == 10
    assert train_small(1, **run, steps=12) == 0  # as a run without a limit: the third validation is of step 12
    assert "nats_at_end" not in read_pointer(directory / "last")
    assert (read_pointer(directory / "best")["best_nats"], load_trained(directory).step) == (2.05, 12)
    seconds[0] = 0
    assert train_small(1, **run, steps=10**6, time_limit="0:01", deadline=1) == 0
    assert "at the end of --time-limit; it does not count\n" in capsys.readouterr().out
    assert load_trained(directory).step == 12

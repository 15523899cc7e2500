"""Signals in real processes, one of them on a pseudo-terminal that is closed."""

import hashlib
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.description import read_attempt
from chatbot.attempts.trained import load_trained
from chatbot.config.run import parse_time_limit
from chatbot.errors import EXIT_LOST, UserError
from chatbot.training.watch import interrupts
from tests.commands import ENVIRONMENT
from tests.training.attempts import metrics, saved_step
from tests.training.small_run import validated
from tests.training.untraced_update import train_untraced

# Runs `interrupts` and then the code of a test, and writes what has happened.
SCRIPT = """
import hashlib, pathlib, sys, time
from chatbot.training import watch
from chatbot.training.watch import interrupts

watch.REPEATED = {repeated}

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
    started = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    return int(200_000 / (time.perf_counter() - started))


def script(code: str, grace: float = math.inf, repeated: float = 60) -> list[str]:
    """The command line of a process that runs this code while it receives signals.

    repeated: seconds in which the same signal counts once.
    """
    text = SCRIPT.format(code=code, grace=grace, repeated=repeated, rounds=rounds_per_second())
    return [sys.executable, "-c", text]


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
        (WAIT, math.inf, [signal.SIGHUP], 0, f"done {signal.SIGHUP:d}"),
        ("busy(1)", 0.3, [signal.SIGUSR1], 0, f"done {signal.SIGUSR1:d}"),  # the time of a job has an end of its own
        ("busy(1)", 0.3, [signal.SIGINT], 0, f"done {signal.SIGINT:d}"),  # a Ctrl-C has no grace time
        ("busy(60)", 0.5, [signal.SIGTERM], 130, "error: not finished within 0.5 seconds; the last checkpoint is kept"),
        (f"{WAIT}; time.sleep(2)", math.inf, [signal.SIGTERM] * 5, 0, f"done {signal.SIGTERM:d}"),
        ("busy(2)", math.inf, [signal.SIGINT] * 5, 0, f"done {signal.SIGINT:d}"),
        ("busy(60)", math.inf, [signal.SIGINT] * 20, 130, "error: a second signal; nothing was saved"),
    ],
    ids=["SIGHUP", "SIGUSR1", "Ctrl-C", "grace time", "repeated", "repeated within TensorFlow", "many"],
)
def test_signals_end_a_process(
    work_dir: Path, code: str, grace: float, numbers: list[signal.Signals], code_expected: int, text: str
) -> None:
    if "nothing was saved" in text:
        Path("unused").touch()
    with subprocess.Popen(
        script(code, grace, 0.5 if len(numbers) == 20 else 60),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        preexec_fn=hang_up_by_default,
    ) as process:
        wait_for_start()
        for number in numbers:
            process.send_signal(number)  # none once it has ended
            time.sleep(0.2)
        has_ended = process.poll() is not None
        out = process.communicate(timeout=20)[0].decode()
    assert process.returncode == code_expected, out
    assert has_ended or len(numbers) < 20, "further signals must not put off the end"
    assert text in out
    assert out.count("Finishing this step, then saving.") == 1


@pytest.mark.system
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


def test_signal_handlers_are_installed_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hangup that is ignored (nohup) stays so. Afterwards, the earlier handlers are back."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before = [signal.getsignal(number) for number in numbers]
        with interrupts(announced=False) as received:
            signal.raise_signal(signal.SIGHUP)
            assert not received
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # as from a supervisor, beside the one of the whole unit
            assert received.number == signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr("chatbot.training.watch.REPEATED", 0)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert [signal.getsignal(number) for number in numbers] == before
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGHUP, hang_up)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGUSR1, EXIT_LOST)])
def test_run_saves_and_has_the_exit_code_of_the_signal(
    number: int, code: int, pairs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm sends SIGUSR1 before the end of a job's time. An interrupted step is logged and saved."""
    strike = {2: lambda: os.kill(os.getpid(), number)}
    _, result = train_untraced(strike=lambda step: strike.get(step, int)(), steps=9, log_every=5, save_every=5)
    assert (result.step, result.interrupted, result.exit_code, saved_step()) == (2, True, code, 2)
    assert [line["step"] for line in metrics()] == [1, 2]
    out = capsys.readouterr().out
    assert "Stopped at step 2: interrupted." in out
    assert "The same command resumes from here" in out
    _, again = train_untraced(steps=9)
    assert (again.step, again.interrupted, again.exit_code) == (9, False, 0)


def test_time_limit_has_hours_and_minutes() -> None:
    texts = "35:30", "0:01", "00:00:05", "100:00"
    assert [parse_time_limit(text) for text in texts] == [127_800, 60, 5, 360_000]
    for text in ("", "90", "0:00", "1:60", "-1:00", "1:5", "1:00:60", "١:٠٠", "1:00 ", "123456:00"):
        with pytest.raises(UserError, match=r"--time-limit .*: expected hours:minutes, such as 35:30"):
            parse_time_limit(text)


class Clock:
    """Replaces the module `time`: each step takes a second."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("chatbot.training.run.time", self)

    def time(self) -> int:
        """The time in seconds."""
        return self.now

    def pass_second(self, step: int) -> None:
        """Let a step end."""
        self.now += 1


def test_time_limit_saves_and_stops_the_run(
    held_out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.data.MIN_DECISIVE_PAIRS", 2)
    run = {"validation": str(held_out), "steps": 10**6, "log_every": 10**6, "save_every": 10**6}
    strike = Clock(monkeypatch).pass_second
    _, result = train_untraced(**run, strike=strike, time_limit="0:01", deadline=9)
    assert (result.exit_code, result.step, saved_step()) == (0, 9, 9)
    last, out = metrics()[-1], capsys.readouterr().out
    assert last["step"] == 9
    assert not [name for name in last if name.startswith("validation.")]
    assert "nats per character, at the end of --time-limit; it does not count\n" in out
    assert "Stopped at step 9: --time-limit has expired; the same command resumes training." in out
    assert json.loads(Path("checkpoints/default/config.json").read_text()).keys().isdisjoint({"time_limit", "deadline"})


def test_chat_uses_the_better_checkpoint_of_a_limited_run(
    held_out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a validation at the end of --time-limit shows decides nothing in the run that goes on."""
    clock = Clock(monkeypatch)
    validated(monkeypatch, 2.2, 2.1, 2.0, 2.05, 2.3)
    directory = Path("checkpoints/default")
    run = {"validation": str(held_out), "validate_every": 4, "log_every": 4, "strike": clock.pass_second}
    limit = {"steps": 10**6, "time_limit": "0:01"}
    train_untraced(**run, **limit, deadline=10)
    out = capsys.readouterr().out
    assert "validation 2.0000 nats per character, at the end of --time-limit; chat uses this checkpoint\n" in out
    assert "Best: 2.0000 nats per character at step 10, the last, in checkpoints/default\n" in out
    assert read_pointer(directory / "best")["step"] == 8
    attempt = read_attempt(directory)
    assert (attempt.best_nats_per_character, attempt.best_step) == (2.0, 10)
    assert load_trained(directory).step == 10
    train_untraced(**run, steps=12)  # as a run without a limit: the third validation is of step 12
    assert "nats_at_end" not in read_pointer(directory / "last")
    assert (read_pointer(directory / "best")["best_nats"], load_trained(directory).step) == (2.05, 12)
    clock.now = 0
    train_untraced(**run, **limit, deadline=1)
    assert "at the end of --time-limit; it does not count\n" in capsys.readouterr().out
    assert load_trained(directory).step == 12

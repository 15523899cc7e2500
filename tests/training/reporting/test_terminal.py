"""What a run shows: its lines on a terminal, in a file, and where streams are closed or full."""

import io
import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import chatbot
from chatbot.evaluation.measures import Sample
from chatbot.training.reporting.reporter import Reporter
from chatbot.training.reporting.terminal import HEADER, Stream, metrics_line, steps_left, time_left
from chatbot.training.schedule import Calendar
from chatbot.training.start import train_here
from chatbot.training.validation import Validation
from tests.commands import ENVIRONMENT
from tests.training.attempts import metrics
from tests.training.reporting.fake_run import fake_run, record_of
from tests.training.small_run import small_settings

pytestmark = pytest.mark.usefixtures("work_dir")
LONG = "请问你今天早上去公园跑步的时候有没有看见我的小狗" * 2


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True

    @property
    def frames(self) -> list[str]:
        """What was shown in a line at a time."""
        return [frame.rstrip() for frame in re.split(r"[\r\n]+", self.getvalue()) if frame.strip()]

    @property
    def lines(self) -> list[str]:
        """What stays on the screen."""
        return [line.split("\r")[-1].rstrip() for line in self.getvalue().split("\n")]


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def streams(output: Any, error: Any) -> Iterator[None]:
    """Replace the standard streams."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", output)
        patch.setattr("sys.stderr", error)
        yield


def show(run: Any, hours: float, seconds_per_step: float, clock: Clock) -> Reporter:
    """Show steps of some hours: a record each ten, and a validation each hundred, of which the first is the best."""
    reporter = Reporter(run, ["cpu_0"], now=clock)
    for step in range(1, 1 + round(3600 * hours / seconds_per_step)):
        clock.seconds += seconds_per_step
        run.progress.step = step
        reporter.advance()
        if step % run.calendar.validate_every == 0:
            values: dict[str, float | None] = {"nats_per_character": 4 + step / 10_000}
            best = run.progress.record_validation(values)
            reporter.validation(Validation(values, None, []), best)
        if step % 10 == 0 or step == 1:
            reporter.record(record_of(step))
    return reporter


def test_run_on_a_terminal(pairs_file: Path) -> None:
    held_out, questions = pairs_file.with_name("held_out.tsv"), pairs_file.with_name("probe.txt")
    held_out.write_text("甲甲\t癸癸癸\n")
    questions.write_text(f"甲甲\n{LONG}\n")
    with streams(shown := Terminal(), shown):
        run = {"data": (str(pairs_file),), "both_directions": "off", "probe": "probe.txt"}
        train_here(small_settings(**run, validation=str(held_out), validate_every=15, steps=30))
    lines = shown.lines
    first = lines.index("   step     loss  tokens/s  wait     norm      rate")
    last = lines.index("Stopped at step 30: step 30 was the last one; continue with a larger --steps or --epochs.")
    assert lines[first + 1].startswith(f"      1{metrics()[0]['loss']:>9.4f}")
    assert re.fullmatch(r"     15  validation \d\.\d{4} nats per character", lines[first + 2])
    assert lines[first + 3].startswith("  甲甲 -> ")
    assert lines[first + 4].startswith(f"  {LONG} -> ")
    assert lines[last - 1].startswith("     30   ")
    assert [line.split()[0][:5] for line in lines[last + 1 :] if line] == [
        *("Sampl", "甲甲", "甲甲", LONG[:5], "Time:", "Best:", "Pictu", "Curve", "Talk"),
    ]
    assert lines[-2] == "Talk to it: python chat.py --attempt default"
    before, during = shown.frames[: shown.frames.index(lines[first])], shown.frames[shown.frames.index(lines[first]) :]
    assert any(frame.startswith("compiling") for frame in before)
    assert any(frame.startswith("loss ") and "/30  " in frame for frame in during)
    assert Path("checkpoints/default/curves.png").stat().st_size > 1000


def test_file_gets_few_plain_lines() -> None:
    """36 hours with a validation each 20 minutes."""
    run, clock, output = fake_run(500_000, patience=1000), Clock(), io.StringIO()
    run.calendar = run.calendar.__class__(10, 500, 2400, 500_000)
    with streams(output, output):
        show(run, 36, 0.5, clock).close()
    assert not {"\r", "\x1b"} & set(output.getvalue())
    lines = output.getvalue().splitlines()
    assert sum("validation" in line for line in lines) == 108
    rows = [line for line in lines if re.match(r" *[\d,]+   4\.5000", line)]
    assert 400 < len(rows) < 900
    assert len(lines) < 1100
    steps = [int(row.split()[0].replace(",", "")) for row in rows]
    assert min(b - a for a, b in itertools.pairwise(steps)) * 0.5 >= 60
    assert max(b - a for a, b in itertools.pairwise(steps)) * 0.5 <= 310
    assert re.search(
        r"   4\.5000    12,346    3%    1\.500     0\.002  2 days, [\d:]+ left, \d{4}-[-\d]+ \d\d:\d\d$", rows[9]
    )


def test_discarded_standard_error_leaves_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`2>/dev/null` on a terminal, `> log` with the bar on the terminal, `> /dev/null 2> log`, a dumb terminal."""
    shown = Terminal()
    with open("/dev/null", "w") as null, streams(shown, null):
        show(fake_run(9), 0.1, 1.0, Clock()).close()
    assert shown.frames == [line for line in shown.lines if line]
    assert "   4.5000 " in shown.lines[1]

    with streams(output := io.StringIO(), shown := Terminal()):
        show(fake_run(900), 0.1, 1.0, Clock()).close()
    assert "   4.5000 " in output.getvalue().splitlines()[1]
    assert any("/900" in frame for frame in shown.frames)
    assert set(shown.lines) == {""}, "the bar is removed in the end"

    error = io.StringIO()
    with open("/dev/null", "w") as null, streams(null, error):
        show(fake_run(900), 0.1, 1.0, Clock()).close()
    assert "   4.5000 " in error.getvalue().splitlines()[1]

    monkeypatch.setenv("TERM", "dumb")
    with streams(shown := Terminal(), shown):
        show(fake_run(900), 0.1, 1.0, Clock()).close()
    assert shown.frames == [line for line in shown.lines if line]


@pytest.mark.parametrize(("chief", "quiet"), [(False, False), (True, True)])
def test_quiet_runs_and_other_machines_show_warnings_only(
    chief: bool, quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fake_run(900, chief=chief, quiet=quiet)
    run.data.probe = [Sample([], "好", "")]
    reporter = Reporter(run, ["cpu_0"])
    reporter.record(record_of(1))
    reporter.replies(["好"])
    reporter.warn("one tower is slow")
    reporter.close()
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Warning: one tower is slow.\n")


def test_quiet_run_prints_the_summary_only(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture fails, which is a warning."""
    monkeypatch.setattr("chatbot.training.reporting.reporter.MIN_RECORDS", 1)
    monkeypatch.setattr("chatbot.training.reporting.reporter.draw", lambda curves, path: path / 0)
    small = {"rnn_size": 8, "embedding_size": 8, "precision": "float32"}
    chatbot.train(data=pairs_file, steps=1, quiet=True, **small)
    printed = capsys.readouterr()
    assert printed.out.startswith("Stopped at step 1: ")
    assert printed.out.endswith("Talk to it: python chat.py --attempt default\n")
    assert "Picture" not in printed.out
    assert "Warning: curves.png cannot be drawn (unsupported operand" in printed.err


@pytest.mark.parametrize(
    ("step", "without_best", "last", "patience", "expected"),
    [
        (100, 0, 1000, None, (900, "")),
        (1000, 0, 1000, None, (0, "")),
        (0, 0, None, 3, (1000, "at least")),  # MIN_STEPS
        (2000, 0, None, 3, (300, "at least")),
        (2050, 2, None, 3, (50, "at least")),
        (2000, 3, None, 3, (100, "at least")),  # a larger --patience was given before
        (2000, 0, 5000, 3, (3000, "at most")),
        (4900, 0, 5000, 3, (100, "")),
        (6000, 0, 5000, 3, (0, "")),
    ],
)
def test_steps_left(
    step: int, without_best: int, last: int | None, patience: int | None, expected: tuple[int, str]
) -> None:
    run = fake_run(last, decides=patience is not None, patience=patience or 1)
    run.calendar = Calendar(10, 500, None if patience is None else 100, last)
    run.progress.step, run.progress.without_best = step, without_best
    assert steps_left(run) == expected


def test_time_left_in_words() -> None:
    run = fake_run(100, decides=False)
    assert re.fullmatch(r"0:05:00 left, \d{4}-\d\d-\d\d \d\d:\d\d", time_left(run, 3.0))
    assert time_left(run, 3600.0).startswith("4 days, 4:00:00 left, ")
    assert time_left(run, 1e10) == time_left(fake_run(0, decides=False), 3.0) == ""
    run.seconds_left = 120.0
    assert time_left(run, 3.0).startswith("0:02:00 left, ")
    run = fake_run(None, patience=3)  # at least 1,000 steps
    assert time_left(run, 3.0).startswith("at least 0:50:00 left, ")
    run.seconds_left = 120.0
    assert time_left(run, 3.0).startswith("0:02:00 left, ")
    run = fake_run(2000, patience=3)
    run.seconds_left = 120.0
    assert time_left(run, 3.0).startswith("at most 0:02:00 left, ")


def test_metrics_are_means_in_aligned_columns() -> None:
    records = [record_of(10, 4.0), record_of(20, 5.0), {**record_of(123_456), "loss": math.nan}]
    assert HEADER == "   step     loss  tokens/s  wait     norm      rate"
    assert metrics_line(records, "0:00:05 left") == "123,456   4.5000    12,346    3%    1.500     0.002  0:00:05 left"
    assert metrics_line([record_of(1, math.nan)]) == "      1        -    12,346    3%    1.500     0.002"


def test_stream_without_a_reader_is_replaced_by_the_null_device() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as file:
        stream = Stream(file)
        stream.write("nobody reads this\n")
        stream.flush()
        print("nor this", file=file, flush=True)  # other code, which would end in a BrokenPipeError
    stream.write("closed\n")
    stream.flush()
    Stream(None).write("there is no stream\n")
    assert not Stream(None).is_terminal


def test_full_disk_is_not_an_error() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    file = open("/dev/full", "w", buffering=1)  # noqa: SIM115  # its content cannot be written when it is closed
    Stream(file).write("no space\n")
    Stream(file).flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    file.close()


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- 2>&-"])
def test_closed_streams_are_replaced(closed: str) -> None:
    """Otherwise the next file that is opened gets the number of standard error, and the log lines of libraries."""
    code = (
        "import os, sys; from chatbot.errors import exit_code_of\n"
        "def main():\n"
        "    print('one line', file=sys.stderr); print('line')\n"
        "    return 7 + (os.open('.', os.O_RDONLY) < 3)\n"
        "sys.exit(exit_code_of(main))"
    )
    command = f'exec {sys.executable} -c "{code}" {closed}'
    assert subprocess.run(["sh", "-c", command], env=ENVIRONMENT, timeout=240, check=False).returncode == 7

"""What a run shows on a real pseudo-terminal, in a file, and without standard output or standard error."""

import io
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import chatbot
from chatbot.evaluation.measures import Sample
from chatbot.training.reporting.reporter import Reporter
from chatbot.training.start import train_here
from chatbot.training.validation import Validation
from tests.training.attempts import metrics
from tests.training.reporting.fake_run import fake_run, record_of
from tests.training.reporting.pseudo_terminal import PseudoTerminal
from tests.training.small_run import small_settings

pytestmark = pytest.mark.usefixtures("work_dir")
LONG = "请问你今天早上去公园跑步的时候有没有看见我的小狗" * 2


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
    reporter = Reporter(run, ["cpu_0"], clock)
    for step in range(1, 1 + round(3600 * hours / seconds_per_step)):
        clock.seconds += seconds_per_step
        run.progress.step = step
        reporter.advance()
        if step % run.calendar.validate_every == 0:
            values: dict[str, float | None] = {"nats_per_character": 4 + step / 10_000}
            best = run.progress.validated(values)
            reporter.validation(Validation(values, None, []), best)
        if step % 10 == 0 or step == 1:
            reporter.record(record_of(step))
    return reporter


def test_run_on_a_terminal(pairs_file: Path) -> None:
    held_out, questions = pairs_file.with_name("held_out.tsv"), pairs_file.with_name("probe.txt")
    held_out.write_text("甲甲\t癸癸癸\n")
    questions.write_text(f"甲甲\n{LONG}\n")
    with PseudoTerminal(80) as shown, streams(shown.stream, shown.stream):
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


def test_discarded_standard_error_leaves_the_lines() -> None:
    """`2>/dev/null` on a terminal, `> log` with the bar on the terminal, and `> /dev/null 2> log`."""
    with PseudoTerminal(80) as shown, open("/dev/null", "w") as null, streams(shown.stream, null):
        show(fake_run(9), 0.1, 1.0, Clock()).close()
    assert shown.frames == [line for line in shown.lines if line]
    assert "   4.5000 " in shown.lines[1]

    output = io.StringIO()
    with PseudoTerminal(80) as shown, streams(output, shown.stream):
        show(fake_run(900), 0.1, 1.0, Clock()).close()
    assert "   4.5000 " in output.getvalue().splitlines()[1]
    assert any("/900" in frame for frame in shown.frames)
    assert set(shown.lines) == {""}, "the bar is removed in the end"

    error = io.StringIO()
    with open("/dev/null", "w") as null, streams(null, error):
        show(fake_run(900), 0.1, 1.0, Clock()).close()
    assert "   4.5000 " in error.getvalue().splitlines()[1]


def test_dumb_terminal_gets_no_control_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with PseudoTerminal(80) as shown, streams(shown.stream, shown.stream):
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
    monkeypatch.setattr("chatbot.training.reporting.reporter.FEWEST_RECORDS", 1)
    monkeypatch.setattr("chatbot.training.reporting.reporter.draw", lambda curves, path: path / 0)
    small = {"rnn_size": 8, "embedding_size": 8, "precision": "float32"}
    for steps in (1, 2):  # the second resumes
        chatbot.train(data=pairs_file, steps=steps, quiet=True, **small)
        printed = capsys.readouterr()
        assert printed.out.startswith(f"Stopped at step {steps}: ")
        assert printed.out.endswith("Talk to it: python chat.py --attempt default\n")
        assert "Picture" not in printed.out
        assert "Warning: curves.png cannot be drawn (unsupported operand" in printed.err

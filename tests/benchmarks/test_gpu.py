"""The report on a machine's GPUs, made on a stand-in."""

import os

import pytest

from benchmarks.gpu import BENCHMARK, Machine
from chatbot.errors import UserError
from tests.benchmarks.running import benchmark
from tests.gpu import standin

pytestmark = pytest.mark.skipif(standin.compiler() is None, reason=standin.NO_COMPILER)


@pytest.mark.slow
def test_report_of_a_standin() -> None:
    """Of the parts that are more than one command of the self-test, or than a row of speed with other flags."""
    report = benchmark("gpu", "--parts", "resume", "memory", "replies", "speed")
    found = {row["what"]: row for row in report["results"]}
    assert "no GPU: simulated GPUs" in report["note"]
    assert found["resumed, --deterministic"]["result"] == "weights equal to the bit"
    assert found["out of memory"]["result"] == "exit 0"
    lines = " ".join(found["out of memory"]["lines"])
    assert "Out of memory: shares of this size are now split into pieces" in lines
    assert found["replies of GPU and CPU"]["result"] == "equal"
    assert found["64 replies, GPU"]["result"] == "exit 0"
    speeds = [row for row in report["results"] if row["part"] == "speed"]
    assert [row["what"] for row in speeds] == [
        "recurrent float32 8", "recurrent bfloat16 8", "transformer float32 8", "transformer bfloat16 8",
    ]  # fmt: skip
    assert [row for row in speeds if not row["result"].endswith(" tokens/s") or len(row["rates"]) != 4] == []


def test_a_command_that_fails_is_a_row(
    pairs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the parts after it still run."""
    monkeypatch.setattr(standin, "environment", lambda **_: dict(os.environ))  # nothing is trained
    monkeypatch.setattr(Machine, "train", lambda self, *_, **__: self.run("-c", "raise SystemExit('no such GPU')"))
    report = benchmark("gpu", "--parts", "resume", "memory", "towers", "--data", pairs)
    results = [row["result"] for row in report["results"]]
    assert results == ["a command failed", *["exit 1: no such GPU"] * 3]
    assert "no such GPU" in capsys.readouterr().err


def test_unknown_part_is_an_error() -> None:
    with pytest.raises(UserError, match=r"--parts speeed: unknown; there are selftest, tests, "):
        BENCHMARK(["--parts", "speeed"])
    with pytest.raises(UserError, match=r"--pytorch nowhere: not an environment"):
        BENCHMARK(["--pytorch", "nowhere"])

"""The report on a machine's GPUs, made on a stand-in."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, gpu_steps
from benchmarks.gpu import BENCHMARK, GpuBenchmark, Machine
from benchmarks.gpu_steps import NO_TIME, Case, measure_cases
from benchmarks.processes import Ended
from benchmarks.tokenised import TokenisedPairs
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.training.devices.gpus import Gpu
from tests.benchmarks.running import benchmark, program
from tests.gpu import standin
from tests.gpu.process import on_standins

PAIRS = TokenisedPairs([], [])
GPU = Gpu(number=0, name="GPU", memory=1, uuid="GPU-0")
needs_standin = pytest.mark.skipif(standin.missing() is not None, reason=str(standin.missing()))


@needs_standin
@pytest.mark.slow
def test_report_of_a_standin() -> None:
    """Of the parts that are more than one command of the self-test, or than a training with other flags."""
    report = benchmark("gpu", "--minutes", "100", "--parts", "replies", "resume", "memory", "xla", "speed")
    found = {row["what"]: row for row in report["results"]}
    assert "no GPU: simulated GPUs" in report["note"]
    assert found["resumed, --deterministic"]["result"] == "weights equal to the bit"
    assert found["out of memory"]["result"] == "exit 0"
    lines = " ".join(found["out of memory"]["lines"])
    assert "Out of memory: shares of this size are now split into pieces" in lines
    assert found["replies of GPU and CPU"]["result"] == "equal"
    assert found["64 replies, GPU"]["result"] == "exit 0"
    parts = [row["part"] for row in report["results"]]
    assert parts == [*["speed"] * 4, *["xla"] * 2, "resume", "memory", *["replies"] * 3]
    speeds = report["results"][:4]
    assert [row["what"] for row in speeds] == [
        "recurrent float32 8", "recurrent bfloat16 8", "transformer float32 8", "transformer bfloat16 8",
    ]  # fmt: skip
    assert [row for row in speeds if not row["result"].endswith(" tokens/s") or len(row["rates"]) != 4] == []
    for row in report["results"][4:6]:  # what cannot be compiled is a row, too
        assert row["without_xla"].endswith(" tokens/s")
        assert "Could not find compiler for platform STANDIN" in row["result"]
    assert 0 < found["64 replies, CPU"]["seconds"] < found["64 replies, GPU"]["seconds"]  # which trains before


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No simulated GPU is built, because the test trains nothing."""
    monkeypatch.setattr(standin, "environment", lambda **_: dict(os.environ))


@pytest.mark.usefixtures("no_gpu")
def test_a_command_that_fails_is_a_row(
    pairs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the parts after it still run."""
    monkeypatch.setattr(Machine, "train", lambda self, *_, **__: self.run("-c", "raise SystemExit('no such GPU')"))
    report = benchmark("gpu", "--parts", "resume", "memory", "towers", "--data", pairs)
    rows = {row["what"]: row["result"] for row in report["results"]}
    failed = "exit 1: no such GPU"
    assert rows == {"--towers 4": failed, "resumed, --deterministic": "a command failed", "out of memory": failed}
    assert "no such GPU" in capsys.readouterr().err


@pytest.mark.usefixtures("no_gpu")
def test_what_does_not_fit_into_the_time_is_named(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "left", 0.0)
    report = benchmark("gpu", "--parts", "tests", "selftest", "--data", pairs)
    rows = [(row["part"], row["what"], row["result"]) for row in report["results"]]
    assert rows == [("selftest", "selftest", NO_TIME), ("tests", "tests", NO_TIME)]
    assert [*measure_cases(PAIRS, [Case("a", Settings())], 4, 0.0, {})] == [{"what": "a", "result": NO_TIME}]


@pytest.mark.usefixtures("no_gpu")
def test_commands_that_take_too_long_are_named(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the tests that have ended, and with what those on simulated GPUs lack."""
    words: list[Any] = []

    def stopped(_: Machine, *arguments: Any, **__: Any) -> Ended:
        words.extend(arguments)
        return Ended(None, output, 3.4)

    output = "[gw0] [  5%] PASSED a.py::a\n[gw1] [ 10%] PASSED a.py::b\n[gw0] [ 15%] FAILED a.py::c\na.py::d"
    monkeypatch.setattr(Machine, "run", stopped)
    monkeypatch.setattr(standin, "HEADER", "none.h")
    report = benchmark("gpu", "--parts", "tests", "selftest", "replies", "--data", pairs)
    assert [row["result"] for row in report["results"]] == [
        "stopped after 3 s: a.py::d",
        *["stopped after 3 s: a.py::d"] * 2,
        "a command failed",
        f"not run: each {standin.NO_HEADERS} none.h",
        "2 passed, 1 failed; then no time was left",
    ]
    assert words[words.index("--retrieve-pairs") + 1] == "0"  # the chat would only look replies up


@pytest.mark.usefixtures("no_gpu")
def test_commands_have_less_time_than_the_report(pairs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulated = Machine(GpuBenchmark(data=pairs, minutes=20), tmp_path)
    assert 600 < simulated.timeout() <= 1200
    monkeypatch.setattr(gpu, "find_gpus", lambda: [GPU])
    real = Machine(GpuBenchmark(data=pairs, minutes=20), tmp_path)
    assert (real.timeout(), real.timeout(7.0)) == (150, 7)
    monkeypatch.setattr(Machine, "left", 5.0)
    assert real.timeout() == 5


@pytest.mark.usefixtures("no_gpu")
def test_pytorch_trains_as_many_steps(pairs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(_: Machine, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
        yield from ({"what": case.what, "result": "fast", "steps": 123} for case in cases)

    monkeypatch.setattr(Machine, "measure", measure)
    figure = """echo '{"target_tokens_per_s": 7}'"""
    script = f'case "$*" in *bfloat16*"--steps 123 "*) exit 3;; *"--steps 123 "*) {figure};; esac'
    home = program(tmp_path, "python", script)
    report = benchmark("gpu", "--parts", "speed", "--pytorch", str(home), "--data", pairs)
    results = {row["what"]: row["result"] for row in report["results"]}
    assert len(results) == 8
    assert results["transformer float32 8"] == "fast"
    assert results["PyTorch transformer float32 8"] == "7 tokens/s"
    assert "exit code 3" in results["PyTorch transformer bfloat16 8"]


def test_simulated_gpu_that_cannot_be_built_is_named(
    pairs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(standin, "HEADER", "none.h")
    monkeypatch.setattr(standin, "build", getattr(standin.build, "__wrapped__"))  # noqa: B009 - not in its type
    with pytest.raises(UserError, match=r"no GPU was found, and there is no simulated one: needs .* lacks none\.h$"):
        BENCHMARK(["--parts", "resume", "--data", pairs])
    with pytest.raises(pytest.skip.Exception, match=r"lacks none\.h"):
        on_standins(print, tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert standin.missing() == standin.NO_COMPILER


class Answering:
    """In place of a process: its row names its number and the time that is left; a case named "ends" ends it."""

    opened, closed = 0, 0

    def __init__(self, make: Any, *arguments: Any) -> None:
        assert (make, arguments) == (gpu_steps.steps_worker, (PAIRS,))
        assert dict(os.environ) == {"A": "b"}
        assert Answering.opened == Answering.closed
        Answering.opened += 1
        self._number = Answering.opened

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        Answering.closed += 1

    def ask(self, case: Case, steps: int, seconds: float) -> Mapping[str, Any]:
        assert 0 < seconds <= 600
        if case.what == "ends":
            raise RuntimeError("a measured process ended")
        return {"result": f"{self._number}, {steps}"}


def test_process_that_ends_is_a_row_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "Worker", Answering)
    cases = [Case(what, Settings()) for what in ("one", "two", "ends", "three")]
    rows = [*measure_cases(PAIRS, cases, 4, 600.0, {"A": "b"})]
    assert [row["what"] for row in rows] == [case.what for case in cases]
    assert [row["result"] for row in rows] == ["1, 4", "1, 4", "a measured process ended", "2, 4"]
    assert Answering.closed == Answering.opened == 2


def test_unknown_part_is_an_error() -> None:
    with pytest.raises(UserError, match=r"--parts speeed: unknown; there are selftest, speed, "):
        BENCHMARK(["--parts", "speeed"])
    with pytest.raises(UserError, match=r"--pytorch nowhere: not an environment"):
        BENCHMARK(["--pytorch", "nowhere"])

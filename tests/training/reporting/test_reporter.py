"""A run goes on when its output cannot be written; warnings reach the terminal and TensorBoard."""

import json
from pathlib import Path

import pytest

from chatbot.training.reporting.reporter import Reporter
from chatbot.training.reporting.tensorboard import TensorBoard
from tests.training.reporting.fake_run import fake_run
from tests.training.small_run import train_small


def test_failing_tensorboard_is_named_once_until_it_works_again(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = TensorBoard.record

    def fails(self: TensorBoard, record: dict[str, float]) -> None:
        if record["step"] in (2, 3, 5):
            raise OSError("no space left on device")
        write(self, record)

    monkeypatch.setattr(TensorBoard, "record", fails)
    assert train_small(1, data=(str(pairs_file),), steps=6, attempt="a") == 0
    assert capsys.readouterr().err.count("TensorBoard cannot be written (no space left on device)") == 2
    lines = Path("checkpoints/a/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_warning_is_shown_everywhere(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[tuple[str, int]] = []
    monkeypatch.setattr(TensorBoard, "warning", lambda self, *written: texts.append(written))
    run = fake_run(60, report_to="tensorboard")
    run.progress.step = 7
    reporter = Reporter(run, ["gpu_0", "gpu_1"])
    reporter.warn("gpu_1 takes 300 ms")
    reporter.close()
    assert texts == [("gpu_1 takes 300 ms", 7)]
    assert "Warning: gpu_1 takes 300 ms.\n" in capsys.readouterr().err

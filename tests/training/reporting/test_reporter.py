"""A run goes on when its output cannot be written; warnings reach the terminal and TensorBoard."""

import json
from pathlib import Path

import pytest

from chatbot.training.reporting.reporter import Reporter
from chatbot.training.reporting.tensorboard import TensorBoard
from tests.training.reporting.fake_run import fake_run, record_of
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


def test_tower_whose_loss_leaves_the_others_is_shown_everywhere(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []
    monkeypatch.setattr(TensorBoard, "warning", lambda self, text, step: texts.append(text))
    monkeypatch.setattr(TensorBoard, "record", lambda self, record: None)
    run = fake_run(60)
    run.settings.run.directory.mkdir(parents=True)
    reporter = Reporter(run, ["gpu_0", "gpu_1"])
    for step in range(1, 61):
        stale = 1.0 if step > 30 else 0.0
        losses = [2 + 0.1 * (step % 3), 2 + 0.1 * (step % 2) + stale]
        reporter.record({**record_of(step), "tower_losses": losses, "tower_target_tokens_per_s": [0.5, 0.5]})
    reporter.close()
    (text,) = texts
    assert text.startswith("the loss of gpu_1 leaves that of the other towers: 3.")
    assert f"Warning: {text}.\n" in capsys.readouterr().err

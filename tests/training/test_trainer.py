"""A run: it learns, stops, saves, and resumes at its last step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.attempts.trained import load_trained
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.training.data import prepare
from chatbot.training.loop import train
from tests.training.attempts import metrics, weights
from tests.training.small_run import open_with, small_settings, train_small, validated
from tests.training.untraced_update import UntracedUpdate, train_untraced


def test_resumed_run_equals_uninterrupted_run(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with dropout, and after a process was killed that had written metrics and no checkpoint."""
    run: dict[str, Any] = {"keep_prob": 0.8, "log_every": 2, "average": 0.9, "history": 2}
    run["data"] = (str(pairs_file),)
    train_small(**run, steps=5, attempt="whole")
    out = capsys.readouterr().out
    assert "甲甲 -> 子" in out.replace("甲 甲", "甲甲")
    assert "Without validation, the last checkpoint is used" in out
    assert out.rstrip().endswith("python chat.py --attempt whole")
    train_small(**run, steps=3, attempt="parts")
    with Path("checkpoints/parts/metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
    capsys.readouterr()
    train_small(**run, steps=5, attempt="parts")
    assert "Resuming from step 3 of checkpoints/parts." in capsys.readouterr().out
    for a, b in zip(weights("whole"), weights("parts"), strict=True):
        np.testing.assert_array_equal(a, b)
    whole, parts = ({line["step"]: line for line in metrics(attempt)} for attempt in ("whole", "parts"))
    assert [*whole] == [1, 2, 4, 5]
    assert [line["step"] for line in metrics("parts")] == [1, 2, 3, 4, 5]
    assert whole[5]["tower_losses"] == parts[5]["tower_losses"]
    assert set(whole[1]) == {
        *("step", "loss", "tower_losses", "gradient_norm", "learning_rate"),
        *("examples_per_s", "target_tokens_per_s", "input_wait", "skipped_updates"),
        *("tower_target_tokens_per_s", "tower_skew", "padding"),
    }
    assert all(len(line["tower_losses"]) == 2 for line in whole.values())
    assert train_small(**run, steps=5, attempt="parts") == 0  # nothing left to do
    assert len(metrics("parts")) == 5


def best_step() -> int:
    """The step of the best checkpoint."""
    return int(json.loads(Path("checkpoints/default/best").read_text())["step"])


def test_validation_keeps_the_best_checkpoint_and_stops_early(
    held_out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before the least number of steps; and as early in a resumed run, unless there are other pairs."""
    monkeypatch.setattr("chatbot.training.run.MIN_STEPS", 9)
    validated(monkeypatch, 2.0, 2.1, 2.1, 1.9, 1.95, 1.92)
    run: dict[str, Any] = {"validation": str(held_out), "patience": 2, "validate_every": 2}
    _, result = train_untraced(**run)
    assert (result.step, result.best_step, result.best_nats_per_character) == (12, 8, 1.9)
    reason = "no improvement in 2 validations; the best was 1.9000 nats per character at step 8"
    assert result.stopped.startswith(f"{reason}; continue with a larger --patience")
    assert (result.directory, result.interrupted) == (Path("checkpoints/default").absolute(), False)
    assert {line["step"]: line.get("best.nats_per_character") for line in metrics() if line["step"] % 2 == 0} == {
        **dict.fromkeys((2, 4, 6), 2.0),
        **dict.fromkeys((8, 10, 12), 1.9),
    }
    assert best_step() == load_trained(Path("checkpoints/default")).step == 8
    assert {path.name.split(".")[0] for path in Path("checkpoints/default").glob("ckpt-*")} == {"ckpt-8", "ckpt-12"}
    assert train_untraced(**run)[1].stopped.startswith(reason)
    held_out.write_text("辰\t甲乙丙丁\n")
    validated(monkeypatch, 5.0, 5.0)
    assert train_untraced(**run, steps=16)[1].best_nats_per_character == 5.0
    assert best_step() == 14
    capsys.readouterr()
    assert train_untraced(**{**run, "validation": "none"}, steps=18)[1].step == 18
    assert "the best checkpoint so far, from step 14, is used" in capsys.readouterr().out
    assert best_step() == 14


def test_few_validation_pairs_decide_nothing(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likelihood of a few pairs differs by chance, so it must not choose a worse checkpoint."""
    Path("held_out.tsv").write_text("".join(f"甲{i}\t癸癸{i}\n" for i in range(49)))
    monkeypatch.setattr("chatbot.training.run.MIN_STEPS", 1)
    validated(monkeypatch, *[2.0] * 6)
    _, result = train_untraced(validation="held_out.tsv", patience=1, steps=12, validate_every=2)
    out = capsys.readouterr().out
    assert "49 pairs are too few to select a checkpoint (at least 50)" in out
    assert result.stopped.startswith("step 12 was the last one")
    assert "validation.nats_per_character" in metrics()[-1]
    assert not Path("checkpoints/default/best").exists()
    assert "Each pair is learned in both directions" not in out


def test_auto_settings_are_resolved_before_training(pairs_file: Path) -> None:
    run, _ = train_untraced(steps=1, precision="auto")
    learning = run.settings.learning
    assert learning.precision in ("float32", "bfloat16")
    assert learning.both_directions == "off"
    config = Path("checkpoints/default/config.json")
    stored = json.loads(config.read_text())
    assert (stored["precision"], stored["both_directions"]) == (learning.precision, "off")
    config.write_text(json.dumps({**stored, "both_directions": "auto"}))
    train_untraced(steps=2, precision="auto")  # keeps the stored choice
    with pytest.raises(UserError, match="--both-directions off -> on"):
        train_untraced(steps=3, both_directions="on")


def test_best_weights_reply_at_the_end_and_have_the_reported_likelihood(
    pairs_file: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends after the best validation."""
    monkeypatch.setattr("chatbot.training.run.MIN_STEPS", 1)
    flags = {"learning_rate": 0.5, "validate_every": 1, "patience": 2, "both_directions": "off"}
    settings = small_settings(data=("pairs.tsv",), validation=str(held_out), **flags)
    run = open_with(UntracedUpdate, settings, prepare(settings))
    result = train(run)
    assert result.best_step < result.step
    best = load_trained(result.directory)
    assert best.step == result.best_step
    for weight, best_weight in zip(run.model.trainable_variables, best.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(weight.numpy(), best_weight.numpy())
    assert run.data.validation is not None
    likelihood = Scorer(best.model)(run.data.validation.shards)
    (line,) = [line for line in metrics() if line["step"] == result.best_step]
    assert line["validation.nats_per_character"] == pytest.approx(likelihood.nats_per_character, rel=1e-4)
    assert line["validation.nats_per_token"] == pytest.approx(likelihood.nats_per_token, rel=1e-4)
    assert result.best_nats_per_character == line["validation.nats_per_character"]

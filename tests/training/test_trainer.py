"""A run: it learns, stops, saves, and resumes at its last step."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.errors import UserError
from chatbot.model.saved import load_trained
from chatbot.training.data import prepare
from chatbot.training.loop import Window, train
from chatbot.training.run import open_run
from tests.model.small_transformer import TRANSFORMER
from tests.training.attempts import metrics, weights
from tests.training.small_run import TOWERS, small_settings, train_small


def test_metrics_have_one_line_per_logged_step(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_small(data=(str(pairs_file),), steps=4, log_every=3) == 0
    lines = metrics()
    assert [line["step"] for line in lines] == [1, 3, 4]
    assert set(lines[0]) == {
        *("step", "loss", "tower_losses", "gradient_norm", "learning_rate"),
        *("examples_per_s", "target_tokens_per_s", "input_wait", "skipped_updates"),
        *("tower_target_tokens_per_s", "tower_skew", "padding"),
    }
    assert all(len(line["tower_losses"]) == 2 for line in lines)
    out = capsys.readouterr().out
    assert "甲甲 -> 子" in out.replace("甲 甲", "甲甲")
    assert "Nothing is validated" in out
    assert out.rstrip().endswith("python chat.py --attempt default")


@pytest.mark.parametrize("model", [{}, TRANSFORMER], ids=["recurrent", "transformer"])
def test_resumed_run_equals_uninterrupted_run(pairs_file: Path, model: dict[str, Any]) -> None:
    """Also with dropout."""
    data = (str(pairs_file),)
    train_small(data=data, steps=7, attempt="whole", **model)
    train_small(data=data, steps=3, attempt="parts", **model)
    train_small(data=data, steps=7, attempt="parts", **model)
    for a, b in zip(weights("whole"), weights("parts"), strict=True):
        np.testing.assert_array_equal(a, b)
    losses = [[(line["step"], line["loss"]) for line in metrics(name)] for name in ("whole", "parts")]
    assert losses[0] == losses[1]
    assert train_small(data=data, steps=7, attempt="parts", **model) == 0  # nothing left to do
    assert len(metrics("parts")) == 7


def test_killed_run_repeats_steps_since_the_checkpoint(pairs_file: Path) -> None:
    data = (str(pairs_file),)
    train_small(1, data=data, steps=2, attempt="killed")
    with Path("checkpoints/killed/metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    train_small(1, data=data, steps=4, attempt="killed")
    assert [line["step"] for line in metrics("killed")] == [1, 2, 3, 4]


def test_validation_keeps_the_best_checkpoint_and_stops_early(
    pairs_file: Path, held_out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.run.LEAST_STEPS", 5)
    held_out.write_text("甲甲\t癸癸癸\n乙乙\t子\n")  # one of them is not like the training pairs
    run = {"data": (str(pairs_file),), "validation": str(held_out), "patience": 2, "validate_every": 5}
    assert train_small(1, **run, learning_rate=0.05) == 0
    out = capsys.readouterr().out
    assert "no improvement in 2 validations; the best was" in out
    validations = [
        (x["step"], x["validation.nats_per_character"]) for x in metrics() if "validation.nats_per_character" in x
    ]
    best_step = min(validations, key=lambda v: v[1])[0]
    assert [step for step, _ in validations][-3:] == [best_step, best_step + 5, best_step + 10]
    assert json.loads(Path("checkpoints/default/best").read_text())["step"] == best_step
    assert load_trained(Path("checkpoints/default")).step == best_step
    checkpoints = {p.name.split(".")[0] for p in Path("checkpoints/default").glob("ckpt-*")}
    assert checkpoints == {f"ckpt-{best_step}", f"ckpt-{best_step + 10}"}
    assert train_small(1, **run) == 0
    assert "no improvement in 2 validations" in capsys.readouterr().out


def test_ctrl_c_saves_and_prints_how_to_resume(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_batch, calls = Window.next_batch, 0

    def interrupt_third_call(window: Window) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            signal.raise_signal(signal.SIGINT)
        return next_batch(window)

    monkeypatch.setattr(Window, "next_batch", interrupt_third_call)
    before = signal.getsignal(signal.SIGINT)
    assert train_small(1, data=(str(pairs_file),), steps=9) == 130
    assert signal.getsignal(signal.SIGINT) is before
    out = capsys.readouterr().out
    assert "Stopped at step 3: interrupted." in out
    assert "The same command resumes from here" in out
    assert json.loads(Path("checkpoints/default/last").read_text())["step"] == 3


def test_one_pair_is_enough_to_train(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work_dir / "one.tsv").write_text("你好\t你好呀\n")
    assert train_small(data=("one.tsv",), steps=2) == 0
    assert "Nothing is validated" in capsys.readouterr().out
    assert metrics()[-1]["tower_losses"][1] is None  # the second tower has no pair


def test_non_finite_loss_ends_run_and_keeps_the_checkpoint(pairs_file: Path) -> None:
    train_small(1, data=(str(pairs_file),), steps=2)
    before = weights("default")
    with pytest.raises(UserError, match="lower --learning-rate"):
        train_small(1, data=(str(pairs_file),), steps=40, learning_rate=1e38, optimizer="adam")
    for a, b in zip(before, weights("default"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_validation_does_not_end_a_run_before_the_least_number_of_steps(
    pairs_file: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.run.LEAST_STEPS", 17)
    held_out.write_text("辰\t甲乙丙丁\n")
    settings = {"data": (str(pairs_file),), "validation": str(held_out), "patience": 1, "learning_rate": 0.3}
    train_small(1, **settings, validate_every=2)
    assert json.loads(Path("checkpoints/default/last").read_text())["step"] == 17


def test_few_validation_pairs_decide_nothing(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The likelihood of a few pairs differs by chance, so it must not choose a worse checkpoint."""
    held_out = pairs_file.with_name("held_out.tsv")
    held_out.write_text("".join(f"甲{i}\t癸癸{i}\n" for i in range(49)))
    train_small(1, data=(str(pairs_file),), validation=str(held_out), patience=1, steps=12, validate_every=2)
    out = capsys.readouterr().out
    assert "49 pairs, too few to judge by (at least 50)" in out
    assert "step 12 was the last one" in out
    assert "validation.nats_per_character" in metrics()[-1]
    assert not Path("checkpoints/default/best").exists()
    assert "Each pair is learned in both directions" not in out


def test_other_validation_pairs_reset_the_best(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.data.FEWEST_DECIDING", 1)
    files = [pairs_file.with_name(name) for name in ("easy.tsv", "hard.tsv")]
    for file, text in zip(files, ("辰\t甲乙丙丁\n", "甲\t子\n"), strict=True):
        file.write_text(text)
    run = {"data": (str(pairs_file),), "validate_every": 2, "patience": 2}
    train_small(1, **run, validation=str(files[0]), steps=2)
    easy = metrics()[-1]["validation.nats_per_character"]
    train_small(1, **run, validation=str(files[1]), steps=4)
    assert metrics()[-1]["validation.nats_per_character"] > easy
    assert json.loads(Path("checkpoints/default/best").read_text())["step"] == 4
    capsys.readouterr()
    train_small(1, **run, validation="none", steps=6)
    assert "the best checkpoint so far, of step 4, is used" in capsys.readouterr().out
    assert json.loads(Path("checkpoints/default/best").read_text())["step"] == 4


def test_result_of_a_run(pairs_file: Path, held_out: Path) -> None:
    settings = small_settings(data=(str(pairs_file),), validation=str(held_out), steps=3)
    result = train(open_run(settings, prepare(settings), TOWERS[:1]))
    assert (result.directory, result.step, result.best_step) == (Path("checkpoints/default").absolute(), 3, 3)
    assert result.stopped.startswith("step 3 was the last one")
    assert not result.interrupted
    assert result.best_nats_per_character == metrics()[-1]["validation.nats_per_character"]


def test_auto_settings_are_resolved_before_training(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings(data=(str(pairs_file),), steps=1, precision="auto")
    assert (settings.learning.precision, settings.learning.both_directions) == ("auto", "auto")
    run = open_run(settings, prepare(settings), TOWERS[:1])
    train(run)
    learning = run.settings.learning
    assert learning.precision in ("float32", "bfloat16")
    assert learning.both_directions == "off"
    stored = json.loads(Path("checkpoints/default/config.json").read_text())
    assert (stored["precision"], stored["both_directions"]) == (learning.precision, "off")
    assert train_small(1, data=(str(pairs_file),), steps=2, precision="auto") == 0  # keeps the stored choice
    with pytest.raises(UserError, match="--both-directions off -> on"):
        train_small(1, data=(str(pairs_file),), steps=3, both_directions="on")

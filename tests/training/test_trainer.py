"""The run: it learns, stops, saves, resumes where it was, and refuses what does not fit."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.model.saved import load_trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import attempt_lock, write_attempt
from chatbot.training.checkpoints import Progress
from chatbot.training.data import prepare
from chatbot.training.devices import Tower
from chatbot.training.start import EXIT_INTERRUPTED
from chatbot.training.trainer import train
from chatbot.training.variable_update.choose import open_update
from chatbot.training.variable_update.synchronous import Synchronous
from chatbot.training.window import Window

SMALL: dict[str, Any] = {"rnn_size": 16, "embedding_size": 8, "batch_size": 4, "log_every": 1, "vocabulary_size": 50}
TOWERS = [Tower(f"cpu_{i}", f"/CPU:{i}", "CPU", None) for i in range(2)]


@pytest.fixture
def pairs(work_dir: Path) -> Path:
    """Ten pairs, each a question with its own answer."""
    path = work_dir / "pairs.tsv"
    path.write_text(
        "".join(f"{q}{q}\t{a}\n" for q, a in zip("甲乙丙丁戊己庚辛壬癸", "子丑寅卯辰巳午未申酉", strict=True))
    )
    return path


def trained(towers: int = 2, **settings: Any) -> int:
    """Run training with small settings; returns the exit code of the command."""
    chosen = compose(Settings, **{**SMALL, **settings})
    used = TOWERS[:towers]
    data = prepare(chosen)
    result = train(chosen, data, used[0].device, lambda model, settings: open_update(model, settings, used))
    return EXIT_INTERRUPTED if result.interrupted else 0


def metrics(attempt: str = "default") -> list[dict]:
    """The lines of metrics.jsonl."""
    text = Path("checkpoints", attempt, "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def weights(attempt: str) -> list[np.ndarray]:
    """All weights and slots in the last checkpoint."""
    directory = Path("checkpoints", attempt)
    reader = tf.train.load_checkpoint(str(directory / json.loads((directory / "last").read_text())["checkpoint"]))
    names = sorted(n for n in reader.get_variable_to_shape_map() if n.endswith("VARIABLE_VALUE"))
    return [reader.get_tensor(name) for name in names]


def test_metrics_have_one_line_per_logged_step(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(data=(str(pairs),), steps=4, log_every=3) == 0
    lines = metrics()
    assert [line["step"] for line in lines] == [1, 3, 4]
    assert set(lines[0]) == {
        *("step", "loss", "tower_losses", "gradient_norm", "learning_rate"),
        *("examples_per_s", "target_tokens_per_s", "input_wait"),
    }
    assert all(len(line["tower_losses"]) == 2 for line in lines)
    out = capsys.readouterr().out
    assert "甲甲 -> 子" in out.replace("甲 甲", "甲甲")
    assert "nothing is validated" in out
    assert out.rstrip().endswith("python chat.py --attempt default")


def test_resumed_run_equals_uninterrupted_run(pairs: Path) -> None:
    data = (str(pairs),)
    trained(data=data, steps=7, attempt="whole")
    trained(data=data, steps=3, attempt="parts")
    trained(data=data, steps=7, attempt="parts")
    for a, b in zip(weights("whole"), weights("parts"), strict=True):
        np.testing.assert_array_equal(a, b)
    losses = [[(line["step"], line["loss"]) for line in metrics(name)] for name in ("whole", "parts")]
    assert losses[0] == losses[1]
    assert trained(data=data, steps=7, attempt="parts") == 0  # nothing left to do
    assert len(metrics("parts")) == 7


def test_killed_run_repeats_steps_since_the_checkpoint(pairs: Path) -> None:
    data = (str(pairs),)
    trained(data=data, steps=2, attempt="killed")
    with Path("checkpoints/killed/metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    trained(data=data, steps=4, attempt="killed")
    assert [line["step"] for line in metrics("killed")] == [1, 2, 3, 4]


def test_validation_keeps_the_best_checkpoint_and_stops_early(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = pairs.with_name("held_out.tsv")
    held_out.write_text("甲甲\t癸癸癸\n乙乙\t子\n")  # one of them unlike the training pairs
    assert (
        trained(1, data=(str(pairs),), validation=str(held_out), patience=2, learning_rate=0.05, validate_every=5) == 0
    )
    out = capsys.readouterr().out
    assert "no improvement in 2 validations; the best was" in out
    validations = [(x["step"], x["validation.nats_per_character"]) for x in metrics() if len(x) > 8]
    best_step = min(validations, key=lambda v: v[1])[0]
    assert [step for step, _ in validations][-3:] == [best_step, best_step + 5, best_step + 10]
    assert json.loads(Path("checkpoints/default/best").read_text())["step"] == best_step
    assert load_trained(Path("checkpoints/default")).step == best_step
    kept = {p.name.split(".")[0] for p in Path("checkpoints/default").glob("ckpt-*")}
    assert kept == {f"ckpt-{best_step}", f"ckpt-{best_step + 10}"}
    assert trained(1, data=(str(pairs),), validation=str(held_out), patience=2, validate_every=5) == 0
    assert "no improvement in 2 validations" in capsys.readouterr().out


def test_ctrl_c_saves_and_prints_how_to_resume(
    pairs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_shares = Window.next_shares

    def press_ctrl_c_at_the_third(window: Window) -> tuple:
        pressed.append(0)
        if len(pressed) == 3:
            signal.raise_signal(signal.SIGINT)
        return next_shares(window)

    pressed: list[int] = []
    monkeypatch.setattr(Window, "next_shares", press_ctrl_c_at_the_third)
    before = signal.getsignal(signal.SIGINT)
    assert trained(data=(str(pairs),), steps=9) == 130
    assert signal.getsignal(signal.SIGINT) is before
    out = capsys.readouterr().out
    assert "Stopped at step 3: interrupted." in out
    assert "The same command resumes from here" in out
    assert json.loads(Path("checkpoints/default/last").read_text())["step"] == 3


def test_one_pair_is_enough_to_train(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work_dir / "one.tsv").write_text("你好\t你好呀\n")
    assert trained(data=("one.tsv",), steps=2) == 0
    assert "nothing is validated" in capsys.readouterr().out
    assert metrics()[-1]["tower_losses"][1] is None  # the second tower has no pair


def test_non_finite_loss_ends_run_and_keeps_the_checkpoint(pairs: Path) -> None:
    trained(data=(str(pairs),), steps=2)
    before = weights("default")
    with pytest.raises(UserError, match="lower --learning-rate"):
        trained(data=(str(pairs),), steps=40, learning_rate=1e38, optimizer="adam")
    for a, b in zip(before, weights("default"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_mismatch_with_the_attempt_is_refused_and_changes_nothing(pairs: Path) -> None:
    data = (str(pairs),)
    trained(data=data, steps=1)
    files = {p: p.read_bytes() for p in Path("checkpoints/default").iterdir()}
    with pytest.raises(UserError, match=r"--rnn-size 16 -> 32; --optimizer adam -> sgd"):
        trained(data=data, steps=2, rnn_size=32, optimizer="sgd")
    pairs.write_text(pairs.read_text() + "新\t旧\n")
    with pytest.raises(UserError, match=r"started with other training pairs \(10 then, 11 now; the flags"):
        trained(data=data, steps=2)
    with pytest.raises(UserError, match="--batch-size 1: less than the 2 towers"):
        trained(data=data, steps=2, batch_size=1, attempt="other")
    assert {p: p.read_bytes() for p in Path("checkpoints/default").iterdir()} == files


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "ckpt-1.index").unlink(), "checkpoint missing"),
        (lambda d: (d / "ckpt-1.index").write_bytes(b"damaged"), "checkpoint damaged"),
        (lambda d: next(d.glob("ckpt-1.data*")).write_bytes(b""), "checkpoint damaged"),
        (lambda d: next(d.glob("ckpt-1.data*")).write_bytes(bytes(90_000)), "checkpoint damaged"),
        (lambda d: (d / "last").write_text("{"), "last: damaged"),
        (lambda d: (d / "last").write_text("[]"), "last: damaged"),
        (lambda d: (d / "last").unlink(), "last: missing, though there are checkpoints beside it"),
        (lambda d: (d / "last").write_text('{"checkpoint": "../x", "step": 1}'), "last: damaged"),
        (lambda d: (d / "config.json").write_text("{"), "config.json: damaged"),
        (lambda d: (d / "config.json").unlink(), "config.json: "),
        (lambda d: (d / "vocabulary.txt").unlink(), "vocabulary.txt: "),
        (lambda d: (d / "vocabulary.txt").write_text("a\n"), "checkpoint damaged, or not of these settings"),
    ],
)
def test_damaged_attempt_is_reported_on_load(
    pairs: Path, damage: Callable[[Path], object], message: str, one_step: Path
) -> None:
    for file in one_step.iterdir():
        Path("checkpoints/default").mkdir(parents=True, exist_ok=True)
        Path("checkpoints/default", file.name).write_bytes(file.read_bytes())
    damage(Path("checkpoints/default"))
    with pytest.raises(UserError) as error:
        load_trained(Path("checkpoints/default"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "last").unlink(),
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "data.json").write_text("{}"),
        lambda d: (d / "vocabulary.txt").write_text("甲\n"),
        lambda d: (d / "last").write_text('{"checkpoint": "ckpt-1", "step": 1, "best_nats": "x"}'),
        lambda d: (d / "best").write_text("{"),
    ],
)
def test_damaged_attempt_is_not_overwritten(work_dir: Path, damage: Callable[[Path], object], one_step: Path) -> None:
    attempt = Path("checkpoints/default")
    shutil.copytree(one_step, attempt)
    Path("one.tsv").write_text("你好\t你好呀\n")
    damage(attempt)
    before = {path: path.read_bytes() for path in attempt.iterdir()}
    with pytest.raises(UserError):
        trained(1, data=("one.tsv",), steps=2)
    assert {path: path.read_bytes() for path in attempt.iterdir()} == before


def test_leftovers_of_a_killed_process_are_removed(pairs: Path) -> None:
    trained(data=(str(pairs),), steps=1)
    Path("checkpoints/default/ckpt-2_temp").mkdir()
    Path("checkpoints/default/ckpt-2_temp/part").touch()
    assert trained(data=(str(pairs),), steps=3) == 0
    assert not Path("checkpoints/default/ckpt-2_temp").exists()


def test_attempt_without_checkpoint_starts_from_scratch(pairs: Path) -> None:
    with pytest.raises(UserError, match="less than the 2 towers"):
        trained(data=(str(pairs),), steps=1, batch_size=1)
    chosen = compose(Settings, **{**SMALL, "data": (str(pairs),), "rnn_size": 32})
    Path("checkpoints/default").mkdir(parents=True, exist_ok=True)
    write_attempt(chosen, prepare(chosen).vocabulary, prepare(chosen).description)
    assert trained(data=(str(pairs),), steps=1) == 0


def test_other_validation_pairs_reset_the_best(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [pairs.with_name(name) for name in ("easy.tsv", "hard.tsv")]
    for file, text in zip(files, ("辰\t甲乙丙丁\n", "甲\t子\n"), strict=True):
        file.write_text(text)
    run = {"data": (str(pairs),), "validate_every": 2, "patience": 2}
    trained(1, **run, validation=str(files[0]), steps=2)
    easy = metrics()[-1]["validation.nats_per_character"]
    trained(1, **run, validation=str(files[1]), steps=4)
    assert metrics()[-1]["validation.nats_per_character"] > easy
    assert json.loads(Path("checkpoints/default/best").read_text())["step"] == 4
    capsys.readouterr()
    trained(1, **run, steps=6)
    assert "the best one so far, of step 4, is the checkpoint to use" in capsys.readouterr().out
    assert json.loads(Path("checkpoints/default/best").read_text())["step"] == 4


def test_attempt_is_locked_by_one_process(work_dir: Path) -> None:
    settings = Settings()
    with (
        attempt_lock(settings),
        pytest.raises(UserError, match="another process is training it"),
        attempt_lock(settings),
    ):
        pass
    with attempt_lock(settings):
        pass


def test_nan_is_never_the_best() -> None:
    progress = Progress(step=1)
    assert not progress.validated(float("nan"))
    assert progress.validated(3.0)


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an attempt of one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("one"))
        Path("one.tsv").write_text("你好\t你好呀\n")
        trained(1, data=("one.tsv",), steps=1)
        return Path("checkpoints/default").resolve()


def test_result_of_a_run(pairs: Path) -> None:
    held_out = pairs.with_name("held_out.tsv")
    held_out.write_text("甲甲\t癸癸癸\n")
    chosen = compose(Settings, **{**SMALL, "data": (str(pairs),), "validation": str(held_out), "steps": 3})
    used = TOWERS[:1]
    result = train(chosen, prepare(chosen), used[0].device, lambda model, settings: open_update(model, settings, used))
    assert (result.directory, result.step, result.best_step) == (Path("checkpoints/default").absolute(), 3, 3)
    assert result.stopped.startswith("step 3 was the last one")
    assert not result.interrupted
    assert result.best_nats_per_character == metrics()[-1]["validation.nats_per_character"]


def test_auto_settings_are_resolved_before_training(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    chosen = compose(Settings, **{**SMALL, "data": (str(pairs),), "steps": 1})
    used = TOWERS[:1]

    def open_step(model: Seq2Seq, settings: Settings) -> Synchronous:
        seen.append(settings)
        return open_update(model, settings, used)

    assert (chosen.learning.precision, chosen.learning.both_directions) == ("auto", "auto")
    train(chosen, prepare(chosen), used[0].device, open_step)
    assert seen[0].learning.precision in ("float32", "bfloat16")
    assert seen[0].learning.both_directions == "off"
    stored = json.loads(Path("checkpoints/default/config.json").read_text())
    assert (stored["precision"], stored["both_directions"]) == (seen[0].learning.precision, "off")
    assert trained(1, data=(str(pairs),), steps=2) == 0  # "auto" keeps what was chosen
    with pytest.raises(UserError, match="--both-directions off -> on"):
        trained(1, data=(str(pairs),), steps=3, both_directions="on")


def test_attempt_with_auto_in_its_config_is_resumed(pairs: Path) -> None:
    trained(1, data=(str(pairs),), steps=1)
    config = Path("checkpoints/default/config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), "both_directions": "auto"}))
    assert trained(1, data=(str(pairs),), steps=2) == 0

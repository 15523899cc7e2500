"""Checkpoints: the last one resumes, the best one replies; which is the best, and what replaces a damaged one."""

from pathlib import Path

import numpy as np
import pytest

from chatbot.attempts.trained import load_trained
from chatbot.config.learning import NATS
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.new_model import build_model
from chatbot.training.replica import TrainState
from tests.training.attempts import metrics
from tests.training.checkpoints.step_checkpoints import (
    DIRECTORY,
    flip_a_bit,
    model_of,
    save,
    steps_on_disk,
    values_of,
)
from tests.training.small_run import small_settings
from tests.training.untraced_update import train_untraced

VOCABULARY = Vocabulary(["你", "好", *BYTES])


@pytest.fixture
def model() -> Seq2Seq:
    """An untrained model."""
    return build_model(small_settings().model, len(VOCABULARY), seed=1)


@pytest.mark.parametrize(("what", "number"), [("a weight", np.nan), ("an optimizer value", np.inf)])
def test_non_finite_values_are_not_saved(model: Seq2Seq, work_dir: Path, what: str, number: float) -> None:
    numbers = np.array([number, *[0.0] * (len(VOCABULARY) - 1)], np.float32)
    if what == "a weight":
        model.bias.assign(numbers)
    with pytest.raises(UserError, match=f"{what} is not a number at step 4; no checkpoint was saved before"):
        Checkpoints(work_dir, model).save(Progress(step=4), TrainState([numbers]))
    assert not [*work_dir.iterdir()]


def test_other_validation_pairs_reset_the_best_validation() -> None:
    progress = Progress(step=9, best_step=5, best_nats=2.0, without_best=2, validation="a", best_value=2.0)
    progress.set_validation("a", NATS)
    assert (progress.best_nats, progress.without_best) == (2.0, 2)
    progress.set_validation("b", NATS)
    assert (progress.best_nats, progress.without_best, progress.validation) == (None, 0, "b")
    assert progress.record_validation({NATS: 3.0})
    progress.set_validation("b", "bleu")
    assert (progress.best_nats, progress.best_value, progress.best_by) == (None, None, "bleu")
    assert progress.record_validation({NATS: 4.0, "bleu": 1.0})


@pytest.mark.parametrize(
    ("measure", "values", "best_steps"),
    [
        (NATS, [3.0, 3.0, 4.0, 2.0, float("nan"), 2.5], [1, 1, 1, 4, 4, 4]),
        ("bleu", [3.0, 3.0, 1.0, 4.0, float("nan"), 3.5], [1, 1, 1, 4, 4, 4]),
        ("nats_per_token", [3.0, 4.0, 1.0, None], [1, 1, 3, 3]),
    ],
)
def test_best_validation_is_better_than_all_before(
    measure: str, values: list[float | None], best_steps: list[int]
) -> None:
    progress = Progress(best_by=measure)
    for step, (value, best) in enumerate(zip(values, best_steps, strict=True), 1):
        progress.step = step
        assert progress.record_validation({NATS: 5.0 + step, measure: value}) == (best == step)
        nats = values[best - 1] if measure == NATS else 5.0 + best
        assert (progress.best_step, progress.best_value, progress.best_nats) == (best, values[best - 1], nats)
        assert progress.without_best == step - best


def files_of(step: int) -> list[Path]:
    """The tensors and the manifest of a checkpoint."""
    return [DIRECTORY / f"ckpt-{step}{ending}" for ending in (".safetensors", ".json")]


def test_damaged_best_does_not_fail_a_finished_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(1)
    save(2, best=False)
    model = model_of(2)
    for damage, what in (
        (lambda: flip_a_bit(files_of(1)[0]), "ckpt-1: checkpoint damaged"),
        (lambda: (directory / "best").write_text("{"), "best: damaged"),
    ):
        damage()
        Checkpoints(DIRECTORY, model).load_best(Progress(step=2, best_step=1))
        out = capsys.readouterr().err
        assert what in out
        assert out.endswith("; the weights of step 2 are used instead.\n")
    assert values_of(model.trainable_variables) == {2.0}


def test_run_keeps_resumes_and_replies_from_whole_checkpoints(
    pairs_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--keep and --save-minutes; with a damaged checkpoint the run repeats its steps, and chat uses another one."""
    clock = iter(range(0, 20_000, 60))  # seconds at each look at the clock
    monkeypatch.setattr("chatbot.training.checkpoints.store.time.monotonic", lambda: float(next(clock)))
    train_untraced(steps=9, log_every=2, keep=3, save_minutes=1.5)
    whole = metrics()
    steps = steps_on_disk()
    assert len(steps) == 3
    assert all(step % 2 == 0 or step in (1, 9) for step in steps)  # a logged step follows the clock
    flip_a_bit(files_of(9)[0])
    capsys.readouterr()
    used = max(steps - {9})
    assert load_trained(DIRECTORY).step == used
    assert capsys.readouterr().err.endswith(f"; the checkpoint of step {used} is used instead.\n")
    train_untraced(steps=9, log_every=2)
    assert f"Resuming from step {used} of" in capsys.readouterr().out
    assert [(x["step"], x["loss"]) for x in metrics()] == [(x["step"], x["loss"]) for x in whole]

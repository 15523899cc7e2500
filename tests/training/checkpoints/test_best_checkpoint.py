"""Checkpoints: the last one resumes, the best one replies; and which validation is the best."""

from pathlib import Path

import numpy as np
import pytest

from chatbot.config.learning import NATS
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.errors import UserError
from chatbot.model.new_model import built_model
from chatbot.model.saved import load_trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import write_attempt
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.replica import TrainState
from tests.training.checkpoints.step_checkpoints import fill, values_of
from tests.training.small_run import small_settings

VOCABULARY = Vocabulary(["你", "好", *BYTES])
NO_STATE = TrainState([np.zeros(3)])


@pytest.fixture
def model() -> Seq2Seq:
    """An untrained model."""
    return built_model(small_settings().model, len(VOCABULARY), seed=1)


def test_best_checkpoint_replies_and_last_one_resumes(model: Seq2Seq, work_dir: Path) -> None:
    """Every weight and slot is the number of its step. Step 2 is the best, step 3 the last."""
    settings, progress = small_settings(), Progress()
    checkpoints = Checkpoints(settings.run.directory, model)
    write_attempt(settings, VOCABULARY, {})
    for step, nats in ((1, 5.0), (2, 3.0), (3, 4.0)):
        fill(model, step)
        progress.step = step
        checkpoints.save(progress, TrainState([np.full(3, step)]), progress.validated({NATS: nats}))
    checkpoints.finish()
    checkpoints.load_best(progress)
    assert values_of(model.trainable_variables) == {2.0}
    loaded = load_trained(settings.run.directory)
    assert (loaded.step, values_of(loaded.model.trainable_variables)) == (2, {2.0})
    restored, state = checkpoints.restore(NO_STATE)
    assert restored == Progress(step=3, best_step=2, best_nats=3.0, without_best=1, best_value=3.0)
    assert (values_of(model.trainable_variables), state.optimizer[0].tolist()) == ({3.0}, [3.0] * 3)


def test_one_weight_that_is_not_a_number_is_not_saved(model: Seq2Seq, work_dir: Path) -> None:
    model.bias.assign([np.nan, *[0.0] * (len(VOCABULARY) - 1)])
    with pytest.raises(UserError, match="a weight is not a number at step 4"):
        Checkpoints(work_dir, model).save(Progress(step=4), NO_STATE, best=False)
    assert not [*work_dir.iterdir()]


def test_other_validation_pairs_begin_anew() -> None:
    progress = Progress(step=9, best_step=5, best_nats=2.0, without_best=2, validation="a", best_value=2.0)
    progress.measured_on("a")
    assert (progress.best_nats, progress.without_best) == (2.0, 2)
    progress.measured_on("b")
    assert (progress.best_nats, progress.without_best, progress.validation) == (None, 0, "b")
    assert progress.validated({NATS: 3.0})
    progress.measured_on("b", "bleu")
    assert (progress.best_nats, progress.best_value, progress.best_by) == (None, None, "bleu")
    assert progress.validated({NATS: 4.0, "bleu": 1.0})


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
        assert progress.validated({NATS: 5.0 + step, measure: value}) == (best == step)
        nats = values[best - 1] if measure == NATS else 5.0 + best
        assert (progress.best_step, progress.best_value, progress.best_nats) == (best, values[best - 1], nats)
        assert progress.without_best == step - best

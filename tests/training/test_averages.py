"""Averages of the weights in a run: what is validated, saved, resumed and loaded to chat."""

from pathlib import Path

import pytest

from chatbot.config.learning import LearningSettings
from chatbot.errors import UserError
from chatbot.model.saved import weights_of
from chatbot.training.checkpoints.manifest import Progress
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.groups import groups_of
from chatbot.training.replica import Replica
from tests.training.checkpoints.step_checkpoints import model_of, values_of
from tests.training.small_run import small_settings

PLAIN, MOVING = LearningSettings(), LearningSettings(average=0.9)


def saved(learning: LearningSettings, step: int) -> None:
    """Save a checkpoint whose weights have the value of its step; if they are averages, the trained are 10 more."""
    model = model_of(step)
    replica = Replica(model, learning, groups_of(model, learning, 0))
    for weight in replica.weights if learning.average else []:
        weight.assign(weight + 10)
    checkpoints = Checkpoints(Path(), model)
    checkpoints.save(Progress(step=step), replica.gather_state(), best=False)
    checkpoints.finish()


@pytest.mark.parametrize(
    ("before", "now", "averaged", "trained"),
    [(MOVING, MOVING, 3, 13), (PLAIN, MOVING, 3, 3), (MOVING, PLAIN, 13, 13)],
)
def test_run_begins_or_ceases_to_average(
    work_dir: Path, before: LearningSettings, now: LearningSettings, averaged: float, trained: float
) -> None:
    saved(before, step=3)
    model = model_of(0)
    replica = Replica(model, now, groups_of(model, now, 1 << 20))
    _, state = Checkpoints(Path(), model).restore(replica.gather_state())
    replica.scatter_state(state)
    assert values_of(replica.weights) == {trained}
    replica.gather_state()
    assert values_of(weights_of(model)) == {averaged}


def test_average_of_an_asynchronous_run_is_refused() -> None:
    with pytest.raises(UserError, match="--asynchronous and --average"):
        small_settings(asynchronous=True, average=0.9)

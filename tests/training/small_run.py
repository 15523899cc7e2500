"""Training of a small model in the process of a test."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import tensorflow as tf

from chatbot.attempts.settings import train_settings
from chatbot.config.training import Settings
from chatbot.errors import EXIT_INTERRUPTED
from chatbot.flags import compose
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.data import Data, prepare, read_probe
from chatbot.training.devices.towers import Tower
from chatbot.training.loop import train
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.new_model import build_model
from chatbot.training.run import Run, open_run
from chatbot.training.validation import Validation, Validator
from chatbot.training.variable_update import VariableUpdate

SMALL: dict[str, Any] = {
    "rnn_size": 16,
    "embedding_size": 8,
    "batch_size": 4,
    "log_every": 1,
    "vocabulary_size": 300,
    "precision": "float32",
    "embeddings": "none",
}
TOWERS = [Tower(f"cpu_{i}", f"/CPU:{i}", "CPU", None) for i in range(2)]


def small_settings(**settings: Any) -> Settings:
    """The settings of a small model, with these changes."""
    return compose(Settings, **{**SMALL, **settings})


def validation_of(nats: float, replies: list[str]) -> Validation:
    """A validation with these nats per character, in place of a real one."""
    return Validation({"nats_per_token": nats, "nats_per_character": nats}, None, replies)


def validated(monkeypatch: pytest.MonkeyPatch, *nats: float) -> None:
    """Let the next validations have these values, in nats per character."""
    values = iter(nats)
    monkeypatch.setattr(Validator, "validate", lambda self, _: validation_of(next(values), [""] * len(self._questions)))


def small_validator(settings: Settings, data: Data, towers: Sequence[Tower]) -> Validator:
    """The validator of an untrained model, whose weights are so large that replies differ."""
    with tf.device(towers[0].device):
        model = build_model(settings.model, len(data.vocabulary), settings.learning.seed)
    for weight in model.trainable_variables:
        weight.assign(4.0 * weight)
    return Validator(model, data, settings, towers)


def train_small(number_of_towers: int = 2, **changes: Any) -> int:
    """Train with small_settings(**changes). Returns the exit code of the command."""
    return train_on(TOWERS[:number_of_towers], small_settings(**changes))


def train_with_flags(*flags: str) -> int:
    """Train on one tower with these flags of train.py. Returns the exit code of the command."""
    return train_on(TOWERS[:1], train_settings(flags))


def train_on(towers: list[Tower], settings: Settings) -> int:
    """Train on these towers. Returns the exit code of the command."""
    data = prepare(settings, read_probe(settings.run.probe))
    with without_replies():
        return EXIT_INTERRUPTED if train(open_run(settings, data, towers)).interrupted else 0


@contextmanager
def without_replies() -> Iterator[None]:
    """Leave out the replies at the end of a run, whose search takes as long to trace as the training step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.training.loop.final_replies", lambda *_: [])
        yield


def open_with(
    step: Callable[[Seq2Seq, Settings], VariableUpdate], settings: Settings, data: Data, team: Team = ALONE
) -> Run:
    """Open a run on one tower with another training step than its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.training.run.open_update", lambda model, chosen, *_: step(model, chosen))
        return open_run(settings, data, TOWERS[:1], team)

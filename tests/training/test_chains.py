"""A run that is interrupted again and again equals one that is not, to the bit.

Nothing is traced. The value of a validation is a function of the weights.
"""

import contextlib
import json
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chatbot.attempts.trained import weights_of
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.data import Data, prepare
from chatbot.training.loop import train
from chatbot.training.new_model import build_model
from chatbot.training.replica import Values
from chatbot.training.result import TIME_UP
from chatbot.training.validation import Validation, Validator
from tests.training.attempts import metrics, saved_step, weights
from tests.training.small_run import open_with, small_settings, validation_of
from tests.training.untraced_update import UntracedUpdate

# What interrupts the chain.
LIMIT, TERM, CTRL_C, KILL, TERM_IN_VALIDATION, KILL_IN_VALIDATION, FAIL_IN_VALIDATION, KILL_AFTER_VALIDATION = range(8)
IN_VALIDATION = TERM_IN_VALIDATION, KILL_IN_VALIDATION, FAIL_IN_VALIDATION, KILL_AFTER_VALIDATION
RUN: dict[str, Any] = {
    "rnn_size": 4,
    "embedding_size": 4,
    "bidirectional": False,
    "log_every": 3,
    "validate_every": 4,
    "save_every": 5,
    "patience": 5,
    "learning_rate": 0.02,
    "report_to": "none",
    "quiet": True,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "until nothing improves": {},
    "moving average": {"average": 0.9, "schedule": "cosine", "steps": 33, "warm_up": 3},
}
# Steps with a high loss, in which nothing is saved for a while.
HIGH = range(10, 22)
# The chains of each; a test that is run by hand may take more.
CHAINS = 4
amend = Checkpoints.amend


class KilledError(BaseException):
    """In place of a SIGKILL."""


class Chain:
    """Processes of a run, one after another, each of which ends at its next interruption."""

    def __init__(self, data: Data, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self._data, self._options = data, {**RUN, **options}
        self._interruptions: dict[int, int] = {}  # by step
        self._update: UntracedUpdate | None = None
        made: list[tuple[Seq2Seq, Values]] = []

        def new_model(*arguments: Any, **options: Any) -> Seq2Seq:
            """Make one model, and give it its first weights again in each process."""
            if not made:
                first = build_model(*arguments, **options)
                made.append((first, [weight.numpy() for weight in weights_of(first)]))
            model, values = made[0]
            for weight, value in zip(weights_of(model), values, strict=True):
                weight.assign(value)
            return model

        monkeypatch.setattr("chatbot.training.new_model.build_model", new_model)
        monkeypatch.setattr("chatbot.training.loop.conclude", lambda *_: None)
        monkeypatch.setattr("chatbot.training.run.time", SimpleNamespace(time=self._time, monotonic=time.monotonic))
        monkeypatch.setattr("chatbot.training.run.MIN_STEPS", 25)
        monkeypatch.setattr(Checkpoints, "amend", lambda *arguments: self._amend(*arguments))
        monkeypatch.setattr(Validator, "validate", lambda *_: self._validate(made[0][0]))

    def run(self, attempt: str, interruptions: dict[int, int]) -> str:
        """Train until the end, in as many processes as there are interruptions; return why it has stopped."""
        self._interruptions = dict(interruptions)
        settings = small_settings(data=("pairs.tsv",), **self._options, attempt=attempt, deadline=1.0)
        for _ in range(1 + len(interruptions)):
            with contextlib.suppress(KilledError, UserError):  # the loss of a limited run may be high at its end
                result = train(open_with(self._open, settings, self._data))
                if not result.interrupted and result.stopped != TIME_UP:
                    return result.stopped
        pytest.fail("an interruption that did not strike has ended a run")

    def _open(self, model: Seq2Seq, settings: Any) -> "UntracedUpdate":
        self._update = UntracedUpdate(model, settings, lambda step: self._strike(step, TERM, CTRL_C, KILL), high=HIGH)
        return self._update

    def _time(self) -> float:
        assert self._update is not None
        return 2.0 if self._next(self._update.step, LIMIT) else 0.0

    def _next(self, step: int, *kinds: int) -> int | None:
        """Return what interrupts the run at a step if it is one of these kinds; it does so once."""
        return self._interruptions.pop(step) if self._interruptions.get(step) in kinds else None

    def _strike(self, step: int, *kinds: int) -> None:
        kind = self._next(step, *kinds)
        if kind in (KILL, KILL_IN_VALIDATION, KILL_AFTER_VALIDATION):
            raise KilledError
        if kind == FAIL_IN_VALIDATION:
            raise UserError("out of memory")
        if kind is not None:
            signal.raise_signal(signal.SIGINT if kind == CTRL_C else signal.SIGTERM)

    def _validate(self, model: Seq2Seq) -> Validation:
        assert self._update is not None
        self._strike(self._update.step, TERM_IN_VALIDATION, KILL_IN_VALIDATION, FAIL_IN_VALIDATION)
        total = sum(float(np.abs(weight.numpy()).sum(dtype=np.float64)) for weight in weights_of(model))
        return validation_of(2 + np.sin(40 * total), [""] * len(self._data.questions))

    def _amend(self, checkpoints: Checkpoints, *arguments: Any) -> None:
        """End before the result of a validation is in the checkpoint."""
        assert self._update is not None
        self._strike(self._update.step, KILL_AFTER_VALIDATION)
        amend(checkpoints, *arguments)


def final_state(attempt: str) -> dict[str, Any]:
    """All that a run leaves: its weights, state and averages, its progress, and its validations."""
    directory, lines = Path("checkpoints", attempt), metrics(attempt)
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps)), "no step is repeated"
    return {
        "last": json.loads((directory / "last").read_text()),
        "best": json.loads((directory / "best").read_text()),
        "tensors": [value.tolist() for value in weights(attempt)],
        "validations": {
            line["step"]: [line["validation.nats_per_character"], line["best.nats_per_character"]]
            for line in lines
            if "validation.nats_per_character" in line
        },
    }


def random_interruptions(choose: random.Random, last: int) -> dict[int, int]:
    """Draw at most one interruption for each step, among them a limit and a signal in a validation."""
    every = RUN["validate_every"]
    drawn = {step: choose.randrange(KILL + 1) for step in choose.sample(range(1, last + 1), 4)}

    def in_validation(step: int) -> int:
        return choose.choice(IN_VALIDATION[: 3 if step in HIGH else 4])  # no result is written where nothing is saved

    drawn |= {step: in_validation(step) for step in drawn if step % every == 0}
    limit, validation = choose.randrange(last // every) * every + 1, choose.randrange(1, last // every + 1) * every
    return drawn | {limit: LIMIT, validation: in_validation(validation)}


@pytest.mark.parametrize("name", OPTIONS)
def test_chain_of_interruptions_equals_an_uninterrupted_run(
    name: str, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = prepare(small_settings(data=("pairs.tsv",), validation="held_out.tsv", **RUN))
    chain = Chain(data, monkeypatch, validation="held_out.tsv", **OPTIONS[name])
    stopped = chain.run("whole", {})
    expected, last = final_state("whole"), saved_step("whole")
    assert len(expected["validations"]) >= 5
    for seed in range(CHAINS):
        interruptions = random_interruptions(random.Random(seed), last)
        attempt = f"chain-{seed}"
        assert chain.run(attempt, interruptions) == stopped, interruptions
        assert not chain._interruptions
        assert final_state(attempt) == expected, interruptions

"""A run without a model, for what is shown of it; its metrics are written, and nothing for TensorBoard."""

import time
from types import SimpleNamespace
from typing import Any

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.schedule import Calendar


def fake_run(last_step: int | None = None, decides: bool = True, chief: bool = True, **settings: Any) -> Any:
    """A run that is validated each 100 steps."""
    composed = compose(Settings, attempt="a", **{"report_to": "none", **settings})
    composed.run.directory.mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(
        settings=composed,
        seconds_left=None,
        progress=Progress(best_by=composed.learning.best_by),
        calendar=Calendar(log_every=10, save_every=500, validate_every=100, last_step=last_step),
        team=SimpleNamespace(chief=chief, alone=True),
        data=SimpleNamespace(validation_decides=decides, validation=None, samples=[], probe=[], questions=[]),
    )


def wait_for_next_second() -> None:
    """Wait, so that the names of event files, which have seconds, are in the order in which they are opened."""
    time.sleep(1 - time.time() % 1)


def record_of(step: int, loss: float = 4.5) -> dict[str, Any]:
    """The metrics of a step."""
    return {
        "step": step,
        "loss": loss,
        "target_tokens_per_s": 12345.6,
        "input_wait": 0.031,
        "gradient_norm": 1.5,
        "learning_rate": 0.002,
    }

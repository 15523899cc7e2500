"""--report-to wandb: the client of Weights & Biases (https://docs.wandb.ai) follows TensorBoard's event files."""

import importlib.util
import os
from typing import Any

from chatbot.config.run import WANDB
from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.errors import UserError

# Without these variables in the environment, nothing leaves this machine.
DEFAULTS = {"WANDB_MODE": "offline", "WANDB_PROJECT": "chatbot", "WANDB_ERROR_REPORTING": "false"}


def check_client(report_to: str) -> None:
    """Raise UserError if the client is asked for and not installed. Nothing is imported, which takes seconds."""
    if report_to != WANDB:
        return
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder wandb/, where the client writes, has no origin
        raise UserError("--report-to wandb: wandb is not installed; run `pip install wandb`")


def start_client(settings: Settings) -> Any:
    """Start a run of wandb for this start of the attempt. It follows the event files that are opened later."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    import wandb

    attempt = settings.run.attempt
    # The progress bar is no log.
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    config = storable(settings)
    return wandb.init(name=attempt, group=attempt, config=config, sync_tensorboard=True, settings=quiet)

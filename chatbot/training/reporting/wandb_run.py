"""Weights & Biases, by its own client (https://docs.wandb.ai). Without WANDB_MODE, nothing leaves this machine."""

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.evaluation.samples import Sample
from chatbot.training.reporting.exported_run import (
    REPLY_COLUMNS,
    ExportedRun,
    Status,
    flat_values,
    reply_table,
    status_of,
)
from chatbot.training.validator import Validation

# wandb shows a run whose process ends with 0 as finished, and with any other code as failed.
EXIT_CODES = {Status.FINISHED: 0, Status.FAILED: 1, Status.INTERRUPTED: 130}
# Seconds for the start of a run with a server, and for the upload of what is left at its end.
START_TIMEOUT, FINISH_TIMEOUT = 60.0, 60.0


class Wandb:
    """Writes to one run of wandb, whose id the attempt stores, so that a resumed attempt goes on with it.

    The environment variables of wandb choose the server, the project, the folder and the mode. The default mode is
    offline: `wandb sync FOLDER` uploads the run.
    """

    tries_again = False

    def __init__(self, settings: Settings, towers: Sequence[str], step: int) -> None:
        """towers: their names. step: that of the checkpoint."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._towers, self._table = towers, wandb.Table
        self._own = ExportedRun.read(settings.run.directory / "wandb.json")
        self._own.id = self._own.id or uuid.uuid4().hex[:16]
        offline = os.environ.setdefault("WANDB_MODE", "offline") == "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "chatbot"),
            name=settings.run.attempt,
            id=self._own.id,
            resume=None if offline else "allow",  # offline runs of the same id are one run once they are uploaded
            config=storable(settings),
            allow_val_change=True,
            settings=wandb.Settings(
                silent=True,
                console="off",  # the progress bar is no log
                disable_git=True,
                disable_code=True,
                login_timeout=START_TIMEOUT,
                init_timeout=START_TIMEOUT,
                finish_timeout=FINISH_TIMEOUT,
            ),
        )
        self._own.write(0)
        tqdm.write(f"wandb: {f'offline, in {Path(self._run.dir).parent}' if offline else self._run.url}")

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        self._log(flat_values(record, self._towers), record["step"])
        self._own.write(record["step"])

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Write the replies to the samples as a table."""
        self._log({"replies": self._table([*REPLY_COLUMNS], reply_table(samples, validation.replies))}, step)

    def warning(self, text: str, step: int) -> None:
        """Write a warning as a text."""
        self._log({"warning": text}, step)

    def close(self, stopped: str) -> None:
        """Write the status and the reason, and wait until the run is written."""
        self._run.summary["stopped"] = stopped or Status.FAILED.value
        self._run.finish(exit_code=EXIT_CODES[status_of(stopped)])

    def _log(self, values: dict[str, Any], step: int) -> None:
        if step > self._own.step:
            self._run.log(values, step=step)

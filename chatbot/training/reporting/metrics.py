"""metrics.jsonl, one JSON object a logged step, and the client of --report-to wandb."""

import importlib.util
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from chatbot.config.run import WANDB
from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.durable import write_file
from chatbot.errors import UserError

# Of the client of Weights & Biases (https://docs.wandb.ai): without these variables in the environment, nothing leaves
# this machine.
DEFAULTS = {"WANDB_MODE": "offline", "WANDB_PROJECT": "chatbot", "WANDB_ERROR_REPORTING": "false"}


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Append a record to metrics.jsonl. NaN and infinity become null. Raises OSError as `_append_line` does."""
    _append_line(path, (json.dumps(_finite(record), ensure_ascii=False) + "\n").encode())


def _append_line(path: Path, line: bytes) -> None:
    """Append a line to a file. Raises OSError; the file then ends with a complete line, unless it is gone."""
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(line)
            if written < len(line):  # the disk became full
                file.write(line[written:])
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drop_after(path: Path, step: int) -> None:
    """Keep the lines up to this step: a killed run repeats the steps since its checkpoint."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a line that was cut off when the run was killed
    write_file(path, "".join(kept).encode())


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

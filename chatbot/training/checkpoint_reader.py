"""Reads all that a checkpoint holds, after its files are verified."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.config.attempts import BEST, LAST
from chatbot.errors import UserError
from chatbot.model.checkpoint_files import DamagedError, manifest_path, read_pointer, verified_manifest
from chatbot.model.checkpoint_index import read_index
from chatbot.model.saved import read_values
from chatbot.training.progress import Progress, progress_of, read_progress
from chatbot.training.provenance import Provenance
from chatbot.training.variable_update.replica import Values

# The group of a checkpoint with averages: the trained weights.
TRAINED = "trained"
# The group of a checkpoint in float16: the loss scale, the last value of the optimizer's state. It has a group of its
# own because a run may be resumed at another precision.
LOSS_SCALE = "loss_scale"

Shapes = Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a checkpoint."""

    progress: Progress
    optimizer: Values  # with the loss scale
    weights: Values
    trained: Values  # empty without averages
    changes: list[str]  # since it was written, one a line


def read_checkpoint(
    prefix: Path, weights: Shapes, optimizer: Shapes, provenance: Provenance | None, float16: bool = False
) -> Content:
    """Read a checkpoint.

    prefix: the path of its files without an ending. weights, optimizer: the shapes of these variables. provenance: of
    the run that resumes it. float16: the last variable of the optimizer is the loss scale; one that the checkpoint
    lacks is zeros, as in a new run. Raises DamagedError; UserError for a damaged `last` or `best` that names it, and
    for one of another run, and for one without a state of the optimizer.
    """
    manifest = verified_manifest(prefix)
    changes = provenance.check(manifest, prefix) if provenance and manifest else []
    progress = _progress_at(prefix, manifest or {})
    own = read_values(prefix, "weights", weights)
    if not _names(prefix, "optimizer"):
        raise UserError(
            f"{prefix}: it has no optimizer state, as after `attempts average`, and cannot be resumed; begin another "
            f"attempt with --init-from {prefix.parent.name}"
        )
    end = len(optimizer) - float16
    state = read_values(prefix, "optimizer", optimizer[:end])
    for shape in optimizer[end:]:
        state += _read_if_any(prefix, LOSS_SCALE, [shape]) or [np.zeros(shape)]
    return Content(progress, state, own, _read_if_any(prefix, TRAINED, weights), changes)


def _progress_at(prefix: Path, manifest: Mapping[str, Any]) -> Progress:
    """Return the progress in the pointer that names a checkpoint, else in its manifest."""
    for path in (prefix.with_name(LAST), prefix.with_name(BEST)):
        if path.exists() and read_pointer(path)["checkpoint"] == prefix.name:
            return read_progress(path)[1]
    path = manifest_path(prefix)
    try:
        progress = progress_of(dict(manifest["progress"]), path)
    except (UserError, ValueError, KeyError, TypeError):
        raise DamagedError(prefix, "damaged", f"no progress in {path.name}") from None
    if f"ckpt-{progress.step}" != prefix.name:
        raise DamagedError(prefix, "damaged", f"{path.name} is of step {progress.step:,}")
    return progress


def _read_if_any(prefix: Path, group: str, shapes: Shapes) -> Values:
    """Read the variables of a group, an empty list if the checkpoint has no such group."""
    return read_values(prefix, group, shapes) if _names(prefix, group) else []


def _names(prefix: Path, group: str) -> list[str]:
    """Return the names of the variables in a group."""
    return [name for name in read_index(prefix) if name.startswith(f"{group}/")]

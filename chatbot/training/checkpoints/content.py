"""What a checkpoint holds: its tensors, what they were trained with, and how all of it is written and read."""

import dataclasses
import errno
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.attempts import BEST, LAST
from chatbot.config.stored import changed_values, storable
from chatbot.config.training import Settings
from chatbot.durable import sync
from chatbot.errors import UserError
from chatbot.model.checkpoint_files import (
    DamagedError,
    check_vocabulary,
    manifest_path,
    read_pointer,
    step_of,
    verified_manifest,
)
from chatbot.model.checkpoint_index import read_index
from chatbot.model.saved import read_values
from chatbot.training.checkpoints.progress import Progress, progress_of, read_progress
from chatbot.training.variable_update.replica import Values
from chatbot.version import __version__

FULL = (errno.ENOSPC, errno.EDQUOT)
OTHER = "restore this attempt's own from a backup, or use another --attempt"
SOFTWARE = {"chatbot": "chatbot", "tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy", "python": "Python"}
# The group of a checkpoint with averages: the trained weights.
TRAINED = "trained"
# The group of a checkpoint in float16: the loss scale, the last value of the optimizer's state. It has a group of its
# own because a run may be resumed at another precision.
LOSS_SCALE = "loss_scale"

Shapes = Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint. tensors: arrays, or tensors on the host, by their names in the file."""

    progress: Progress
    best: bool
    tensors: dict[str, Any]

    def write_tensors(self, prefix: Path) -> None:
        """Write the files `prefix`.index and `prefix`.data-*, and wait until their content is on the disk.

        They have the names and the format of tf.train.Checkpoint, which takes variables only, one copy more.
        Raises OSError and tf.errors.OpError.
        """
        with tf.device("/CPU:0"):
            for name, value in self.tensors.items():
                self.tensors[name] = tf.convert_to_tensor(value)  # the array is freed
            names, tensors = list(self.tensors), list(self.tensors.values())
            tf.raw_ops.SaveV2(
                prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
            )
        for file in prefix.parent.glob(f"{prefix.name}.*"):
            sync(file)


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Return whether all elements are finite numbers, without an array of them."""
    return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def cause_of(error: tf.errors.OpError | OSError) -> tuple[bool, str]:
    """Return whether the disk is full, and the cause of an error of TensorFlow or of the system, in one line."""
    text: str = error.strerror or str(error) if isinstance(error, OSError) else error.message
    # TensorFlow writes "{{function_node ...}} PATH; CAUSE [Op:SaveV2]".
    reason = re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:.*", "", text.strip().split("\n")[0]).rpartition("; ")[2][:150]
    full = getattr(error, "errno", None) in FULL or re.search("no space left|quota exceeded", reason, re.IGNORECASE)
    return bool(full), reason


def versions() -> dict[str, str]:
    """Return the versions that the bits of a result may depend on."""
    return {
        "chatbot": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What the checkpoints of a run are trained with. data: the content of data.json."""

    settings: Settings
    data: dict[str, Any]

    def content(self) -> dict[str, Any]:
        """Return the part of a manifest that `check` compares."""
        return {"data": self.data, "settings": storable(self.settings), "versions": versions()}

    def check(self, manifest: dict[str, Any], prefix: Path) -> list[str]:
        """Compare the manifest of a checkpoint that is resumed; return the differences that are allowed, one a line.

        A part that the manifest lacks is not compared. Raises UserError when the pairs, the vocabulary or a fixed
        setting differ, and DamagedError for a part of another form.
        """
        try:
            return self._differences(manifest, prefix)
        except (AttributeError, TypeError):
            raise DamagedError(prefix, "damaged", f"{manifest_path(prefix).name} is of another form") from None

    def _differences(self, manifest: dict[str, Any], prefix: Path) -> list[str]:
        path, data = manifest_path(prefix), manifest.get("data", {})
        check_vocabulary(manifest, self.data["vocabulary"], prefix)
        # With another version of the reader, check_data has compared the pairs with data.json.
        if data.get("version") == self.data["version"] and data.get("fingerprint") != self.data["fingerprint"]:
            raise UserError(f"{path}: a checkpoint of other training pairs; {OTHER}")
        try:
            fixed, free = changed_values(manifest.get("settings", {}), self.settings)
        except UserError as error:
            raise DamagedError(prefix, "damaged", f"{path.name}: {error}") from None
        if fixed:
            raise UserError(f"{path}: a checkpoint of other settings: {'; '.join(fixed)}; {OTHER}")
        lines = [f"Changed since step {step_of(prefix.name):,}: {'; '.join(free)}."] if free else []
        then, now = manifest.get("versions", {}), versions()
        changed = [
            f"{SOFTWARE[name]} {then[name]!s:.20} (now {now[name]})"
            for name in now
            if then.get(name) not in (None, now[name])
        ]
        if changed:
            lines.append(
                f"The checkpoint was written with {', '.join(changed)}: results may differ in the last bits from those "
                "of one version."
            )
        return lines


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

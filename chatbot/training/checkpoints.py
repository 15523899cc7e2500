"""The checkpoints of one attempt: weights, optimizer and progress, written atomically."""

import dataclasses
import errno
import itertools
import math
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import tensorflow as tf

from chatbot.config.attempts import BEST, LAST
from chatbot.config.learning import NATS, LearningSettings
from chatbot.errors import UserError
from chatbot.model.saved import assign_weights, read_pointer, read_values, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import SAVING
from chatbot.training.averages import Averages
from chatbot.training.criterion import Criterion
from chatbot.training.durable import sync, write_file, write_json
from chatbot.training.variable_update.replica import Values

# Increase this when the meaning of a field of Progress changes. A new field needs no new version, only a default.
VERSION = 1
# The groups of a checkpoint with averages: the trained weights, and those at the last validations.
TRAINED, RECENT = "trained", "recent"
NATS_ONLY = Criterion()
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass
class Progress:
    """How far a run has come; stored with every checkpoint. A field that a file lacks has its default."""

    step: int = 0
    best_step: int = 0
    best_nats: float | None = None  # per character
    without_best: int = 0  # validations since the best
    validation: str | None = None  # fingerprint of the validation pairs of the best values
    version: int = VERSION
    best_by: str = NATS  # the measure that chose the best
    best_value: float | None = None  # of that measure
    best_distinct: float | None = None  # distinct_characters_2
    rate_drops: int = 0  # by --schedule plateau
    skipped_updates: int = 0  # since the loss or a gradient was not finite
    rate_halvings: int = 0  # the learning rate was halved so often, after many of them in a row

    def measured_on(self, validation: str, best_by: str = NATS) -> None:
        """Set the fingerprint of the validation pairs, and the measure. A different one resets the best validation."""
        if (validation, best_by) != (self.validation, self.best_by):
            self.validation, self.best_by, self.without_best = validation, best_by, 0
            self.best_nats = self.best_value = self.best_distinct = None

    def validated(self, values: Mapping[str, float | None], criterion: Criterion = NATS_ONLY) -> bool:
        """Record a validation at this step; return whether it is the best so far. values: its measures by name."""
        value, distinct = values[criterion.measure], values.get("distinct_characters_2")
        best = criterion.prefers(value, distinct, self.best_value, self.best_distinct)
        if best:
            self.best_step, self.best_value, self.best_distinct = self.step, value, distinct
            self.best_nats = values[NATS]
        self.without_best = 0 if best else self.without_best + 1
        return best


def read_progress(path: Path) -> tuple[str, Progress]:
    """Read the name of a checkpoint and its progress. Raises UserError for a file that is damaged, or of the future."""
    pointer = read_pointer(path)
    name = pointer.pop("checkpoint")
    pointer.setdefault("best_value", pointer.get("best_nats"))  # earlier versions chose by nats alone
    kinds = get_type_hints(Progress)
    unknown = sorted(pointer.keys() - kinds)
    newer = isinstance(pointer.get("version"), int) and pointer["version"] > VERSION
    if newer or unknown:
        what = f"it has {', '.join(map(repr, unknown))}" if unknown else f"its version is {pointer['version']}"
        raise UserError(
            f"{path}: written by a newer version of this program ({what}); update the program, or use another --attempt"
        )
    if not all(isinstance(value, kinds[field]) for field, value in pointer.items()):
        raise UserError(f"{path}: damaged; restore it from a backup, or use another --attempt")
    return name, Progress(**{**pointer, "version": VERSION})


class Checkpoints:
    """Saves and restores the checkpoints of one attempt."""

    def __init__(self, directory: Path, model: Seq2Seq, averages: Averages | None = None) -> None:
        self.directory = directory
        self._weights = weights_of(model)
        self._averages = averages or Averages(self._weights, LearningSettings())

    @property
    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.directory / LAST).exists()

    def restore(self, new: Values) -> tuple[Progress, Values]:
        """Load the last checkpoint into the model; return its progress and the state of the optimizer.

        new: the state of a new run; without a checkpoint, it is returned with the model's weights as those to train.
        Raises UserError for a damaged attempt.
        """
        if not self.exist:
            return Progress(), self._averages.joined(self._averages.split(new)[1])
        steps = {path.name: read_pointer(path)["step"] for path in self._pointers()}
        name, progress = read_progress(self.directory / LAST)
        state = read_values(self.directory / name, "optimizer", [v.shape for v in self._averages.split(new)[1]])
        assign_weights(self.directory / name, self._weights)
        trained = self._read_sets(self.directory / name, TRAINED)
        recent = self._read_sets(self.directory / name, RECENT)
        if progress.best_step == progress.step != steps.get(BEST):  # killed after `last` was written, before `best`
            self._point(BEST, progress)
        return progress, self._averages.joined(state, trained[0] if trained else [], recent)

    def check_space(self, state: Values, keeps_best: bool) -> None:
        """Raise UserError when the disk has no space for the checkpoints of the run.

        The last checkpoint stays until the next one is complete. keeps_best: whether the best one is kept beside it.
        """
        weights = sum(4 * weight.shape.num_elements() for weight in self._weights)
        size = weights * (1 + self._averages.most_recent) + sum(value.nbytes for value in state)
        needed = size * (2 + keeps_best - len(list(self.directory.glob("ckpt-*.index"))))
        disk = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(disk).free
        if free < needed:
            raise UserError(
                f"{self.directory}: not enough space on the disk; checkpoints of {_megabytes(size)} each need "
                f"{_megabytes(needed)}, and {_megabytes(free)} are free: free some space, or run in a folder "
                "on another disk"
            )

    def save(self, progress: Progress, state: Values, best: bool) -> None:
        """Write a checkpoint, and name it in `last`, and in `best` if it is the best.

        A pointer is written only after the files that it names are on the disk; files are removed only when no pointer
        names them. Raises UserError when a weight is not finite, or the files cannot be written.
        """
        if not all(bool(tf.reduce_all(tf.math.is_finite(weight))) for weight in self._weights):
            raise UserError(
                f"a weight is not a number at step {progress.step}; {self._kept()}: start again with a lower "
                "--learning-rate"
            )
        path = self.directory / f"ckpt-{progress.step}"
        try:
            if not self.exist:
                write_file(self.directory / SAVING, b"")
            tf.train.Checkpoint(weights=self._weights, **self._groups(state)).write(str(path))
            for file in self.directory.glob(f"{path.name}.*"):
                sync(file)
            sync(self.directory)
            self._point(LAST, progress)
            if best:
                self._point(BEST, progress)
        except (tf.errors.OpError, OSError) as error:
            with suppress(OSError):
                self._remove_unnamed()  # what was written in part takes space
            full, reason = _reason(error)
            cannot = "no space left on the disk" if full else "cannot be written"
            remedy = "free some space" if full else "check the folder and its permissions"
            raise UserError(
                f"{path}: {cannot} ({reason}); {self._kept()}: {remedy}, and run the same command again"
            ) from None
        self._remove_unnamed()

    def load_best(self, progress: Progress) -> None:
        """Load the weights of the best checkpoint into the model, if there is one."""
        if (self.directory / BEST).exists() and progress.best_step != progress.step:
            best = read_pointer(self.directory / BEST)["checkpoint"]
            assign_weights(self.directory / best, self._weights)

    def _groups(self, state: Values) -> dict[str, list[tf.Variable]]:
        """Return the variables of a checkpoint beside the model's weights, by the name of their group."""
        trained, optimizer = self._averages.split(state)
        groups = {"optimizer": optimizer, TRAINED: trained, RECENT: [*itertools.chain(*self._averages.recent)]}
        with tf.device("/CPU:0"):
            return {name: [tf.Variable(value) for value in values] for name, values in groups.items() if values}

    def _read_sets(self, prefix: Path, group: str) -> list[Values]:
        """Read the sets of weights in a group, an empty list if the checkpoint has no such group."""
        names = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
        shapes = [weight.shape for weight in self._weights]
        count = math.ceil(sum(name.startswith(f"{group}/") for name in names) / len(shapes))
        values = read_values(prefix, group, shapes * count)
        return [values[i : i + len(shapes)] for i in range(0, len(values), len(shapes))]

    def _point(self, name: str, progress: Progress) -> None:
        """Write `last` or `best`, which names the checkpoint of this step."""
        write_json(self.directory / name, {"checkpoint": f"ckpt-{progress.step}", **dataclasses.asdict(progress)})

    def _kept(self) -> str:
        if not self.exist:
            return "no checkpoint was saved before"
        return f"the checkpoint of step {read_pointer(self.directory / LAST)['step']:,} is kept"

    def _remove_unnamed(self) -> None:
        """Remove old checkpoints, and the folder ckpt-<step>_temp that a killed process leaves behind."""
        kept = {read_pointer(path)["checkpoint"] for path in self._pointers()}
        for path in self.directory.iterdir():
            found = re.match(r"ckpt-\d+(?=[._])", path.name)
            if found and (path.is_dir() or found[0] not in kept):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if (self.directory / SAVING).exists():
            (self.directory / SAVING).unlink()

    def _pointers(self) -> list[Path]:
        return [p for p in (self.directory / LAST, self.directory / BEST) if p.exists()]


def _reason(error: Any) -> tuple[bool, str]:
    """Return whether the disk is full, and the cause of an error of TensorFlow or of the system, in one line."""
    text = error.message if isinstance(error, tf.errors.OpError) else error.strerror or str(error)
    # TensorFlow writes "{{function_node ...}} PATH; CAUSE [Op:SaveV2]".
    reason = re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:.*", "", text.strip().split("\n")[0]).rpartition("; ")[2][:150]
    full = getattr(error, "errno", None) in FULL or re.search("no space left|quota exceeded", reason, re.IGNORECASE)
    return bool(full), reason


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

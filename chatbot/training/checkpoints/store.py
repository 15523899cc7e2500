"""Saves and restores checkpoints: weights, optimizer state and progress, written atomically in the background."""

import dataclasses
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.attempts.checkpoint import (
    AT_END,
    DamagedError,
    amend_manifest,
    better_last_nats,
    checkpoint_path,
    first_intact,
    group_sizes,
    pointer_steps,
    read_group,
    read_pointer,
    resumable_steps,
    saved_steps,
    verified_manifest,
    write_checkpoint,
)
from chatbot.attempts.files import BEST, LAST, SAVING
from chatbot.attempts.opening import file_lock_of
from chatbot.attempts.trained import assign_weights, weights_of
from chatbot.durable import write_file, write_json
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.checkpoints.progress import Progress, Provenance, progress_in
from chatbot.training.replica import TrainState, Values

# The tensor groups of a checkpoint: the model weights and the fields of `TrainState`.
WEIGHTS, OPTIMIZER, TRAINED, LOSS_SCALE, PENDING = "weights", *TrainState._fields


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    progress: Progress
    weights: Values = ()
    state: TrainState | None = None  # None if the tensors are already on disk
    best: bool = False  # whether this is the best checkpoint so far


class Checkpoints:
    """Saves and restores the checkpoints of an attempt.

    Args:
        directory: The folder of the attempt.
        model: The model to save and restore.
        keep: The number of recent checkpoints to keep, in addition to the best one.
        provenance: The settings and data that a resumed checkpoint must match.
        write_attempt: Callback that rewrites the other files of the attempt if its folder was deleted.
    """

    def __init__(
        self,
        directory: Path,
        model: Seq2Seq,
        keep: int = 1,
        provenance: Provenance | None = None,
        write_attempt: Callable[[], None] | None = None,
    ) -> None:
        self.directory = directory
        self._provenance = provenance
        self.write_attempt = write_attempt
        self._weights = weights_of(model)
        self._keep = keep
        self._best = Progress()  # progress of the best checkpoint on disk
        self._unsaved: Checkpoint | None = None  # the checkpoint that is not on disk yet
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._warnings: list[str] = []
        self._saved_at = time.monotonic()
        self._locks = ExitStack()  # holds the attempt's lock if its folder was deleted and recreated

    @property
    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.directory / LAST).exists()

    def new_state(self, state: TrainState) -> TrainState:
        """Return the initial training state of a new run, which starts from the current weights of the model."""
        return state._replace(trained=[weight.numpy() for weight in self._weights] if state.trained else [])

    def restore(self, new: TrainState) -> tuple[Progress, TrainState]:
        """Load the last checkpoint into the model. If it is damaged, warn and load the newest intact checkpoint.

        Args:
            new: The state of a new run, whose tensors have the expected shapes.

        Returns:
            The progress and the training state of the checkpoint, or of a new run if there is no checkpoint.

        Raises:
            UserError: If no checkpoint is intact.
        """
        self.wait()
        self._unsaved = None
        if not self.exist:
            return Progress(), self.new_state(new)
        pointed = pointer_steps(self.directory)
        shapes = [weight.shape for weight in self._weights]
        step, (checkpoint, changes), damage = first_intact(
            self.directory,
            resumable_steps(self.directory),
            lambda path: read_checkpoint(path, shapes, new, self._provenance),
        )
        for change in changes:
            print(change)
        progress, weights, state, _ = checkpoint
        assert state is not None, "read_checkpoint always reads the state"
        with suppress(OSError):  # if the error persists, the next save reports it
            if damage is not None:
                print(f"Warning: {damage.found}; the checkpoint of step {step:,} is used instead.", file=sys.stderr)
                self._point(LAST, progress)
            if progress.best_step == step != pointed.get(BEST):
                # A process was killed after updating one of the two pointers, or a later best checkpoint is damaged.
                self._point(BEST, progress)
            elif progress.best_step != pointed.get(BEST, 0):  # the best checkpoint is or was damaged
                progress.copy_best(Progress())
                if pointed.get(BEST, 0) > step:
                    (self.directory / BEST).unlink()
        self._best = dataclasses.replace(progress)
        if new.trained:
            state = state._replace(trained=state.trained or weights)
        else:  # Without --average, training continues from the weights that were not averaged.
            weights = state.trained or weights
            state = state._replace(trained=[])
        for weight, value in zip(self._weights, weights, strict=True):
            weight.assign(value)
        return progress, state

    def check_space(self, state: TrainState, keeps_best: bool) -> None:
        """Raise UserError if the disk has too little space for the checkpoints of the run.

        An old checkpoint is deleted only after the next one is complete, so the disk must hold one extra checkpoint.
        """
        weights = sum(4 * weight.shape.num_elements() for weight in self._weights)
        size = weights + sum(value.nbytes for values in state for value in values)
        count = 1 + self._keep + keeps_best - len(saved_steps(self.directory))
        disk = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(disk).free
        if free < size * count:
            each, needed, left = (f"{number / 1e6:,.1f} MB" for number in (size, size * count, free))
            raise UserError(
                f"{self.directory}: not enough space on the disk; checkpoints of {each} each need {needed}, and only "
                f"{left} are free: free some space, or run in a folder on another disk"
            )

    def save(self, progress: Progress, state: TrainState) -> None:
        """Start writing a checkpoint in the background, after waiting for the previous one.

        When the new files are on disk, the writer updates the file `last` and then deletes old checkpoints. Raises
        UserError if a weight or an optimizer value is not finite.
        """
        self.wait()
        self._saved_at = time.monotonic()
        weights = [weight.numpy() for weight in self._weights]
        for what, values in (("a weight", [*weights, *state.trained]), ("an optimizer value", state.optimizer)):
            if not all(map(is_finite, values)):
                failure = f"{what} is not a number at step {progress.step}; {self._describe_last()}"
                raise UserError(f"{failure}: start again with a lower --learning-rate")
        self._unsaved = Checkpoint(dataclasses.replace(progress), weights, state)
        self._writing = self._writer.submit(self._write_or_warn, self._unsaved)

    def amend(self, progress: Progress, best: bool = False) -> None:
        """Start updating the progress in the last checkpoint, after waiting for the previous write.

        If writing the last checkpoint has failed, the new progress is written with the next attempt to write it.

        Args:
            progress: The new progress, which must have the step of the last checkpoint.
            best: Whether this is the best checkpoint so far.
        """
        self.wait()
        self._unsaved = (self._unsaved or Checkpoint(progress))._replace(
            progress=dataclasses.replace(progress), best=best
        )
        if self._unsaved.state is None:
            self._writing = self._writer.submit(self._write_or_warn, self._unsaved)

    def minutes_since_save(self) -> float:
        """Return the minutes since the last save started, or since the start of the run."""
        return (time.monotonic() - self._saved_at) / 60

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._writing is not None:
            wait([self._writing])
            writing = self._writing
            self._writing = None
            writing.result()

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Wait for the writer at the end of the `with` block, and retry a failed save once.

        Raises UserError if the save fails again. If the block raises an exception, a failed save only causes a warning.
        """
        try:
            yield
        except BaseException:
            self.wait()
            if self._unsaved is not None:
                step = self._unsaved.progress.step
                print(f"Warning: the checkpoint of step {step:,} could not be written.", file=sys.stderr)
            raise
        else:
            self.finish()
        finally:
            self._locks.close()

    def finish(self) -> None:
        """Wait for the writer and retry a failed checkpoint once. Raises UserError if it fails again."""
        self.wait()
        if self._unsaved is not None and (failure := self._write(self._unsaved)):
            raise UserError(f"{failure}, and run the same command again")

    def restore_previous_best(self, progress: Progress) -> None:
        """Wait for the writer. If writing the best checkpoint has failed, restore the previous best in `progress`."""
        self.wait()
        if self._unsaved is not None and self._unsaved.best:
            progress.copy_best(self._best)

    def warnings(self) -> list[str]:
        """Return and clear the warnings of the writer thread, one line each."""
        warnings = self._warnings
        self._warnings = []
        return warnings

    def record_final_nats(self, nats: float) -> None:
        """Store the validation loss at the end of a time-limited run, in nats per character, in the file `last`."""
        self.wait()
        with suppress(OSError, UserError):
            write_json(self.directory / LAST, {**read_pointer(self.directory / LAST), AT_END: nats})

    def load_best(self, progress: Progress) -> None:
        """Load the weights of the best checkpoint, if there is one. If it is damaged, print a warning instead."""
        if better_last_nats(self.directory) is not None:
            return
        if (self.directory / BEST).exists() and progress.best_step != progress.step:
            try:
                best = checkpoint_path(self.directory, read_pointer(self.directory / BEST)["step"])
                verified_manifest(best)
                assign_weights(best, self._weights)
            except UserError as error:
                problem = error.found if isinstance(error, DamagedError) else str(error)
                print(f"Warning: {problem}; the weights of step {progress.step:,} are used instead.", file=sys.stderr)

    def _write_or_warn(self, checkpoint: Checkpoint) -> None:
        if failure := self._write(checkpoint):
            self._warnings.append(f"{failure}; training continues, and saving is retried at the next checkpoint")

    def _write(self, checkpoint: Checkpoint) -> str:
        """Write a checkpoint, update its pointers and delete old checkpoints. Return an error message, or ""."""
        progress, weights, state, best = checkpoint
        path = checkpoint_path(self.directory, progress.step)
        try:
            if self.write_attempt is not None and not self.directory.exists():
                self.write_attempt()
                self._locks.enter_context(file_lock_of(self.directory))  # the run's lock was deleted with the folder
                recreated = f"{self.directory}: the folder had been removed and was created again"
                self._warnings.append(f"{recreated}; earlier checkpoints and metrics are lost")
            content = {"progress": dataclasses.asdict(progress)}
            if state is None:
                amend_manifest(path, content)
            else:
                if not self.exist:
                    write_file(self.directory / SAVING, b"")
                content |= self._provenance.content() if self._provenance else {}
                write_checkpoint(path, {WEIGHTS: weights, **state._asdict()}, content)
            self._point(LAST, progress)
            if best:
                self._point(BEST, progress)
                self._best = progress
        except (OSError, DamagedError) as error:
            with suppress(OSError, UserError):
                remove_unnamed(self.directory, self._keep)  # this also deletes incomplete files of the failed save
            reason = error.found if isinstance(error, DamagedError) else error.strerror or error
            failure = f"{path}: cannot be written ({reason}); {self._describe_last()}"
            return f"{failure}: free some space, or check the folder"
        self._unsaved = None
        with suppress(OSError, UserError):  # the next save tries again
            remove_unnamed(self.directory, self._keep)
        return ""

    def _point(self, name: str, progress: Progress) -> None:
        """Point `last` or `best` to the checkpoint of this step."""
        write_json(self.directory / name, {"checkpoint": f"ckpt-{progress.step}", **dataclasses.asdict(progress)})

    def _describe_last(self) -> str:
        try:
            return f"the checkpoint of step {read_pointer(self.directory / LAST)['step']:,} is kept"
        except UserError:
            return "no checkpoint was saved before"


def read_checkpoint(
    path: Path, shapes: Sequence[Sequence[int]], new: TrainState, provenance: Provenance | None
) -> tuple[Checkpoint, list[str]]:
    """Read a checkpoint.

    Args:
        path: The path of the checkpoint files, without their suffix.
        shapes: The shapes of the weights.
        new: The state of a new run, which has the expected shapes and the default loss scale.
        provenance: The settings and data that the checkpoint must match; None to skip the check.

    Returns:
        The checkpoint, and a line of text for each difference from this run that is allowed.

    Raises:
        DamagedError: If a file is damaged.
        UserError: If the checkpoint belongs to another run.
    """
    manifest = verified_manifest(path)
    changes = provenance.check(manifest, path) if provenance else []
    progress = progress_in(manifest, path)
    groups = group_sizes(path)
    state = TrainState(
        read_group(path, OPTIMIZER, [value.shape for value in new.optimizer]),
        read_group(path, TRAINED, shapes) if TRAINED in groups else [],
        [read_group(path, LOSS_SCALE, [v.shape])[0] if LOSS_SCALE in groups else v for v in new.loss_scale],
        read_group(path, PENDING, [v.shape for v in new.pending]) if PENDING in groups and new.pending else new.pending,
    )
    return Checkpoint(progress, read_group(path, WEIGHTS, shapes), state), changes


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Return whether all elements are finite. In contrast to np.isfinite, no boolean array is allocated."""
    return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def remove_unnamed(directory: Path, keep: int) -> None:
    """Delete all checkpoints except the newest `keep` and those that `last` and `best` point to."""
    pointed = pointer_steps(directory)
    older = [step for step in saved_steps(directory) if step <= pointed.get(LAST, -1)]
    to_keep = {*pointed.values(), *older[:keep]}
    for path in directory.iterdir():
        match = re.match(r"ckpt-(\d+)\.", path.name)
        if match and int(match[1]) not in to_keep:
            path.unlink()
    (directory / SAVING).unlink(missing_ok=True)

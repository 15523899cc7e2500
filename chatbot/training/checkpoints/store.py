"""The checkpoints of one attempt: weights, optimizer and progress, written atomically while training goes on."""

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
    better_last,
    checkpoint_path,
    first_whole,
    group_sizes,
    pointed_steps,
    read_group,
    read_pointer,
    resumable_steps,
    saved_steps,
    verified_manifest,
    write_checkpoint,
)
from chatbot.attempts.files import BEST, LAST, SAVING
from chatbot.attempts.opening import lock_of
from chatbot.attempts.trained import assign_weights, weights_of
from chatbot.durable import write_file, write_json
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.checkpoints.progress import Progress, Provenance, progress_in
from chatbot.training.replica import TrainState, Values

# The groups of a checkpoint: the weights of the model, and the fields of `TrainState`.
WEIGHTS, OPTIMIZER, TRAINED, LOSS_SCALE, PENDING = "weights", *TrainState._fields


class Checkpoint(NamedTuple):
    """The content of a checkpoint. state: None if the tensors are on the disk. best: whether it is the best so far."""

    progress: Progress
    weights: Values = ()
    state: TrainState | None = None
    best: bool = False


class Checkpoints:
    """Saves and restores the checkpoints of one attempt.

    keep: the number of the newest ones that stay, beside the best. provenance: compared with that of a checkpoint to
    resume. write_attempt: writes the other files of the attempt, should its folder vanish; the new one is locked.
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
        self._best = Progress()  # of the best checkpoint on the disk
        self._unsaved: Checkpoint | None = None  # the one that is not on the disk yet
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._warnings: list[str] = []
        self._saved_at = time.monotonic()
        self._locks = ExitStack()  # of a folder that was made again

    @property
    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.directory / LAST).exists()

    def new_state(self, state: TrainState) -> TrainState:
        """Return the state of a new run, which trains the weights of the model."""
        return state._replace(trained=[weight.numpy() for weight in self._weights] if state.trained else [])

    def restore(self, new: TrainState) -> tuple[Progress, TrainState]:
        """Load the last checkpoint into the model; return its progress and state, or those of a new run without one.

        Where the last one is damaged, the newest whole one takes its place, with a warning. Raises UserError if none is
        whole.
        """
        self.wait()
        self._unsaved = None
        if not self.exist:
            return Progress(), self.new_state(new)
        pointed = pointed_steps(self.directory)
        shapes = [weight.shape for weight in self._weights]
        step, (checkpoint, changes), damage = first_whole(
            self.directory,
            resumable_steps(self.directory),
            lambda path: read_checkpoint(path, shapes, new, self._provenance),
        )
        for change in changes:
            print(change)
        progress, weights, state, _ = checkpoint
        assert state is not None, "it was read"
        with suppress(OSError):  # the run goes on, and reports it at the next save
            if damage is not None:
                print(f"Warning: {damage.found}; the checkpoint of step {step:,} is used instead.", file=sys.stderr)
                self._point(LAST, progress)
            if progress.best_step == step != pointed.get(BEST):
                # The process was killed between the two pointers, or a later best checkpoint is damaged.
                self._point(BEST, progress)
            elif progress.best_step != pointed.get(BEST, 0):  # the best one is damaged, or was before
                progress.take_best_of(Progress())
                if pointed.get(BEST, 0) > step:
                    (self.directory / BEST).unlink()
        self._best = dataclasses.replace(progress)
        if new.trained:
            state = state._replace(trained=state.trained or weights)
        else:  # a run that was with --average goes on from the trained weights
            weights = state.trained or weights
            state = state._replace(trained=[])
        for weight, value in zip(self._weights, weights, strict=True):
            weight.assign(value)
        return progress, state

    def check_space(self, state: TrainState, keeps_best: bool) -> None:
        """Raise UserError without space for the checkpoints of the run; old ones stay until the next is complete."""
        weights = sum(4 * weight.shape.num_elements() for weight in self._weights)
        size = weights + sum(value.nbytes for values in state for value in values)
        count = 1 + self._keep + keeps_best - len(saved_steps(self.directory))
        disk = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(disk).free
        if free < size * count:
            each, needed, left = (f"{number / 1e6:,.1f} MB" for number in (size, size * count, free))
            raise UserError(
                f"{self.directory}: not enough space on the disk; checkpoints of {each} each need {needed}, and {left} "
                "are free: free some space, or run in a folder on another disk"
            )

    def save(self, progress: Progress, state: TrainState) -> None:
        """Begin to write a checkpoint, and to name it in `last`.

        Returns when the weights are copied, once the checkpoint before is written. A pointer is written after the files
        that it names are on the disk; files are removed when no pointer names them. Raises UserError when a number is
        not finite.
        """
        self.wait()
        self._saved_at = time.monotonic()
        weights = [weight.numpy() for weight in self._weights]
        for what, values in (("a weight", [*weights, *state.trained]), ("a state of the optimizer", state.optimizer)):
            if not all(map(is_finite, values)):
                failure = f"{what} is not a number at step {progress.step}; {self._kept()}"
                raise UserError(f"{failure}: start again with a lower --learning-rate")
        self._unsaved = Checkpoint(dataclasses.replace(progress), weights, state)
        self._writing = self._writer.submit(self._write_or_warn, self._unsaved)

    def amend(self, progress: Progress, best: bool = False) -> None:
        """Begin to write another progress into the last checkpoint, of the same step, and to name it if it is the best.

        If that one could not be written, it will be with this progress. Returns as `wait` does.
        """
        self.wait()
        self._unsaved = (self._unsaved or Checkpoint(progress))._replace(
            progress=dataclasses.replace(progress), best=best
        )
        if self._unsaved.state is None:
            self._writing = self._writer.submit(self._write_or_warn, self._unsaved)

    def minutes_since_save(self) -> float:
        """Return the time since the last checkpoint began to be written, or since the run began."""
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
        """Finish what is being written at the end of the block, and try a failed save once more.

        Raises UserError when it fails again. An exception of the block is raised in any case.
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
        """Wait as `wait` does, and write the last checkpoint again if that has failed. Raises UserError."""
        self.wait()
        if self._unsaved is not None and (failure := self._write(self._unsaved)):
            raise UserError(f"{failure}, and run the same command again")

    def forget_lost_best(self, progress: Progress) -> None:
        """Wait as `wait` does. If the best checkpoint could not be written, the progress returns to the best before."""
        self.wait()
        if self._unsaved is not None and self._unsaved.best:
            progress.take_best_of(self._best)

    def warnings(self) -> list[str]:
        """Return what went wrong in the thread that writes since the last call, each in one line."""
        warnings = self._warnings
        self._warnings = []
        return warnings

    def note_at_end(self, nats: float) -> None:
        """Write the nats per character of the last checkpoint into `last`; see `better_last`. Raises as `wait`."""
        self.wait()
        with suppress(OSError, UserError):
            write_json(self.directory / LAST, {**read_pointer(self.directory / LAST), AT_END: nats})

    def load_best(self, progress: Progress) -> None:
        """Load the weights of the best checkpoint into the model, if there is one; a damaged one gives a warning."""
        if better_last(self.directory) is not None:
            return
        if (self.directory / BEST).exists() and progress.best_step != progress.step:
            try:
                best = checkpoint_path(self.directory, read_pointer(self.directory / BEST)["step"])
                verified_manifest(best)
                assign_weights(best, self._weights)
            except UserError as error:
                found = error.found if isinstance(error, DamagedError) else str(error)
                print(f"Warning: {found}; the weights of step {progress.step:,} are used instead.", file=sys.stderr)

    def _write_or_warn(self, checkpoint: Checkpoint) -> None:
        if failure := self._write(checkpoint):
            self._warnings.append(f"{failure}; training goes on, and tries again at the next checkpoint")

    def _write(self, checkpoint: Checkpoint) -> str:
        """Write a checkpoint and its pointers, then remove old ones. Return why it cannot be written, or ""."""
        progress, weights, state, best = checkpoint
        path = checkpoint_path(self.directory, progress.step)
        try:
            if self.write_attempt is not None and not self.directory.exists():
                self.write_attempt()
                self._locks.enter_context(lock_of(self.directory))  # the run's own was removed with the folder
                made_again = f"{self.directory}: the folder had been removed and was made again"
                self._warnings.append(f"{made_again}; earlier checkpoints and metrics are lost")
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
                remove_unnamed(self.directory, self._keep)  # what was written in part takes space
            reason = error.found if isinstance(error, DamagedError) else error.strerror or error
            failure = f"{path}: cannot be written ({reason}); {self._kept()}"
            return f"{failure}: free some space, or check the folder"
        self._unsaved = None
        with suppress(OSError, UserError):  # they are removed after the next save
            remove_unnamed(self.directory, self._keep)
        return ""

    def _point(self, name: str, progress: Progress) -> None:
        """Write `last` or `best`, which names the checkpoint of this step."""
        write_json(self.directory / name, {"checkpoint": f"ckpt-{progress.step}", **dataclasses.asdict(progress)})

    def _kept(self) -> str:
        try:
            return f"the checkpoint of step {read_pointer(self.directory / LAST)['step']:,} is kept"
        except UserError:
            return "no checkpoint was saved before"


def read_checkpoint(
    path: Path, shapes: Sequence[Sequence[int]], new: TrainState, provenance: Provenance | None
) -> tuple[Checkpoint, list[str]]:
    """Read a checkpoint; return also what has changed since it was written, one change a line.

    shapes: of the weights. new: of a new run, which has the loss scale that the checkpoint lacks. Raises DamagedError,
    and UserError for a checkpoint of another run.
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
    """Return whether all elements are finite numbers, without an array of them."""
    return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def remove_unnamed(directory: Path, keep: int) -> None:
    """Remove checkpoints that no pointer names, but for the newest ones. Raises OSError and UserError."""
    pointed = pointed_steps(directory)
    older = [step for step in saved_steps(directory) if step <= pointed.get(LAST, -1)]
    kept = {*pointed.values(), *older[:keep]}
    for path in directory.iterdir():
        found = re.match(r"ckpt-(\d+)\.", path.name)
        if found and int(found[1]) not in kept:
            path.unlink()
    (directory / SAVING).unlink(missing_ok=True)

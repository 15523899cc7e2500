"""The checkpoints of one attempt: weights, optimizer and progress, written atomically while training goes on."""

import dataclasses
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from chatbot.config.attempts import BEST, LAST, SAVING
from chatbot.durable import write_file, write_json
from chatbot.errors import UserError
from chatbot.model.checkpoint_files import (
    DamagedError,
    manifest_of,
    manifest_path,
    read_pointer,
    step_of,
    verified_manifest,
    with_manifest,
)
from chatbot.model.saved import assign_weights, tensor_name, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import lock_of
from chatbot.training.checkpoints.content import (
    LOSS_SCALE,
    TRAINED,
    Provenance,
    Snapshot,
    cause_of,
    is_finite,
    read_checkpoint,
)
from chatbot.training.checkpoints.progress import Progress
from chatbot.training.variable_update.replica import Averages, Values


class Checkpoints:
    """Saves and restores the checkpoints of one attempt.

    keep: the number of the newest checkpoints that stay, beside the best one. provenance: what the run trains with,
    which is compared with that of a checkpoint to resume. write_attempt: writes the other files of the attempt, should
    its folder vanish; the new folder is locked.
    """

    def __init__(
        self,
        directory: Path,
        model: Seq2Seq,
        averages: Averages | None = None,
        keep: int = 1,
        provenance: Provenance | None = None,
        write_attempt: Callable[[], None] | None = None,
    ) -> None:
        self.directory = directory
        self._provenance = provenance
        self._write_attempt = write_attempt
        self._weights = weights_of(model)
        self._averages = averages or Averages(self._weights)
        self._float16 = model.precision == "float16"
        self._keep = keep
        self._best = Progress()  # of the best checkpoint on the disk
        self._snapshot: Snapshot | None = None  # the one that is not on the disk yet
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._warnings: list[str] = []
        self._saved_at = time.monotonic()
        self._locks = ExitStack()  # of a folder that was made again

    @property
    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.directory / LAST).exists()

    def restore(self, new: Values) -> tuple[Progress, Values]:
        """Load the last checkpoint into the model; return its progress and the state of the optimizer.

        new: the state of a new run; without a checkpoint, it is returned with the model's weights as those to train.
        Where the last one is damaged, the newest whole one takes its place, and a warning is printed. Raises UserError
        for a damaged attempt.
        """
        self.wait()
        self._snapshot = None
        if not self.exist:
            return Progress(), self._averages.joined(self._averages.split(new)[1])
        pointed = {path.name: read_pointer(path)["step"] for path in pointers_in(self.directory)}
        last = pointed[LAST]
        older = {step_of(name) for name in with_manifest(self.directory)} | {*pointed.values()}
        shapes = [weight.shape for weight in self._weights], [value.shape for value in self._averages.split(new)[1]]
        damaged: list[DamagedError] = []
        for step in (last, *sorted((step for step in older if step < last), reverse=True)):
            try:
                content = read_checkpoint(self.directory / f"ckpt-{step}", *shapes, self._provenance, self._float16)
            except DamagedError as error:
                damaged.append(error)
                continue
            print(*content.changes, sep="\n", end="\n" if content.changes else "")
            progress = content.progress
            with suppress(OSError):  # the run goes on, and reports it at the next save
                if damaged:
                    warning = f"Warning: {damaged[0].found}; the checkpoint of step {step:,} is used instead."
                    print(warning, file=sys.stderr)
                    self._return_to(progress, pointed)
                elif progress.best_step and progress.best_step == step != pointed.get(
                    BEST
                ):  # killed after `last` was written, before `best`
                    self._point(BEST, progress)
            self._best = dataclasses.replace(progress)
            for weight, value in zip(self._weights, content.weights, strict=True):
                weight.assign(value)
            return progress, self._averages.joined(content.optimizer, content.trained)
        raise damaged[0]

    def check_space(self, state: Values, keeps_best: bool) -> None:
        """Raise UserError when the disk has no space for the checkpoints of the run.

        Old checkpoints stay until the next one is complete. keeps_best: whether the best one is kept beside them.
        """
        weights = sum(4 * weight.shape.num_elements() for weight in self._weights)
        size = weights + sum(value.nbytes for value in state)
        count = 1 + self._keep + keeps_best - len(list(self.directory.glob("ckpt-*.index")))
        disk = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(disk).free
        if free < size * count:
            raise UserError(
                f"{self.directory}: not enough space on the disk; checkpoints of {_megabytes(size)} each need "
                f"{_megabytes(size * count)}, and {_megabytes(free)} are free: free some space, or run in a folder "
                "on another disk"
            )

    def save(self, progress: Progress, state: Values, best: bool) -> None:
        """Begin to write a checkpoint, and to name it in `last`, and in `best` if it is the best.

        Returns when the weights are copied, once the checkpoint before is written. A pointer is written only after the
        files that it names are on the disk; files are removed only when no pointer names them. Raises UserError when a
        number is not finite.
        """
        self.wait()
        self._saved_at = time.monotonic()
        weights = [weight.numpy() for weight in self._weights]
        tensors = self._tensors(weights, state)
        for name, value in tensors.items():
            if not is_finite(value):
                what = "a state of the optimizer" if name.startswith("optimizer/") else "a weight"
                raise UserError(
                    f"{what} is not a number at step {progress.step}; {self._kept()}: start again with a lower "
                    "--learning-rate"
                )
        self._snapshot = Snapshot(dataclasses.replace(progress), best, tensors)
        self._writing = self._writer.submit(self._write_or_report)

    def amend(self, progress: Progress, best: bool = False) -> None:
        """Name the last checkpoint again, with another progress; in `best`, too, if it is the best after all.

        If that fails, a warning says so, and the progress returns to the best before.
        """
        self.wait()
        try:
            self._point(LAST, progress)
            if best:
                self._point(BEST, progress)
                self._best = dataclasses.replace(progress)
        except OSError as error:
            self._warnings.append(f"{self.directory / LAST}: cannot be written ({error.strerror}); training goes on")
            if best:
                progress.take_best_of(self._best)

    def minutes_since_save(self) -> float:
        """Return the time since the last checkpoint began to be written, or since the run began."""
        return (time.monotonic() - self._saved_at) / 60

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._writing is not None:
            wait([self._writing])
            writing, self._writing = self._writing, None
            writing.result()

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Finish at the end of the block what is being written. If the last save has failed, it is tried once more.

        Raises UserError when it fails again. An exception of the block is raised in any case.
        """
        try:
            yield
        except BaseException:
            self.wait()
            if self._snapshot is not None:
                step = self._snapshot.progress.step
                print(f"Warning: the checkpoint of step {step:,} could not be written.", file=sys.stderr)
            raise
        else:
            self.finish()
        finally:
            self._locks.close()

    def finish(self) -> None:
        """Wait as `wait` does, and write the last checkpoint again if that has failed. Raises UserError."""
        self.wait()
        if self._snapshot is not None:
            self._write(self._snapshot)

    def forget_lost_best(self, progress: Progress) -> None:
        """Wait as `wait` does. If the best checkpoint could not be written, the progress returns to the best before."""
        self.wait()
        if self._snapshot is not None and self._snapshot.best:
            progress.take_best_of(self._best)

    def warnings(self) -> list[str]:
        """Return what went wrong in the thread that writes since the last call, each in one line."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def load_best(self, progress: Progress) -> None:
        """Load the weights of the best checkpoint into the model, if there is one; a damaged one gives a warning."""
        if (self.directory / BEST).exists() and progress.best_step != progress.step:
            try:
                best = self.directory / read_pointer(self.directory / BEST)["checkpoint"]
                verified_manifest(best)
                assign_weights(best, self._weights)
            except UserError as error:
                found = error.found if isinstance(error, DamagedError) else str(error)
                print(f"Warning: {found}; the weights of step {progress.step:,} are used instead.", file=sys.stderr)

    def _tensors(self, weights: Values, state: Values) -> dict[str, Any]:
        """Return the arrays of a checkpoint by their names."""
        trained, optimizer = self._averages.split(state)
        loss_scale = [optimizer.pop()] if self._float16 else []
        groups = {"weights": weights, "optimizer": optimizer, TRAINED: trained, LOSS_SCALE: loss_scale}
        return {tensor_name(group, i): value for group, values in groups.items() for i, value in enumerate(values)}

    def _write_or_report(self) -> None:
        assert self._snapshot is not None
        try:
            self._write(self._snapshot)
        except _UnsavedError as error:
            self._warnings.append(f"{error.found}; training goes on, and tries again at the next checkpoint")

    def _write(self, snapshot: Snapshot) -> None:
        """Write a checkpoint and its pointers, then remove old ones. Raises UserError when it cannot be written."""
        progress = snapshot.progress
        path = self.directory / f"ckpt-{progress.step}"
        try:
            if self._write_attempt is not None and not self.directory.exists():
                self._write_attempt()
                self._locks.enter_context(lock_of(self.directory))  # the run's own was removed with the folder
                self._warnings.append(
                    f"{self.directory}: the folder had been removed and was made again; earlier checkpoints and "
                    "metrics are lost"
                )
            if not self.exist:
                write_file(self.directory / SAVING, b"")
            if manifest_path(path).exists():  # of a damaged checkpoint
                manifest_path(path).unlink()
            snapshot.write_tensors(path)
            content = self._provenance.content() if self._provenance else {}
            manifest = manifest_of(path, {"progress": dataclasses.asdict(progress), **content})
            write_json(manifest_path(path), manifest)
            self._point(LAST, progress)
            if snapshot.best:
                self._point(BEST, progress)
                self._best = progress
        except (tf.errors.OpError, OSError) as error:
            with suppress(OSError, UserError):
                remove_unnamed(self.directory, self._keep)  # what was written in part takes space
            full, reason = cause_of(error)
            cannot = "no space left on the disk" if full else "cannot be written"
            remedy = "free some space" if full else "check the folder and its permissions"
            raise _UnsavedError(f"{path}: {cannot} ({reason}); {self._kept()}: {remedy}") from None
        self._snapshot = None
        with suppress(OSError, UserError):  # they are removed after the next save
            remove_unnamed(self.directory, self._keep)

    def _return_to(self, progress: Progress, pointed: Mapping[str, int]) -> None:
        """Let the pointers name the checkpoint of this progress, since those after it are damaged.

        pointed: the steps that they name.
        """
        best_lost = pointed.get(BEST, 0) > progress.step
        if best_lost and progress.best_step != progress.step:
            progress.take_best_of(Progress())
        self._point(LAST, progress)
        if best_lost and progress.best_step == progress.step:
            self._point(BEST, progress)
        elif best_lost:
            (self.directory / BEST).unlink()

    def _point(self, name: str, progress: Progress) -> None:
        """Write `last` or `best`, which names the checkpoint of this step."""
        write_json(self.directory / name, {"checkpoint": f"ckpt-{progress.step}", **dataclasses.asdict(progress)})

    def _kept(self) -> str:
        try:
            return f"the checkpoint of step {read_pointer(self.directory / LAST)['step']:,} is kept"
        except UserError:
            return "no checkpoint was saved before"


class _UnsavedError(UserError):
    """A checkpoint could not be written."""

    def __init__(self, found: str) -> None:
        self.found = found
        super().__init__(f"{found}, and run the same command again")


def remove_unnamed(directory: Path, keep: int) -> None:
    """Remove old checkpoints of an attempt, and what a killed process or a failed save leaves of others.

    keep: the number of the newest ones that stay, beside those that `last` and `best` name.
    """
    steps = [read_pointer(path)["step"] for path in pointers_in(directory)]
    older = [name for name in with_manifest(directory) if steps and step_of(name) <= steps[0]]
    kept = {*(f"ckpt-{step}" for step in steps), *older[:keep]}
    for path in directory.iterdir():
        found = re.match(r"ckpt-\d+(?=[._])", path.name)
        if found and (path.is_dir() or found[0] not in kept or re.search(r"\.(tempstate\d+|part)$", path.name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if (directory / SAVING).exists():
        (directory / SAVING).unlink()


def pointers_in(directory: Path) -> list[Path]:
    """Return the files of an attempt that name a checkpoint: `last`, then `best`."""
    return [path for path in (directory / LAST, directory / BEST) if path.exists()]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

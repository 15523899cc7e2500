"""A run, ready for its next step: all objects that are created before the training loop."""

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import tensorflow as tf

from chatbot.attempts.files import CONFIG, LAST, RETRIEVAL, TOO_LARGE
from chatbot.attempts.opening import has_checkpoint, write_attempt
from chatbot.attempts.settings import stored_settings
from chatbot.config.corpus import AUTO
from chatbot.config.learning import LearningSettings
from chatbot.config.model import RECURRENT, TRANSFORMER
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.corpus.workers import prefetched
from chatbot.decoding.ngrams import ngrams_of
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.seq2seq import Seq2Seq
from chatbot.retrieval.indexing import write_retrieval
from chatbot.training.checkpoints.progress import Progress, Provenance, read_progress, value_text
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower, cpu_info
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.memory import least_memory, read_too_large, write_too_large
from chatbot.training.new_model import new_model, set_initial_weights
from chatbot.training.replica import TrainState
from chatbot.training.schedule import LEAST_STEPS, Calendar, Due, Schedule, calendar_of, schedule_of
from chatbot.training.share import Prepared
from chatbot.training.update import open_update
from chatbot.training.validation import Validator
from chatbot.training.variable_update import VariableUpdate

# A step is faster in bfloat16 on a CPU with these instructions, in layers of these units (docs/experiments.md). Smaller
# layers and other instructions were not measured, and a CPU without any for bfloat16 is slower with it.
MEASURED_INSTRUCTIONS = "avx512_bf16"
MEASURED_UNITS = {RECURRENT: 512, TRANSFORMER: 256}


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run. Only `progress`, the weights and the optimizer's state change."""

    settings: Settings  # with the chosen precision and directions in place of "auto"
    data: Data
    towers: Sequence[Tower]  # of this machine
    model: Seq2Seq
    team: Team
    batches: Batches
    schedule: Schedule
    calendar: Calendar
    train_step: VariableUpdate
    validator: Validator
    checkpoints: Checkpoints
    progress: Progress
    began: float  # time.monotonic()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule.rate(self.progress.step) * 0.5**self.progress.rate_halvings

    def batches_ahead(self) -> Generator[Prepared, None, None]:
        """Prepare the batches from the next step on, ahead of the caller."""
        step = self.progress.step
        batches = self.batches.from_step(step, self.train_step.num_shares, self.team.machine, self.team.machines)
        return prefetched(zip(batches, itertools.count(step)), self.train_step.prepare)

    @property
    def seconds_left(self) -> float | None:
        """The time until --time-limit has passed; None without."""
        deadline = self.settings.run.deadline
        return None if deadline is None else max(0.0, deadline - time.time())

    @property
    def time_is_up(self) -> bool:
        """Whether --time-limit has passed, on the chief's clock."""
        return self.team.chief and self.seconds_left == 0

    def reason_to_stop(self) -> str:
        """Return why the run is over, or "" if it is not."""
        step = self.progress.step
        last = self.calendar.last_step
        if last is not None and step >= last:
            return f"step {last:,} was the last one; continue with a larger --steps or --epochs"
        failures = self.progress.without_best
        if self.data.validation_decides and step >= LEAST_STEPS and failures >= self.settings.learning.patience:
            best = ""
            if self.progress.best_value is not None:
                value = value_text(self.progress.best_value, self.progress.best_by)
                best = f"; the best was {value} at step {self.progress.best_step:,}"
            return f"no improvement in {counted(failures, 'validation')}{best}; continue with a larger --patience"
        return ""

    def due(self, step: int) -> Due:
        """Return what is due after this many steps, --save-minutes by the chief's clock. All machines call it."""
        due = self.calendar.due(step)
        minutes = self.settings.run.save_minutes
        if minutes is None or due.save or not due.log:
            return due
        late = self.team.chief and self.checkpoints.minutes_since_save() >= minutes
        return due._replace(save=bool(self.team.agree("late" if late else "")))

    def gather_state(self, watched: AbstractContextManager[None]) -> TrainState:
        """Give the model the weights to validate and save; return the rest of a checkpoint. All machines call it.

        watched: entered while machines exchange what they have, not while they wait for the chief's disk.
        """
        self.checkpoints.forget_lost_best(self.progress)  # waits: the host has memory for one copy more
        self.team.barrier()
        with watched:
            self._agree_on_pieces()
            return self.train_step.gather_state()

    def _agree_on_pieces(self) -> None:
        """Take the smallest `most_positions` of all machines, and write it into the progress.

        A resumed run then divides shares as this one goes on to do: the masks of a piece are its own.
        """
        own = self.train_step.memory.most_positions
        found = [int(text) for text in self.team.all_gather_text("" if own is None else str(own)) if text]
        self.train_step.memory.most_positions = min(found, default=None)
        self.progress.limited(self.train_step.memory.most_positions, self.progress.logits)

    def go_back(self, watched: AbstractContextManager[None]) -> None:
        """Restore the last checkpoint, and halve the learning rate.

        The halved rate is written, so that a process that starts again counts on. All machines call it at the same
        step. watched: as for `gather_state`. Raises UserError when the checkpoint has vanished.
        """
        self.checkpoints.wait()
        self.team.barrier()
        if self.team.chief and not self.checkpoints.exist:
            raise UserError(f"{self.checkpoints.directory}: the checkpoint to go back to is gone; start again")
        progress = Progress()
        with watched:
            state = tf.nest.map_structure(np.zeros_like, self.train_step.gather_state())
            if self.team.chief:
                progress, state = self.checkpoints.restore(state)
            progress = broadcast_progress(self.team, progress)
            self.train_step.scatter_state(state)
            self._agree_on_pieces()
        self.progress.back_to(progress, self.settings.learning.learning_rate)
        if self.team.chief:
            self.checkpoints.amend(self.progress)

    def save(self, state: TrainState) -> None:
        """Begin to write a checkpoint, on the chief only."""
        if self.team.chief:
            self.checkpoints.save(self.progress, state)


def open_run(settings: Settings, data: Data, towers: Sequence[Tower], team: Team = ALONE) -> Run:
    """Begin or resume a run. All files of a resumed attempt are read before any is written; with --dry-run, none is.

    towers: of this machine; the first one's device has the model. Raises UserError for a damaged attempt, and for
    a batch with fewer pairs than towers.
    """
    began = time.monotonic()
    run = make_run(decided(settings, data, towers, team), data, towers, team, began)
    state = read_attempt(run)
    if team.chief and not settings.run.dry_run:
        write_files(run)
    begin(run, state)
    return run


def decided(settings: Settings, data: Data, towers: Sequence[Tower], team: Team) -> Settings:
    """Return the settings with what was chosen in place of "auto". The chief chooses for all machines."""
    precision = team.broadcast_text(chosen_precision(settings, towers[0].device) if team.chief else "")
    directions = "on" if data.both_directions else "off"
    return replace(settings, **{**data.chosen, "precision": precision, "both_directions": directions})


def chosen_precision(settings: Settings, device: str) -> str:
    """Return the precision; print it if the CPU has a choice. device: the logical one of the first tower."""
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    if has_checkpoint(settings):
        before = stored_settings(settings.run.directory / CONFIG).learning.precision
        if before != AUTO:
            return before
    # The CPUs of the workers of an asynchronous run are not known here.
    if "GPU" in device or settings.parallel.asynchronous:
        return "float32"
    instructions = cpu_info("flags", "Features").split()
    least = MEASURED_UNITS[settings.model.architecture]
    if MEASURED_INSTRUCTIONS in instructions and settings.model.units >= least:
        print(f"Precision: bfloat16, which is faster on such a CPU from {least} units on (--precision to choose).")
        return "bfloat16"
    if any("bf16" in name for name in instructions):
        print("Precision: float32; bfloat16 was not measured at this size on such a CPU (--precision to choose).")
    return "float32"


def make_run(settings: Settings, data: Data, towers: Sequence[Tower], team: Team, began: float) -> Run:
    """Make the parts of a run, whose model and progress are those of a new attempt. settings: from `decided`."""
    learning = settings.learning
    batches, pairs = batches_of(learning, data)
    ngrams = None
    if settings.model.ngrams:
        ngrams = ngrams_of((part.targets for part in data.training), len(data.vocabulary), settings.model.ngrams)
    model = new_model(settings, data, towers, team, ngrams)
    if team.coordinator is None:
        train_step: VariableUpdate = open_update(model, settings, towers, team)
    else:
        from chatbot.training.asynchronous import Asynchronous

        train_step = Asynchronous(model, learning, team.coordinator, *team.workers_and_servers)
    shares = train_step.num_shares * team.machines
    if learning.batch_tokens is None and pairs < shares:
        raise UserError(
            f"--batch-size {learning.batch_size}: less than the {shares} towers; give each at least one pair"
        )
    write = functools.partial(write_attempt, settings, data.vocabulary, data.description, ngrams)
    provenance = Provenance(settings, data.description)
    steps = batches.steps_per_epoch
    validated = data.validation.pairs if data.validation else 0
    return Run(
        settings=settings,
        data=data,
        towers=towers,
        model=model,
        team=team,
        batches=batches,
        schedule=schedule_of(learning, pairs, steps),
        calendar=calendar_of(settings, steps, pairs, validated, data.validation_decides),
        train_step=train_step,
        # With several machines, the other ones' devices would have to take part, too.
        validator=Validator(model, data, settings, towers if team.alone else towers[:1]),
        checkpoints=Checkpoints(settings.run.directory, model, settings.run.keep, provenance, write),
        progress=Progress(),
        began=began,
    )


def read_attempt(run: Run) -> TrainState:
    """Read the attempt on the chief, into the model and the progress; return the rest of the checkpoint.

    A new attempt begins with its initial weights. Raises UserError for a damaged one, and without space on the disk.
    """
    settings = run.settings.run
    limits = run.train_step.memory
    devices = f"{run.train_step.num_shares * run.team.machines} x {least_memory(run.towers)}"
    path = settings.directory / TOO_LARGE
    limits.too_large = float(run.team.broadcast_text(str(read_too_large(path, devices))))
    if run.team.chief and not settings.dry_run and least_memory(run.towers) is not None:
        limits.record = functools.partial(write_too_large, path, devices)
    state = run.train_step.gather_state()
    if not run.team.chief:
        return state
    checkpoints = run.checkpoints
    if not checkpoints.exist:
        set_initial_weights(run.model, run.settings, run.data)
    if settings.dry_run:  # without the weights: a step takes as long with any
        state = checkpoints.new_state(state)
        if checkpoints.exist:
            run.progress.take(read_progress(settings.directory / LAST))
    else:
        progress, state = checkpoints.restore(state)
        run.progress.take(progress)
    checkpoints.check_space(state, run.data.validation_decides)
    return state


def write_files(run: Run) -> None:
    """Write the files of the attempt but its checkpoints."""
    settings = run.settings
    data = run.data
    assert run.checkpoints.write_attempt is not None, "those of a run have it"
    run.checkpoints.write_attempt()
    if settings.run.retrieve_pairs:
        one_direction = dataclasses.replace(data.training, both_directions=False)
        corpus = data.description["fingerprint"], settings.run.retrieve_pairs, Path(settings.corpus.cache)
        of_attempt = one_direction, data.vocabulary, *corpus, data.validation_decides
        write_retrieval(settings.run.directory / RETRIEVAL, *of_attempt)


def begin(run: Run, state: TrainState) -> None:
    """Let all machines begin where the chief does. state: on the chief, that of the checkpoint."""
    learning = run.settings.learning
    progress = run.progress
    progress.on_devices(least_memory(run.towers))
    progress.take(broadcast_progress(run.team, progress))
    # Sums are rounded by chunks. A resumed run keeps its chunks unless less memory is left now.
    size = run.model.loss_size
    own = min(size.logits, progress.logits or size.logits)
    logits = min(map(int, run.team.all_gather_text(str(own))))
    progress.limited(progress.most_positions, logits)
    run.model.loss_size = size._replace(logits=logits)
    run.train_step.scatter_state(state)
    run.train_step.memory.most_positions = progress.most_positions
    progress.trains_at(learning.learning_rate)
    if run.data.validation:
        progress.measured_on(run.data.validation.fingerprint, learning.best_by)


def batches_of(learning: LearningSettings, data: Data) -> tuple[Batches, float]:
    """Return the global batches, those of --accumulate joined, and the average number of pairs in one."""
    size = learning.batch_size * learning.accumulate
    tokens = learning.batch_tokens
    if tokens is None:
        return Batches(data.training, size, learning.seed, None), size
    batches = Batches(data.training, size, learning.seed, tokens * learning.accumulate)
    return batches, batches.pairs / batches.steps_per_epoch


def broadcast_progress(team: Team, progress: Progress) -> Progress:
    """Return the chief's progress on every machine."""
    return Progress(**json.loads(team.broadcast_text(json.dumps(dataclasses.asdict(progress)))))

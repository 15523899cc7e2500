"""Creation and resumption of training runs."""

import dataclasses
import functools
import itertools
import json
import sys
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
from chatbot.config.run import base_batch
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.corpus.workers import prefetched
from chatbot.decoding.ngrams import count_ngrams
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.seq2seq import Seq2Seq
from chatbot.retrieval.indexing import write_retrieval
from chatbot.training.checkpoints.progress import Progress, Provenance, read_progress, value_text
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower, cpu_info
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.memory import min_memory, read_too_large, write_too_large
from chatbot.training.new_model import new_model, set_initial_weights
from chatbot.training.replica import TrainState
from chatbot.training.schedule import (
    MIN_STEPS,
    Calendar,
    Due,
    Schedule,
    make_calendar,
    make_schedule,
    next_log_interval,
)
from chatbot.training.share import Prepared
from chatbot.training.update import open_update
from chatbot.training.validation import Validator
from chatbot.training.variable_update import VariableUpdate

# On CPUs with these instructions, bfloat16 is the default precision if layers have at least this many units, because it
# was measured to be faster (docs/experiments.md).
MEASURED_INSTRUCTIONS = "avx512_bf16"
MEASURED_UNITS = {RECURRENT: 512, TRANSFORMER: 256}


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run that is ready for its next step."""

    settings: Settings  # settings with "auto" replaced by the chosen values
    data: Data
    towers: Sequence[Tower]  # towers of this machine
    model: Seq2Seq
    team: Team
    batches: Batches
    schedule: Schedule
    calendar: Calendar
    train_step: VariableUpdate
    validator: Validator
    checkpoints: Checkpoints
    progress: Progress
    began: float  # start time from time.monotonic()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule.rate(self.progress.step) * 0.5**self.progress.rate_halvings

    def batches_ahead(self) -> Generator[Prepared, None, None]:
        """Yield the batches of all following steps. A thread prepares them ahead of time."""
        step = self.progress.step
        batches = self.batches.from_step(step, self.train_step.num_shares, self.team.machine, self.team.machines)
        return prefetched(zip(batches, itertools.count(step)), self.train_step.prepare)

    @property
    def seconds_left(self) -> float | None:
        """The number of seconds until --time-limit expires, or None without a limit."""
        deadline = self.settings.run.deadline
        return None if deadline is None else max(0.0, deadline - time.time())

    @property
    def time_is_up(self) -> bool:
        """Whether --time-limit has expired, according to the chief. Always false on other machines."""
        return self.team.chief and self.seconds_left == 0

    def reason_to_stop(self) -> str:
        """Return the reason why the run is finished, or "" if it is not."""
        step = self.progress.step
        last = self.calendar.last_step
        if last is not None and step >= last:
            return f"step {last:,} was the last one; continue with a larger --steps or --epochs"
        failures = self.progress.without_best
        if self.data.validation_decides and step >= MIN_STEPS and failures >= self.settings.learning.patience:
            best = ""
            if self.progress.best_value is not None:
                value = value_text(self.progress.best_value, self.progress.best_by)
                best = f"; the best was {value} at step {self.progress.best_step:,}"
            return f"no improvement in {pluralize(failures, 'validation')}{best}; continue with a larger --patience"
        return ""

    def due(self, step: int, seconds_per_step: float | None = None) -> Due:
        """Return the actions that are due after a step. Must be called on all machines.

        By the chief's clock, all machines save after --save-minutes, and without --log-every change the interval
        between logs. They exchange this only at steps that all of them log.

        Args:
            step: The step, counted from 1.
            seconds_per_step: The time of recent steps, in seconds; None if unknown. Only the chief's time is used.
        """
        due = self.calendar.due(step)
        settings = self.settings.run
        minutes = settings.minutes_between_saves
        if not due.log or (settings.log_every and (minutes is None or due.save)):
            return due
        old = interval = self.calendar.log_every
        if settings.log_every is None and seconds_per_step is not None:
            interval = next_log_interval(old, seconds_per_step)
        late = minutes is not None and self.checkpoints.minutes_since_save() >= minutes
        news = self.team.broadcast_text(f"{interval} {late:d}" if late or interval != old else "")
        self.calendar.log_every, saves = map(int, news.split() or (old, False))
        return due._replace(save=due.save or bool(saves))

    def gather_state(self, watched: AbstractContextManager[None]) -> TrainState:
        """Copy the weights into the model and return the rest of the state. Must be called on all machines.

        Args:
            watched: A context in which machines exchange data. It detects machines that hang.
        """
        # This waits for the previous save to finish, so that only one copy of the weights is in host memory.
        self.checkpoints.restore_previous_best(self.progress)
        self.team.barrier()
        with watched:
            self._agree_on_pieces()
            return self.train_step.gather_state()

    def _agree_on_pieces(self) -> None:
        """Make all machines use the smallest limit of the micro-batch size, and store it in the checkpoint.

        A resumed run then splits batches in the same way. This matters because the dropout masks of a pair depend on
        how its batch is split.
        """
        limit = self.train_step.memory.most_positions
        limits = [int(text) for text in self.team.all_gather_text("" if limit is None else str(limit)) if text]
        self.train_step.memory.most_positions = min(limits, default=None)
        self.progress.set_limits(self.train_step.memory.most_positions, self.progress.logits)

    def go_back(self, watched: AbstractContextManager[None]) -> None:
        """Restore the last checkpoint and halve the learning rate. Must be called on all machines at the same step.

        The new learning rate is stored in the checkpoint, so a resumed run keeps it.

        Args:
            watched: See `gather_state`.

        Raises:
            UserError: If the checkpoint has been deleted.
        """
        self.checkpoints.wait()
        self.team.barrier()
        if self.team.chief and not self.checkpoints.exist:
            raise UserError(f"{self.checkpoints.directory}: the last checkpoint has been deleted; start again")
        progress = Progress()
        with watched:
            state = tf.nest.map_structure(np.zeros_like, self.train_step.gather_state())
            if self.team.chief:
                progress, state = self.checkpoints.restore(state)
            progress = broadcast_progress(self.team, progress)
            self.train_step.scatter_state(state)
            self._agree_on_pieces()
        self.progress.go_back_to(progress, self.settings.learning.learning_rate)
        if self.team.chief:
            self.checkpoints.amend(self.progress)

    def save(self, state: TrainState) -> None:
        """Start writing a checkpoint. Does nothing on machines other than the chief."""
        if self.team.chief:
            self.checkpoints.save(self.progress, state)


def open_run(settings: Settings, data: Data, towers: Sequence[Tower], team: Team = ALONE) -> Run:
    """Start or resume a run.

    All files of a resumed attempt are read before any file is written, so a damaged attempt is not changed.

    Args:
        settings: The settings of the run.
        data: The pairs and their vocabulary.
        towers: The towers of this machine. The model is placed on the device of the first tower.
        team: The machines of the run.

    Raises:
        UserError: If the attempt is damaged, or batches contain fewer pairs than there are towers.
    """
    began = time.monotonic()
    run = build_run(resolve_auto(settings, data, towers, team), data, towers, team, began)
    state = read_attempt(run)
    if team.chief and not settings.run.dry_run:
        write_files(run)
    start_from_chief(run, state)
    return run


def resolve_auto(settings: Settings, data: Data, towers: Sequence[Tower], team: Team) -> Settings:
    """Replace "auto" in the settings with specific values. All machines use the precision that the chief chooses."""
    precision = team.broadcast_text(choose_precision(settings, towers[0].device) if team.chief else "")
    directions = "on" if data.both_directions else "off"
    return replace(settings, **{**data.chosen, "precision": precision, "both_directions": directions})


def choose_precision(settings: Settings, device: str) -> str:
    """Return the precision of the run. If the choice depends on the CPU, print it.

    Args:
        settings: The settings of the run.
        device: The logical device of the first tower.
    """
    if settings.learning.precision != AUTO:
        return settings.learning.precision
    if has_checkpoint(settings):
        stored = stored_settings(settings.run.directory / CONFIG).learning.precision
        if stored != AUTO:
            return stored
    # In asynchronous training, the chief does not know the CPUs of the workers.
    if "GPU" in device or settings.parallel.asynchronous:
        return "float32"
    instructions = cpu_info("flags", "Features").split()
    min_units = MEASURED_UNITS[settings.model.architecture]
    if MEASURED_INSTRUCTIONS in instructions and settings.model.units >= min_units:
        print(f"Precision: bfloat16, which is faster on this CPU with {min_units} or more units (see --precision).")
        return "bfloat16"
    if any("bf16" in name for name in instructions):
        print("Precision: float32; bfloat16 has not been measured on this CPU at this model size (see --precision).")
    return "float32"


def build_run(settings: Settings, data: Data, towers: Sequence[Tower], team: Team, began: float) -> Run:
    """Create a run with a new model, at step 0.

    Args:
        settings: The settings from `resolve_auto`.
        data: The pairs and their vocabulary.
        towers: The towers of this machine.
        team: The machines of the run.
        began: The start time of the run, from time.monotonic().
    """
    learning = settings.learning
    batches, pairs = make_batches(learning, data)
    ngrams = None
    if settings.model.ngrams:
        ngrams = count_ngrams((part.targets for part in data.training), len(data.vocabulary), settings.model.ngrams)
    model = new_model(settings, data, towers, team, ngrams)
    if team.coordinator is None:
        train_step: VariableUpdate = open_update(model, settings, towers, team)
    else:
        from chatbot.training.asynchronous import Asynchronous

        train_step = Asynchronous(model, learning, team.coordinator, *team.workers_and_servers)
    shares = train_step.num_shares * team.machines
    if learning.batch_tokens is None and pairs < shares:
        raise UserError(
            f"--batch-size {learning.batch_size}: too small for {shares} towers; each needs at least one pair"
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
        schedule=make_schedule(learning, pairs, steps, base_batch(settings.run.preset, settings.model.architecture)),
        calendar=make_calendar(settings, steps, pairs, validated, data.validation_decides),
        train_step=train_step,
        # With several machines, the chief validates on a single device.
        validator=Validator(model, data, settings, towers if team.alone else towers[:1]),
        checkpoints=Checkpoints(settings.run.directory, model, settings.run.keep, provenance, write),
        progress=Progress(),
        began=began,
    )


def read_attempt(run: Run) -> TrainState:
    """Load the last checkpoint of an attempt on the chief, or set the initial weights of a new attempt.

    Returns:
        The training state, except the weights and the progress, which are loaded into `run`.

    Raises:
        UserError: If the attempt is damaged, or the disk has too little space.
    """
    settings = run.settings.run
    limits = run.train_step.memory
    devices = f"{run.train_step.num_shares * run.team.machines} x {min_memory(run.towers)}"
    path = settings.directory / TOO_LARGE
    limits.too_large = float(run.team.broadcast_text(str(read_too_large(path, devices))))
    if run.team.chief and not settings.dry_run and min_memory(run.towers) is not None:
        limits.record = functools.partial(write_too_large, path, devices)
    state = run.train_step.gather_state()
    if not run.team.chief:
        return state
    checkpoints = run.checkpoints
    if not checkpoints.exist:
        set_initial_weights(run.model, run.settings, run.data)
    if settings.dry_run:  # The stored weights are not needed to measure time and memory.
        state = checkpoints.new_state(state)
        if checkpoints.exist:
            run.progress.copy_from(read_progress(settings.directory / LAST))
    else:
        progress, state = checkpoints.restore(state)
        run.progress.copy_from(progress)
    checkpoints.check_space(state, run.data.validation_decides)
    return state


def write_files(run: Run) -> None:
    """Write all files of the attempt except its checkpoints."""
    settings = run.settings
    data = run.data
    assert run.checkpoints.write_attempt is not None, "set by build_run"
    run.checkpoints.write_attempt()
    if settings.run.retrieve_pairs:
        # Without validation, replies are only looked up, so pairs that are too long for the model are kept, too.
        max_length = data.training.max_length if data.validation_decides else sys.maxsize
        write_retrieval(
            settings.run.directory / RETRIEVAL,
            dataclasses.replace(data.training, both_directions=False, max_length=max_length),
            data.vocabulary,
            data.description["fingerprint"],
            settings.run.retrieve_pairs,
            Path(settings.corpus.cache),
            data.validation_decides,
        )


def start_from_chief(run: Run, state: TrainState) -> None:
    """Copy the chief's weights, state and progress to all machines.

    Args:
        run: The run.
        state: The training state from `read_attempt`. Only the chief's state is used.
    """
    learning = run.settings.learning
    progress = run.progress
    progress.set_device_memory(min_memory(run.towers))
    progress.copy_from(broadcast_progress(run.team, progress))
    # The loss is computed in chunks of at most this many logits. A resumed run keeps its limit, because the chunk size
    # affects rounding, unless a device now has less memory.
    size = run.model.loss_size
    limit = min(size.logits, progress.logits or size.logits)
    logits = min(map(int, run.team.all_gather_text(str(limit))))
    progress.set_limits(progress.most_positions, logits)
    run.model.loss_size = size._replace(logits=logits)
    run.train_step.scatter_state(state)
    run.train_step.memory.most_positions = progress.most_positions
    progress.set_learning_rate(learning.learning_rate)
    if run.data.validation:
        progress.set_validation(run.data.validation.fingerprint, learning.best_by)


def make_batches(learning: LearningSettings, data: Data) -> tuple[Batches, float]:
    """Return the global batches and the average number of pairs per batch. --accumulate multiplies the batch size."""
    size = learning.batch_size * learning.accumulate
    tokens = None if learning.batch_tokens is None else learning.batch_tokens * learning.accumulate
    batches = Batches(data.training, size, learning.seed, tokens)
    return batches, size if tokens is None else batches.pairs / batches.steps_per_epoch


def broadcast_progress(team: Team, progress: Progress) -> Progress:
    """Send the chief's progress to all machines, and return it."""
    return Progress(**json.loads(team.broadcast_text(json.dumps(dataclasses.asdict(progress)))))

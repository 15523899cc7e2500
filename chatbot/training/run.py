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

from chatbot.attempts.files import LAST, RETRIEVAL, TOO_LARGE
from chatbot.attempts.opening import other_attempt, write_attempt
from chatbot.attempts.trained import load_trained
from chatbot.config.learning import LearningSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.corpus.workers import prefetched
from chatbot.decoding.ngrams import Ngrams, ngrams_of
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq
from chatbot.pretrained.folder import pretrained_model
from chatbot.pretrained.tokens import piece_vocabulary
from chatbot.pretrained.weights import read_weights
from chatbot.pretrained.word_vectors import read_word_vectors
from chatbot.retrieval.indexing import write_retrieval
from chatbot.training.asynchronous import Asynchronous
from chatbot.training.checkpoints.manifest import Progress, Provenance, read_progress, value_text
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.data import Data
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import ALONE, Team
from chatbot.training.memory import least_memory, loss_size, read_too_large, write_too_large
from chatbot.training.new_model import built_model, start_from_frequencies, start_from_trained, start_from_vectors
from chatbot.training.precision import chosen_precision
from chatbot.training.replica import TrainState
from chatbot.training.schedule import LEAST_STEPS, Calendar, Due, Schedule, calendar_of, schedule_of
from chatbot.training.share import Prepared
from chatbot.training.step import Synchronous
from chatbot.training.update import open_update
from chatbot.training.validation import Validator
from chatbot.training.variable_update import VariableUpdate


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
        self.train_step.memory.most_positions = self.progress.most_positions = min(found, default=None)

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
        halvings = self.progress.rate_halvings + 1
        skipped = self.progress.skipped_updates
        with watched:
            state = tf.nest.map_structure(np.zeros_like, self.train_step.gather_state())
            if self.team.chief:
                progress, state = self.checkpoints.restore(state)
            progress = broadcast_progress(self.team, progress)
            self.train_step.scatter_state(state)
            self._agree_on_pieces()
        for name in ("most_positions", "logits", "device_memory"):
            setattr(progress, name, getattr(self.progress, name))
        progress.rate_halvings = halvings
        progress.halved_rate = self.settings.learning.learning_rate
        progress.skipped_updates = skipped
        progress.skipped_in_a_row = 0
        if self.progress.validation is not None:
            progress.measured_on(self.progress.validation, self.progress.best_by)
        vars(self.progress).update(vars(progress))
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
    batches, pairs = batches_of(settings.learning, data)
    settings = resolved(settings, data, towers, team)
    learning = settings.learning
    ngrams = None
    if settings.model.ngrams:
        ngrams = ngrams_of((pairs.targets for pairs in data.training), len(data.vocabulary), settings.model.ngrams)
    model = new_model(settings, data, towers, team, ngrams)
    if team.coordinator is None:
        train_step: VariableUpdate = open_update(model, settings, towers, team)
    else:
        train_step = Asynchronous(model, learning, team.coordinator, *team.workers_and_servers)
    shares = train_step.num_shares * team.machines
    if learning.batch_tokens is None and pairs < shares:
        raise UserError(
            f"--batch-size {learning.batch_size}: less than the {shares} towers; give each at least one pair"
        )

    if isinstance(train_step, Synchronous):
        path = settings.run.directory / TOO_LARGE
        devices = f"{shares} x {least_memory(towers)}"
        train_step.memory.too_large = float(team.broadcast_text(str(read_too_large(path, devices))))
        if team.chief and not settings.run.dry_run and least_memory(towers) is not None:
            train_step.memory.record = functools.partial(write_too_large, path, devices)
    write = functools.partial(write_attempt, settings, data.vocabulary, data.description, ngrams)
    provenance = Provenance(settings, data.description)
    checkpoints = Checkpoints(settings.run.directory, model, settings.run.keep, provenance, write)
    progress = Progress()
    state = train_step.gather_state()
    if team.chief:
        if not checkpoints.exist:
            set_initial_weights(model, settings, data)
        if settings.run.dry_run:  # without the weights: a step takes as long with any
            progress = read_progress(settings.run.directory / LAST) if checkpoints.exist else progress
            state = checkpoints.new_state(state)
        else:
            progress, state = checkpoints.restore(state)
        checkpoints.check_space(state, data.validation_decides)
        if not settings.run.dry_run:
            write()
            if settings.run.retrieve_pairs:
                one_direction = dataclasses.replace(data.training, both_directions=False)
                corpus = data.description["fingerprint"], settings.run.retrieve_pairs, Path(settings.corpus.cache)
                of_attempt = one_direction, data.vocabulary, *corpus, data.validation_decides
                write_retrieval(settings.run.directory / RETRIEVAL, *of_attempt)
    if progress.device_memory != least_memory(towers):
        progress.most_positions = progress.logits = None  # other devices may have memory for whole shares
    progress = broadcast_progress(team, progress)
    progress.device_memory = least_memory(towers)
    # Sums are rounded by chunks. A resumed run keeps its chunks unless less memory is left now.
    logits = min(model.loss_size.logits, progress.logits or model.loss_size.logits)
    progress.logits = min(map(int, team.all_gather_text(str(logits))))
    model.loss_size = model.loss_size._replace(logits=progress.logits)
    train_step.scatter_state(state)
    train_step.memory.most_positions = progress.most_positions
    progress.trains_at(learning.learning_rate)
    if data.validation:
        progress.measured_on(data.validation.fingerprint, learning.best_by)
    steps = batches.steps_per_epoch
    validated = data.validation.pairs if data.validation else 0
    schedule = schedule_of(learning, pairs, steps)
    calendar = calendar_of(settings, steps, pairs, validated, data.validation_decides)
    # With several machines, the other ones' devices would have to take part, too.
    validator = Validator(model, data, settings, towers if team.alone else towers[:1])
    return Run(
        settings=settings,
        data=data,
        towers=towers,
        model=model,
        team=team,
        batches=batches,
        schedule=schedule,
        calendar=calendar,
        train_step=train_step,
        validator=validator,
        checkpoints=checkpoints,
        progress=progress,
        began=began,
    )


def batches_of(learning: LearningSettings, data: Data) -> tuple[Batches, float]:
    """Return the global batches, those of --accumulate joined, and the average number of pairs in one."""
    size = learning.batch_size * learning.accumulate
    tokens = learning.batch_tokens
    if tokens is None:
        return Batches(data.training, size, learning.seed, None), size
    batches = Batches(data.training, size, learning.seed, tokens * learning.accumulate)
    return batches, batches.pairs / batches.steps_per_epoch


def resolved(settings: Settings, data: Data, towers: Sequence[Tower], team: Team) -> Settings:
    """Return the settings with what was chosen in place of "auto". The chief chooses for all machines."""
    precision = team.broadcast_text(chosen_precision(settings, towers[0].device) if team.chief else "")
    directions = "on" if data.both_directions else "off"
    return replace(settings, **{**data.chosen, "precision": precision, "both_directions": directions})


def new_model(settings: Settings, data: Data, towers: Sequence[Tower], team: Team, ngrams: Ngrams | None) -> Seq2Seq:
    """Return a model with weights drawn at random, on the device of the first tower, or on those of its parts."""
    learning = settings.learning
    with tf.device(towers[0].device):
        return built_model(
            settings.model,
            len(data.vocabulary),
            learning.seed,
            learning.precision,
            loss_size=loss_size(settings, towers, team.machines),
            spellings=spelling_table(data.vocabulary.spellings()),
            ngrams=ngrams,
            label_smoothing=learning.label_smoothing,
            part_devices=towers[0].parts or (),
        )


def set_initial_weights(model: Seq2Seq, settings: Settings, data: Data) -> None:
    """Set the bias to log frequencies of tokens, embeddings to --word-vectors, all weights to --init-from."""
    if (there := pretrained_model(settings.run.init_from)) is not None:
        with tf.device("/CPU:0"):
            read_weights(model, there, piece_vocabulary(there.tokenizer(), there.config)[1])
        return
    start_from_frequencies(model, data.training)
    if settings.model.word_vectors is not None:
        vectors = Path(settings.model.word_vectors)
        start_from_vectors(model, read_word_vectors(vectors, data.vocabulary, settings.model.embedding_size))
    if settings.run.init_from is not None:
        with tf.device("/CPU:0"):
            start_from_trained(model, data.vocabulary, load_trained(other_attempt(settings)))


def broadcast_progress(team: Team, progress: Progress) -> Progress:
    """Return the chief's progress on every machine."""
    return Progress(**json.loads(team.broadcast_text(json.dumps(dataclasses.asdict(progress)))))

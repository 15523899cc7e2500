"""A run, ready for its next step: all objects that are created before the training loop."""

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.attempts import LAST
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.corpus.ngrams import Ngrams, ngrams_of
from chatbot.corpus.reading.display import counted
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.corpus.word_vectors import read_word_vectors
from chatbot.corpus.workers import prefetched
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.copying import spelling_table
from chatbot.model.new_model import built_model, start_from_frequencies, start_from_vectors
from chatbot.model.saved import load_trained, weights_of
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.attempt import other_attempt, write_attempt
from chatbot.training.checkpoints.progress import Progress, read_progress, shown
from chatbot.training.checkpoints.provenance import Provenance
from chatbot.training.checkpoints.store import Checkpoints
from chatbot.training.data import Data
from chatbot.training.devices.memory import check_sampled_logits, loss_size, most_tokens
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import Team
from chatbot.training.precision import chosen_precision
from chatbot.training.schedule import LEAST_STEPS, Calendar, Due, Schedule, calendar_of, schedule_of
from chatbot.training.share import Prepared
from chatbot.training.validator import Validator
from chatbot.training.variable_update.interface import VariableUpdate
from chatbot.training.variable_update.replica import Averages, Values

# Makes the training step of a model.
OpenStep = Callable[[Seq2Seq, Settings], VariableUpdate]
Array = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run. Only `progress`, the weights and the optimizer's state change."""

    settings: Settings  # with the chosen precision and directions in place of "auto"
    data: Data
    model: Seq2Seq
    team: Team
    batches: Batches
    pairs_per_step: float  # on average
    schedule: Schedule
    calendar: Calendar
    train_step: VariableUpdate
    validator: Validator
    checkpoints: Checkpoints
    progress: Progress
    untrained: Values  # the weights that the run begins with; empty if it has a checkpoint, and on other machines

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
    def time_is_up(self) -> bool:
        """Whether --time-limit has passed, on the chief's clock."""
        deadline = self.settings.run.deadline
        return self.team.chief and deadline is not None and time.time() >= deadline

    def reason_to_stop(self) -> str:
        """Return why the run is over, or "" if it is not."""
        step, last = self.progress.step, self.calendar.last_step
        if last is not None and step >= last:
            return f"step {last:,} was the last one; continue with a larger --steps or --epochs"
        failures = self.progress.without_best
        if self.data.validation_decides and step >= LEAST_STEPS and failures >= self.settings.learning.patience:
            best = ""
            if self.progress.best_value is not None:
                value = shown(self.progress.best_value, self.progress.best_by)
                best = f"; the best was {value} at step {self.progress.best_step:,}"
            return f"no improvement in {counted(failures, 'validation')}{best}; continue with a larger --patience"
        return ""

    def due(self, step: int) -> Due:
        """Return the actions that are due after this many steps. All machines call it at the same step.

        A checkpoint of --save-minutes is due at a logged step: the chief's clock decides for all machines.
        """
        due, minutes = self.calendar.due(step), self.settings.run.save_minutes
        if minutes is None or due.save or not due.log:
            return due
        late = self.team.chief and self.checkpoints.minutes_since_save() >= minutes
        return due._replace(save=bool(self.team.agree("late" if late else "")))

    def gather_state(self) -> Values:
        """Set the weights of the model to those to validate and save; return the rest of a checkpoint.

        All machines call it at the same step.
        """
        self.checkpoints.forget_lost_best(self.progress)  # waits: the host has memory for one copy more
        if self.checkpoints.exist:
            self.untrained.clear()
        return self.train_step.gather_state()

    def go_back(self) -> None:
        """Restore the last checkpoint, or the untrained weights if there is none, and halve the learning rate.

        The halved rate is written to the disk, the untrained weights as the checkpoint of step 0: a process that starts
        again counts on from there. All machines call it at the same step. Raises UserError when the checkpoint has
        vanished.
        """
        self.checkpoints.wait()
        if self.team.chief and not self.untrained and not self.checkpoints.exist:
            raise UserError(f"{self.checkpoints.directory}: the checkpoint to go back to is gone; start again")
        progress, halvings, skipped = Progress(), self.progress.rate_halvings + 1, self.progress.skipped_updates
        state = [np.zeros_like(value) for value in self.train_step.gather_state()]
        if self.team.chief:
            for weight, value in zip(weights_of(self.model), self.untrained, strict=False):
                weight.assign(value)  # the checkpoint's follow if there is one
            progress, state = self.checkpoints.restore(state)
        progress = broadcast_progress(self.team, progress)
        self.train_step.scatter_state(state)
        progress.rate_halvings, progress.halved_rate = halvings, self.settings.learning.learning_rate
        progress.skipped_updates, progress.skipped_in_a_row, progress.unvalidated = skipped, 0, False
        if self.progress.validation is not None:
            progress.measured_on(self.progress.validation, self.progress.best_by)
        vars(self.progress).update(vars(progress))
        if self.team.chief and self.checkpoints.exist:
            self.checkpoints.amend(self.progress)
        else:
            self.save(state, best=False)

    def save(self, state: Values, best: bool) -> None:
        """Begin to write a checkpoint, on the chief only.

        state: from `gather_state`.
        best: whether the validation of this step is the best so far.
        """
        if self.team.chief:
            self.checkpoints.save(self.progress, state, best)


def broadcast_progress(team: Team, progress: Progress) -> Progress:
    """Return the chief's progress on every machine."""
    return Progress(**json.loads(team.broadcast_text(json.dumps(dataclasses.asdict(progress)))))


def training_ngrams(settings: ModelSettings, data: Data) -> Ngrams | None:
    """Return the n-grams of the training pairs; None without --ngrams."""
    if not settings.ngrams:
        return None
    return ngrams_of((pairs.targets for pairs in data.training), len(data.vocabulary), settings.ngrams)


def open_run(settings: Settings, data: Data, towers: Sequence[Tower], open_step: OpenStep, team: Team) -> Run:
    """Begin or resume a run. All files of a resumed attempt are read before any is written; with --dry-run, none is.

    towers: of this machine; the first one's device has the model that validates and replies. Raises UserError for a
    damaged attempt, and for a batch with fewer pairs than towers.
    """
    learning = settings.learning
    batch_size = learning.batch_size * learning.accumulate
    batch_tokens = None if learning.batch_tokens is None else learning.batch_tokens * learning.accumulate
    batches = Batches(data.training, batch_size, learning.seed, batch_tokens)
    pairs = batch_size if batch_tokens is None else batches.pairs / batches.steps_per_epoch

    device, all_towers = towers[0].device, len(towers) * team.machines
    own_precision = chosen_precision(settings, len(data.vocabulary), device, all_towers) if team.chief else ""
    precision = team.broadcast_text(own_precision)
    both_directions = "on" if data.both_directions else "off"
    settings = replace(
        settings,
        precision=precision,
        both_directions=both_directions,
        validation=data.validation_source,
        clean=data.clean,
    )

    with tf.device(device):
        size = loss_size(settings, towers, team.machines)
        check_sampled_logits(settings, most_tokens(settings, all_towers))
        ngrams = training_ngrams(settings.model, data)
        spellings = spelling_table(data.vocabulary.spellings())
        tables = spellings, ngrams, learning.label_smoothing
        model = built_model(settings.model, len(data.vocabulary), learning.seed, precision, size, *tables)
    train_step = open_step(model, settings)
    shares = train_step.num_shares * team.machines
    if batch_tokens is None and batch_size < shares:
        raise UserError(
            f"--batch-size {learning.batch_size}: less than the {shares} towers; give each at least one pair"
        )

    averages = Averages(weights_of(model), learning.average > 0)
    write = functools.partial(write_attempt, settings, data.vocabulary, data.description, ngrams)
    provenance = Provenance(settings, data.description)
    checkpoints = Checkpoints(settings.run.directory, model, averages, settings.run.keep, provenance, write)
    progress, state, untrained = Progress(), train_step.gather_state(), []
    if team.chief:
        if not checkpoints.exist:
            set_initial_weights(model, settings, data)
            untrained = [weight.numpy() for weight in weights_of(model)]
        if settings.run.dry_run:  # without the weights: a step takes as long with any
            progress = read_progress(settings.run.directory / LAST)[1] if checkpoints.exist else progress
            state = averages.joined(averages.split(state)[1])
        else:
            progress, state = checkpoints.restore(state)
        checkpoints.check_space(state, data.validation_decides)
        if not settings.run.dry_run:
            write()
    progress = broadcast_progress(team, progress)
    train_step.scatter_state(state)
    progress.trains_at(learning.learning_rate)
    if data.validation:
        progress.measured_on(data.validation.fingerprint, learning.best_by)
    return Run(
        settings=settings,
        data=data,
        model=model,
        team=team,
        batches=batches,
        pairs_per_step=pairs,
        schedule=schedule_of(learning, pairs, batches.steps_per_epoch),
        calendar=calendar_of(
            settings,
            batches.steps_per_epoch,
            pairs,
            data.validation.pairs if data.validation else 0,
            data.validation_decides,
        ),
        train_step=train_step,
        # With several machines, the other ones' devices would have to take part, too.
        validator=Validator(model, data, settings, towers if team.alone else towers[:1]),
        checkpoints=checkpoints,
        progress=progress,
        untrained=untrained,
    )


def set_initial_weights(model: Seq2Seq, settings: Settings, data: Data) -> None:
    """Set the bias to the log frequencies of the tokens, with --word-vectors the embeddings to these vectors, and with
    --init-from all weights to the other attempt's.

    model: as `built_model` makes it. Raises UserError when the other attempt or the vectors cannot be used.
    """
    start_from_frequencies(model, data.training)
    if settings.model.word_vectors is not None:
        vectors = Path(settings.model.word_vectors)
        start_from_vectors(model, read_word_vectors(vectors, data.vocabulary, settings.model.embedding_size))
    if settings.run.init_from is None:
        return
    with tf.device("/CPU:0"):
        other = load_trained(other_attempt(settings))
    recurrent = {id(v.value) for layer in (model.encoder, model.decoder) for v in layer.trainable_variables}
    sizes = len(data.vocabulary), len(other.vocabulary)
    for weight, old in zip(weights_of(model), weights_of(other.model), strict=True):
        value = old.numpy()
        of_tokens = [axis for axis, both in enumerate(zip(weight.shape, old.shape, strict=True)) if both == sizes]
        if of_tokens and id(weight) not in recurrent:
            axis = of_tokens[0]
            own, value = (np.moveaxis(array, axis, 0) for array in (weight.numpy(), value))
            value = np.moveaxis(rows_by_token(own, data.vocabulary, value, other.vocabulary), 0, axis)
        weight.assign(value)


def rows_by_token(own: Array, vocabulary: Vocabulary, other: Array, old: Vocabulary) -> Array:
    """Return the rows of the tokens of a vocabulary, taken from the rows of another one.

    own: the rows as they were drawn, [vocabulary, ...]. other: those of the old vocabulary, [old, ...]. A token that is
    not in the old vocabulary starts with the mean of the rows of its characters, or of the bytes of a character; its
    bias, and a byte, stay as they are.
    """
    ids = {token: i for i, token in enumerate(old.tokens)}
    rows = own.copy()
    for i, token in enumerate(vocabulary.tokens):
        if token in ids:
            rows[i] = other[ids[token]]
        elif i < vocabulary.first_byte and own.ndim > 1:
            rows[i] = other[old.ids([token])].mean(axis=0)
    return rows

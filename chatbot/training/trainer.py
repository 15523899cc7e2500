"""The training run, in the order it happens."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable

import tensorflow as tf
from tqdm import tqdm

from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import Batches
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.flags import replace
from chatbot.inference.replier import Replier
from chatbot.model.seq2seq import Seq2Seq, built_model, start_from_frequencies
from chatbot.training.attempt import write_attempt
from chatbot.training.checkpoints import Checkpoints, Progress
from chatbot.training.data import Data
from chatbot.training.interrupts import interrupts
from chatbot.training.machines.team import ALONE, Team, tower_names
from chatbot.training.precision import chosen_precision
from chatbot.training.schedule import describe, schedule_of
from chatbot.training.summaries import Summaries
from chatbot.training.variable_update.choose import VariableUpdate
from chatbot.training.window import Window

# A run without --steps, --epochs and --validation: ten epochs, and small data this many steps.
LEAST_STEPS, EPOCHS = 1000, 10
# Validation comes once an epoch, on large data more often.
MOST_STEPS_UNVALIDATED = 2000

INTERRUPTED = "interrupted"


def train(
    settings: Settings, data: Data, device: str, open_step: Callable[[Seq2Seq], VariableUpdate], team: Team = ALONE
) -> int:
    """Train until the limit, until validation stops improving, or until Ctrl-C; returns the exit code.

    device: where the model is that validates and replies. open_step: makes the training step of it.
    Of several machines all run this loop; the chief alone validates, reports and writes.
    Raises UserError when the batch is smaller than the towers are many, or the loss stops being a number.
    """
    size = settings.learning.batch_size * settings.learning.accumulate
    tokens = (
        None
        if settings.learning.batch_tokens is None
        else settings.learning.batch_tokens * settings.learning.accumulate
    )
    batches = Batches(data.training, size, settings.learning.seed, tokens)
    pairs = size if tokens is None else sum(map(len, data.training)) / batches.steps_per_epoch
    schedule = schedule_of(settings.learning, pairs, batches.steps_per_epoch)
    own = chosen_precision(settings, len(data.vocabulary), device) if team.chief else ""
    settings = replace(settings, precision=team.all_gather_text(own)[0])
    with tf.device(device):
        model = built_model(settings.model, len(data.vocabulary), settings.learning.seed, settings.learning.precision)
        start_from_frequencies(model, data.training)
    train_step = open_step(model)
    if settings.learning.batch_tokens is None and size < train_step.num_shares * team.machines:
        raise UserError(
            f"--batch-size {settings.learning.batch_size}: less than the {train_step.num_shares * team.machines} "
            "towers; give each at least one pair"
        )
    checkpoints, progress, state = Checkpoints(settings.run.directory, model), Progress(), train_step.gather_state()
    if team.chief:
        progress, state = checkpoints.restore(state)
        write_attempt(settings, data.vocabulary, data.description)
    progress = Progress(**json.loads(team.all_gather_text(json.dumps(dataclasses.asdict(progress)))[0]))
    train_step.scatter_state(state)
    if data.validation:
        progress.measured_on(data.validation.fingerprint)
    score = Scorer(model)
    replier = Replier(model, data.vocabulary, settings)
    limit = step_limit(settings, batches.steps_per_epoch)
    validate_every = settings.run.validate_every or min(batches.steps_per_epoch, MOST_STEPS_UNVALIDATED)
    announce(settings, data, progress, describe(settings.learning, schedule, pairs))
    stop = team.agree(reason_to_stop(settings, progress, limit))
    names = tower_names(team, train_step.tower_names)
    with (
        Summaries(settings, names, progress.step) if team.chief else contextlib.nullcontext() as summaries,
        tqdm(
            desc="Training",
            total=limit,
            initial=progress.step,
            unit=" steps",
            dynamic_ncols=True,
            disable=not team.chief,
        ) as bar,
        interrupts(announced=team.chief) as interrupted,
    ):
        window = Window(batches.prefetched(progress.step, train_step.num_shares, team.machine, team.machines))
        while not stop:
            shares, rate = window.next_shares(), schedule.rate(progress.step)
            train_step(shares, progress.step, rate)
            progress.step += 1
            bar.update()

            stop = INTERRUPTED if interrupted else reason_to_stop(settings, progress, limit)
            validate = data.validation is not None and (progress.step % validate_every == 0 or progress.step == limit)
            save = validate or progress.step == limit or progress.step % settings.run.save_every == 0
            if not (save or progress.step == 1 or progress.step % settings.run.log_every == 0 or (stop and team.alone)):
                stop = ""  # several machines stop together, at a step where all of them look up
                continue
            stop = team.agree(stop)

            if save or stop:
                state = train_step.gather_state()
            record = window.record(progress.step, rate, train_step.finished_steps())
            if not (math.isfinite(record["loss"]) and math.isfinite(record["gradient_norm"])):
                raise UserError(
                    f"the loss is {record['loss']} at step {progress.step}; the last checkpoint is kept: "
                    "go on from it with a lower --learning-rate"
                )
            bar.set_postfix_str(
                f"loss {record['loss']:.3f}, {record['examples_per_s']:.0f} examples/s, "
                f"{record['target_tokens_per_s']:,.0f} target tokens/s"
            )
            best = False
            if validate and data.validation and summaries:
                found = score(data.validation.shards)
                best = progress.validated(found.nats_per_character)
                record["validation.nats_per_token"] = found.nats_per_token
                record["validation.nats_per_character"] = found.nats_per_character
                replies = replier.best_to([sample.ids for sample in data.samples])
                summaries.replies([(s.question, s.answer) for s in data.samples], replies, progress.step)
                verdict = "the best so far" if best else f"no better for {progress.without_best}"
                bar.write(
                    f"step {progress.step:,}: validation {found.nats_per_character:.4f} nats per character, {verdict}"
                )
            if summaries:
                summaries.write(record)
                if save or stop:
                    checkpoints.save(progress, state, best)
            if validate:
                stop = team.agree(stop or reason_to_stop(settings, progress, limit))
            window.restart()

    team.leave()
    print(f"Stopped at step {progress.step:,}: {stop}.")
    if stop == INTERRUPTED:
        print(
            f"Saved. The same command goes on from here; to talk to it: python chat.py --attempt {settings.run.attempt}"
        )
        return 130
    if team.chief:
        checkpoints.load_best(progress)
        show_result(settings, data, replier)
    return 0


def announce(settings: Settings, data: Data, progress: Progress, rate: str) -> None:
    """What is good to know before the first step."""
    if rate:
        print(rate)
    if progress.step:
        print(f"Going on from step {progress.step:,} of checkpoints/{settings.run.attempt}.")
    if data.validation is None:
        counts = f"the best so far, of step {progress.best_step:,}, stays" if progress.best_step else "the last counts"
        print(f"No --validation FILE: there is nothing to validate on. Of the checkpoints, {counts}.")


def show_result(settings: Settings, data: Data, replier: Replier) -> None:
    """Sample replies, and what to do next."""
    print("Sample replies:")
    for sample, reply in zip(data.samples, replier.best_to([s.ids for s in data.samples]), strict=True):
        print(f"  {sample.question} -> {reply}")
    print(f"Curves: tensorboard --logdir tensorboard/{settings.run.attempt}")
    print(f"Talk to it: python chat.py --attempt {settings.run.attempt}")


def step_limit(settings: Settings, steps_per_epoch: int) -> int | None:
    """The last step of the run; None when only validation ends it."""
    if settings.learning.steps is not None:
        return settings.learning.steps
    if settings.learning.epochs is not None:
        return settings.learning.epochs * steps_per_epoch
    if settings.encoding.validation is not None:
        return None
    return max(LEAST_STEPS, EPOCHS * steps_per_epoch)


def reason_to_stop(settings: Settings, progress: Progress, limit: int | None) -> str:
    """Why the run is over, or "" when it is not."""
    if limit is not None and progress.step >= limit:
        return f"the {limit:,} steps asked for are done; --steps or --epochs with a larger number goes on"
    if settings.encoding.validation is not None and progress.without_best >= settings.learning.patience:
        best = (
            ""
            if progress.best_nats is None
            else (f"; the best was {progress.best_nats:.4f} nats per character at step {progress.best_step:,}")
        )
        return f"no better validation in {progress.without_best} in a row{best}; a larger --patience goes on"
    return ""

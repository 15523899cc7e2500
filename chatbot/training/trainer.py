"""The training run, in the order it happens."""

import math
from collections.abc import Sequence

import tensorflow as tf
from tqdm import tqdm

from chatbot.config.attempts import TENSORBOARD
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.replies import Replier
from chatbot.model.seq2seq import built_model, start_from_frequencies
from chatbot.training.attempt import write_attempt
from chatbot.training.checkpoints import Checkpoints, Progress
from chatbot.training.data import Data
from chatbot.training.devices import Tower
from chatbot.training.interrupts import interrupts
from chatbot.training.optimizer import build_optimizer
from chatbot.training.summaries import Summaries
from chatbot.training.towers import Towers
from chatbot.training.window import Window

# A run without --steps, --epochs and --validation: ten epochs, and small data this many steps.
LEAST_STEPS, EPOCHS = 1000, 10
# Validation comes once an epoch, on large data more often.
MOST_STEPS_UNVALIDATED = 2000


def train(settings: Settings, data: Data, towers: Sequence[Tower]) -> int:
    """Train until the limit, until validation stops improving, or until Ctrl-C; returns the exit code.

    Raises UserError when the batch is smaller than the towers are many, or the loss stops being a number.
    """
    if settings.batch_tokens is None and settings.batch_size < len(towers):
        raise UserError(
            f"--batch-size {settings.batch_size}: less than the {len(towers)} towers; give each at least one pair"
        )
    batches = Batches(data.training, settings.batch_size, settings.seed, settings.batch_tokens)
    with tf.device(towers[0].device):
        model = built_model(settings, len(data.vocabulary))
        start_from_frequencies(model, data.training)
        optimizer = build_optimizer(settings, model.trainable_variables)
    checkpoints = Checkpoints(settings.directory, model, optimizer)
    progress = checkpoints.restore()
    write_attempt(settings, data.vocabulary, data.description)
    optimizer.learning_rate = float(settings.learning_rate)  # may differ from the restored one
    if data.validation:
        progress.measured_on(data.validation.fingerprint)
    train_step = Towers(model, optimizer, [t.device for t in towers], settings.max_gradient_norm, settings.seed)
    score = Scorer(model)
    replier = Replier(model, data.vocabulary, settings)
    limit = step_limit(settings, batches.steps_per_epoch)
    validate_every = settings.validate_every or min(batches.steps_per_epoch, MOST_STEPS_UNVALIDATED)

    if progress.step:
        print(f"Going on from step {progress.step:,} of checkpoints/{settings.attempt}.")
    if data.validation is None:
        counts = f"the best so far, of step {progress.best_step:,}, stays" if progress.best_step else "the last counts"
        print(f"No --validation FILE: there is nothing to validate on. Of the checkpoints, {counts}.")
    stop = reason_to_stop(settings, progress, limit)
    metrics, curves = settings.directory / "metrics.jsonl", TENSORBOARD / settings.attempt
    curves.mkdir(parents=True, exist_ok=True)
    with (
        Summaries(metrics, curves, [t.name for t in towers], progress.step) as summaries,
        tqdm(desc="Training", total=limit, initial=progress.step, unit=" steps", dynamic_ncols=True) as bar,
        interrupts() as interrupted,
    ):
        window = Window(batches.prefetched(progress.step, len(towers)))
        while not stop:
            shares = window.next_shares()
            window.add(train_step(shares, progress.step))
            progress.step += 1
            bar.update()

            stop = "interrupted" if interrupted else reason_to_stop(settings, progress, limit)
            validate = data.validation is not None and (progress.step % validate_every == 0 or progress.step == limit)
            save = validate or bool(stop) or progress.step % settings.save_every == 0
            if not (save or progress.step == 1 or progress.step % settings.log_every == 0):
                continue

            record = window.record(progress.step, settings.learning_rate)
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
            if validate and data.validation:
                found = score(data.validation.shards)
                best = progress.validated(found.nats_per_character)
                record["validation.nats_per_token"] = found.nats_per_token
                record["validation.nats_per_character"] = found.nats_per_character
                replies = replier.best_to([sample.ids for sample in data.samples])
                summaries.replies([(s.question, s.answer) for s in data.samples], replies, progress.step)
                stop = stop or reason_to_stop(settings, progress, limit)
            summaries.write(record)
            if save:
                checkpoints.save(progress, best)
            if validate:
                nats = record["validation.nats_per_character"]
                verdict = "the best so far" if best else f"no better for {progress.without_best}"
                bar.write(f"step {progress.step:,}: validation {nats:.4f} nats per character, {verdict}")
            window.restart()

    print(f"Stopped at step {progress.step:,}: {stop}.")
    if interrupted:
        print(f"Saved. The same command goes on from here; to talk to it: python chat.py --attempt {settings.attempt}")
        return 130
    checkpoints.load_best(progress)
    show_result(settings, data, replier)
    return 0


def show_result(settings: Settings, data: Data, replier: Replier) -> None:
    """Sample replies, and what to do next."""
    print("Sample replies:")
    for sample, reply in zip(data.samples, replier.best_to([s.ids for s in data.samples]), strict=True):
        print(f"  {sample.question} -> {reply}")
    print(f"Curves: tensorboard --logdir tensorboard/{settings.attempt}")
    print(f"Talk to it: python chat.py --attempt {settings.attempt}")


def step_limit(settings: Settings, steps_per_epoch: int) -> int | None:
    """The last step of the run; None when only validation ends it."""
    if settings.steps is not None:
        return settings.steps
    if settings.epochs is not None:
        return settings.epochs * steps_per_epoch
    if settings.validation is not None:
        return None
    return max(LEAST_STEPS, EPOCHS * steps_per_epoch)


def reason_to_stop(settings: Settings, progress: Progress, limit: int | None) -> str:
    """Why the run is over, or "" when it is not."""
    if limit is not None and progress.step >= limit:
        return f"the {limit:,} steps asked for are done; --steps or --epochs with a larger number goes on"
    if settings.validation is not None and progress.without_best >= settings.patience:
        best = (
            ""
            if progress.best_nats is None
            else (f"; the best was {progress.best_nats:.4f} nats per character at step {progress.best_step:,}")
        )
        return f"no better validation in {progress.without_best} in a row{best}; a larger --patience goes on"
    return ""

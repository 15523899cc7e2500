"""Loads trained models from checkpoints."""

import dataclasses
import sys
from pathlib import Path

import tensorflow as tf

from chatbot.attempts.checkpoint import (
    better_last_nats,
    check_model_size,
    check_vocabulary,
    first_intact,
    read_group,
    read_pointer,
    saved_steps,
    verified_manifest,
)
from chatbot.attempts.files import BEST, CONFIG, DICTIONARY, LAST, NGRAMS, RETRIEVAL, VOCABULARY, is_validated
from chatbot.attempts.settings import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import Vocabulary, load_vocabulary
from chatbot.decoding.ngrams import load_ngrams
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq
from chatbot.retrieval.index import Retrieval, load_retrieval


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model with its settings, its vocabulary and the step of its checkpoint."""

    settings: Settings
    vocabulary: Vocabulary
    model: Seq2Seq
    step: int
    retrieval: Retrieval | None = None  # the index of the training pairs; None if the attempt has none


def load_trained(directory: Path) -> Trained:
    """Load the best checkpoint of an attempt, or the last one if the attempt was not validated.

    If this checkpoint is damaged, a warning is printed and another checkpoint is loaded. Raises UserError if the folder
    or a file is missing or damaged.
    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the directory of an attempt")
    steps = _replying_steps(directory)
    settings = stored_settings(directory / CONFIG)
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(directory / DICTIONARY))
    vocabulary = load_vocabulary(directory / VOCABULARY)
    check_model_size(directory, settings.model, len(vocabulary))
    order = settings.model.ngrams
    ngrams = load_ngrams(directory / NGRAMS, len(vocabulary), order) if order else None
    model = Seq2Seq(settings.model, len(vocabulary), spellings=spelling_table(vocabulary.spellings()), ngrams=ngrams)

    def load(path: Path) -> None:
        check_vocabulary(verified_manifest(path), vocabulary.fingerprint(), path)
        assign_weights(path, weights_of(model))

    step, _, damage = first_intact(directory, steps, load)
    if damage is not None:
        _warn(damage.found, step)
    return Trained(settings, vocabulary, model, step, load_retrieval(directory / RETRIEVAL, vocabulary))


def _replying_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints that can be loaded for replies, in order of preference.

    The best checkpoint comes first, followed by the last one and all others. The last one comes first if its validation
    loss is lower; see `better_last_nats`. Raises UserError if neither `best` nor `last` points to a checkpoint.
    """
    steps: list[int] = []
    damage: UserError | None = None
    order = (LAST, BEST) if better_last_nats(directory) is not None else (BEST, LAST)
    for name in order if is_validated(directory) else (LAST,):
        try:
            steps.append(read_pointer(directory / name)["step"])
        except UserError as error:
            if not steps:  # a damaged `last` does not matter if `best` is intact
                damage = damage or error
    if damage is not None:
        if not steps:
            raise damage
        _warn(str(damage), steps[0])
    return [*steps, *saved_steps(directory)]


def _warn(damage: str, step: int) -> None:
    print(f"Warning: {damage}; the checkpoint of step {step:,} is used instead.", file=sys.stderr)


def weights_of(model: Seq2Seq) -> list[tf.Variable]:
    """Return the weights of a model in the order in which checkpoints store them."""
    return [variable.value for variable in model.trainable_variables]


def assign_weights(path: Path, weights: list[tf.Variable]) -> None:
    """Load a checkpoint into the weights of a model. Raises DamagedError if the checkpoint is missing or damaged."""
    for weight, value in zip(weights, read_group(path, "weights", [w.shape for w in weights]), strict=True):
        weight.assign(value)

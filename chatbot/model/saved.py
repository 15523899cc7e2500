"""Reads a trained model from an attempt's directory."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.attempts import BEST, CONFIG, DICTIONARY, LAST, NGRAMS, VOCABULARY, is_validated
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.ngrams import load_ngrams
from chatbot.corpus.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.checkpoint_files import (
    DamagedError,
    check_model_size,
    check_vocabulary,
    read_pointer,
    step_of,
    verified_manifest,
    with_manifest,
)
from chatbot.model.checkpoint_index import read_index
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq

# The exceptions for a file that is truncated, overwritten or of other shapes.
UNREADABLE = (tf.errors.OpError, OSError, ValueError, LookupError, RuntimeError)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model, the settings and vocabulary that it was trained with, and the step of its checkpoint."""

    settings: Settings
    vocabulary: Vocabulary
    model: Seq2Seq
    step: int


def load_trained(directory: Path) -> Trained:
    """Load the best checkpoint in the directory of an attempt, or the last one without validation.

    If that one is damaged, another one of the attempt is loaded, and a warning printed. Raises UserError for a missing
    or damaged directory or file.
    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the directory of an attempt")
    names = _names(directory)
    settings = stored_settings(directory / CONFIG)
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(directory / DICTIONARY))
    vocabulary = load_vocabulary(directory / VOCABULARY)
    check_model_size(directory, settings.model, len(vocabulary))
    order = settings.model.ngrams
    ngrams = load_ngrams(directory / NGRAMS, len(vocabulary), order) if order else None
    model = Seq2Seq(settings.model, len(vocabulary), spellings=spelling_table(vocabulary.spellings()), ngrams=ngrams)
    damaged: list[DamagedError] = []
    for name in names:
        try:
            check_vocabulary(verified_manifest(directory / name) or {}, vocabulary.fingerprint(), directory / name)
            assign_weights(directory / name, weights_of(model))
        except DamagedError as error:
            damaged.append(error)
            continue
        if damaged:
            _warn(damaged[0].found, name)
        return Trained(settings, vocabulary, model, step_of(name))
    raise damaged[0]


def _names(directory: Path) -> list[str]:
    """Return the names of the checkpoints of an attempt in the order in which to try them: best, last, older ones.

    Raises UserError when neither `best` nor `last` names one.
    """
    found = [_pointed(directory / pointer) for pointer in ((BEST, LAST) if is_validated(directory) else (LAST,))]
    names = [name for name in found if isinstance(name, str)]
    if isinstance(found[0], UserError):
        if not names:
            raise found[0]
        _warn(str(found[0]), names[0])
    return list(dict.fromkeys([*names, *with_manifest(directory)]))


def _pointed(path: Path) -> str | UserError:
    try:
        return read_pointer(path)["checkpoint"]
    except UserError as error:
        return error


def _warn(damage: str, used: str) -> None:
    print(f"Warning: {damage}; the checkpoint of step {step_of(used):,} is used instead.", file=sys.stderr, flush=True)


def weights_of(model: Seq2Seq) -> list[tf.Variable]:
    """Return the weights, in the order of a checkpoint.

    They are plain tf.Variables, because tf.train.Checkpoint does not track the weights of nested Keras
    layers, and omits them without an error.
    """
    return [variable.value for variable in model.trainable_variables]


def assign_weights(prefix: Path, weights: list[tf.Variable]) -> None:
    """Assign the values in a checkpoint to the weights. Raises DamagedError for a missing or damaged checkpoint."""
    for weight, value in zip(weights, read_values(prefix, "weights", [w.shape for w in weights]), strict=True):
        weight.assign(value)


def read_values(prefix: Path, group: str, shapes: Sequence[Sequence[int]]) -> list[npt.NDArray[Any]]:
    """Read the values of a list of variables, "weights" or "optimizer", from a checkpoint.

    They are read name by name, because tf.train.Checkpoint.read ignores missing values. The number, the shapes and the
    types of the variables are compared before any value is read. Raises DamagedError for a missing or damaged
    checkpoint, and if they differ.
    """
    try:
        found = read_index(prefix)
        names = [tensor_name(group, i) for i in range(len(shapes))]
        if tensor_name(group, len(shapes)) in found:
            raise ValueError(f"it has more than {len(shapes)} {group}")
        for name, shape in zip(names, shapes, strict=True):
            if name not in found:
                raise ValueError(f"it has fewer than {len(shapes)} {group}")
            if found[name].shape != tuple(shape):
                raise ValueError(f"one of its {group} has shape {found[name].shape}, not {tuple(shape)}")
            if not (found[name].dtype.is_floating or found[name].dtype.is_integer):
                raise ValueError(f"one of its {group} is of type {found[name].dtype.name}")
        reader = tf.train.load_checkpoint(str(prefix))
        return [np.asarray(reader.get_tensor(name)) for name in names]
    except UNREADABLE as error:
        missing = not Path(f"{prefix}.index").exists()
        what = "missing" if missing else "damaged, or not of these settings"
        reason = "no such file" if missing else str(error).strip().split("\n")[0][:150]
        raise DamagedError(prefix, what, reason) from None


def tensor_name(group: str, number: int) -> str:
    """Return the name of a variable in a checkpoint, as tf.train.Checkpoint gives it to one in a list."""
    return f"{group}/{number}/.ATTRIBUTES/VARIABLE_VALUE"

"""Reads a trained model from an attempt's directory."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.attempts import BEST, CONFIG, DICTIONARY, LAST, NGRAMS, VOCABULARY, is_validated
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.ngrams import load_ngrams
from chatbot.corpus.encoding.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq

# The exceptions of TensorFlow's reader for a file that is truncated, overwritten or of other shapes.
UNREADABLE = (tf.errors.OpError, ValueError, LookupError, RuntimeError)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model, the settings and vocabulary that it was trained with, and the step of its checkpoint."""

    settings: Settings
    vocabulary: Vocabulary
    model: Seq2Seq
    step: int


def load_trained(directory: Path) -> Trained:
    """Load the best checkpoint in the directory of an attempt, or the last one without validation.

    Raises UserError for a missing or damaged directory or file.
    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the directory of an attempt")
    pointer = read_pointer(directory / (BEST if is_validated(directory) else LAST))
    settings = stored_settings(directory / CONFIG)
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(directory / DICTIONARY))
    vocabulary = load_vocabulary(directory / VOCABULARY)
    order = settings.model.ngrams
    ngrams = load_ngrams(directory / NGRAMS, len(vocabulary), order) if order else None
    model = Seq2Seq(settings.model, len(vocabulary), spellings=spelling_table(vocabulary.spellings()), ngrams=ngrams)
    assign_weights(directory / pointer["checkpoint"], weights_of(model))
    return Trained(settings, vocabulary, model, pointer["step"])


def weights_of(model: Seq2Seq) -> list[tf.Variable]:
    """Return the weights, in the order of a checkpoint.

    They are plain tf.Variables, because tf.train.Checkpoint does not track the weights of nested Keras
    layers, and omits them without an error.
    """
    return [variable.value for variable in model.trainable_variables]


def read_pointer(path: Path) -> dict[str, Any]:
    """Read `last` or `best`: {"checkpoint": name, "step": number, ...}.

    Raises UserError for a missing or damaged file.
    """
    remedy = "restore it from a backup, or train again under another --attempt"
    try:
        pointer = json.loads(path.read_text(encoding="utf-8"))
        if not re.fullmatch(r"ckpt-\d+", pointer["checkpoint"]) or pointer["step"] != int(pointer["checkpoint"][5:]):
            raise ValueError("no checkpoint of that name")
    except FileNotFoundError:
        if any(path.parent.glob("ckpt-*.index")):
            raise UserError(f"{path}: missing, though there are checkpoints beside it; {remedy}") from None
        raise UserError(f"{path}: missing, no checkpoint was saved yet; train first") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged, it does not name a checkpoint; {remedy}") from None
    return pointer


def assign_weights(prefix: Path, weights: list[tf.Variable]) -> None:
    """Assign the values in a checkpoint to the weights. Raises UserError for a missing or damaged checkpoint."""
    for weight, value in zip(weights, read_values(prefix, "weights", [w.shape for w in weights]), strict=True):
        weight.assign(value)


def read_values(prefix: Path, group: str, shapes: Sequence[Sequence[int]]) -> list[npt.NDArray[Any]]:
    """Read the values of a list of variables, "weights" or "optimizer", from a checkpoint.

    They are read name by name, because tf.train.Checkpoint.read ignores missing values. Raises UserError for a
    missing or damaged checkpoint, and if the number or the shapes of the variables differ.
    """
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = [f"{group}/{i}/.ATTRIBUTES/VARIABLE_VALUE" for i in range(len(shapes))]
        values = [np.asarray(reader.get_tensor(name)) for name in names]
        if reader.has_tensor(f"{group}/{len(shapes)}/.ATTRIBUTES/VARIABLE_VALUE"):
            raise ValueError(f"it has more than {len(shapes)} {group}")
        for shape, value in zip(shapes, values, strict=True):
            if value.shape != tuple(shape):
                raise ValueError(f"one of its {group} has shape {value.shape}, not {tuple(shape)}")
    except UNREADABLE as error:
        missing = not Path(f"{prefix}.index").exists()
        what = "missing" if missing else "damaged, or not of these settings"
        reason = "no such file" if missing else str(error).strip().split("\n")[0][:150]
        raise UserError(
            f"{prefix}: checkpoint {what} ({reason}); restore it from a backup, or train again under another --attempt"
        ) from None
    return values

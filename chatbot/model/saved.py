"""A trained model on disk: how an attempt's directory is read by everything but the trainer."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.attempts import CHECKPOINTS, DICTIONARY, attempt_directory
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.seq2seq import Seq2Seq

# Small JSON files that name a checkpoint: the newest, and the one with the best validation.
LAST, BEST = "last", "best"

# What TensorFlow's reader raises for a file that is cut off, overwritten or of other shapes.
UNREADABLE = (tf.errors.OpError, ValueError, LookupError, RuntimeError)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model with all that is needed to use it."""

    settings: Settings
    vocabulary: Vocabulary
    model: Seq2Seq
    step: int


def load_trained(attempt: str) -> Trained:
    """The best checkpoint of an attempt, or its last one when nothing was validated.

    Raises UserError for an unknown attempt or a missing or damaged file.
    """
    directory = attempt_directory(attempt)
    if not directory.is_dir():
        known = sorted(p.parent.name for p in CHECKPOINTS.glob("*/config.json"))
        have = f"there are: {', '.join(known)}" if known else "there is none yet: python train.py"
        raise UserError(f"--attempt {attempt}: no such attempt in {CHECKPOINTS}/; {have}")
    pointer = read_pointer(directory / (BEST if (directory / BEST).exists() else LAST))
    settings = stored_settings(directory / "config.json")
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(directory / DICTIONARY))
    vocabulary = load_vocabulary(directory / "vocabulary.txt")
    model = Seq2Seq(settings.model, len(vocabulary))
    put_weights(directory / pointer["checkpoint"], weights_of(model))
    return Trained(settings, vocabulary, model, pointer["step"])


def weights_of(model: Seq2Seq) -> list[tf.Variable]:
    """The weights in the order a checkpoint keeps them.

    A list of plain tf.Variables: tf.train.Checkpoint does not see into Keras layers that hold layers,
    and passes over their weights without an error.
    """
    return [variable.value for variable in model.trainable_variables]


def read_pointer(path: Path) -> dict[str, Any]:
    """What `last` or `best` says: {"checkpoint": name, "step": number, ...}. Raises UserError."""
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


def put_weights(prefix: Path, weights: list[tf.Variable]) -> None:
    """Give the weights the values that a checkpoint has of them. Raises UserError."""
    for weight, value in zip(weights, read_values(prefix, "weights", [w.shape for w in weights]), strict=True):
        weight.assign(value)


def read_values(prefix: Path, group: str, shapes: Sequence[Sequence[int]]) -> list[npt.NDArray[Any]]:
    """The values that a checkpoint has in a list of this name. Raises UserError when they are not of these shapes.

    Read name by name rather than by tf.train.Checkpoint.read, which is silent about what it does not find.
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

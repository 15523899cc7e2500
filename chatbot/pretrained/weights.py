"""Reads the weights of a pretrained model into our model, and writes them back."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from chatbot.corpus.pieces import REMEDY
from chatbot.corpus.vocabulary import BOS
from chatbot.errors import UserError
from chatbot.model.seq2seq import UNGENERATED_BIAS, UNGENERATED_IDS, Seq2Seq
from chatbot.model.transformer_parts import Linear, Normalisation
from chatbot.pretrained.families import EMBEDDING_COPIES, IGNORED, Family, Names
from chatbot.pretrained.folder import CONFIG, PretrainedModel, write_tensors

Array = npt.NDArray[np.float32]


class Tensors(NamedTuple):
    """A variable of our model, and the names of the pretrained tensors that are concatenated in it."""

    variable: keras.Variable
    names: tuple[str, ...]
    transposed: bool = False
    per_token: bool = False  # whether the variable has a row for each token

    @property
    def is_bias(self) -> bool:
        """Whether the variable is the bias of the logits. Its tensor has shape [1, tokens]."""
        return self.per_token and len(self.variable.shape) == 1


def tensors_of(model: Seq2Seq, family: Family) -> Iterator[Tensors]:
    """Yield all trainable variables of a model with the names of their tensors in a family of pretrained models."""
    names = family.names
    yield Tensors(model.embedding.embeddings, (names.embedding,), per_token=True)
    if not model.tied:
        yield Tensors(model.projection, (names.projection,), per_token=True)
    if model.bias.trainable:
        yield Tensors(model.bias, (names.output_bias,), per_token=True)
    for side, coder in (("encoder", model.encoder), ("decoder", model.decoder)):
        yield from _coder_tensors(coder, side, names)


def _coder_tensors(coder: Any, side: str, names: Names) -> Iterator[Tensors]:
    cross = getattr(coder, "attention", None)
    key_values = list[str]()
    positions = coder.positions
    for variable in (getattr(positions, name, None) for name in ("table", "distances")):
        if variable is not None:
            yield Tensors(variable, (names.positions.format(side=side),))
    for normalise, name in ((positions.normalise, names.embedding_norm), (coder.normalise, names.final_norm)):
        if normalise is not None:
            yield from _norm_tensors(normalise, name.format(side=side))
    for layer, (attention, feed_forward) in enumerate(zip(coder.attentions, coder.feed_forwards, strict=True)):
        place = {"side": side, "layer": layer, "part": 1 if cross is None else 2}
        *projected, combined = (name.format(**place) for name in names.attention)
        yield from _linear_tensors(attention.project, projected)
        yield from _linear_tensors(attention.combine, [combined])
        yield from _norm_tensors(attention.normalise, names.attention_norm.format(**place))
        if cross is not None:
            query, key, value, combined = (name.format(**place) for name in names.cross_attention)
            key_values += [key, value]
            yield from _linear_tensors(cross.project[layer], [query])
            yield from _linear_tensors(cross.combine[layer], [combined])
            yield from _norm_tensors(cross.normalise[layer], names.cross_norm.format(**place))
        wide = names.wide.format(**place)
        parts = feed_forward.widen.kernel.parts
        yield from _linear_tensors(feed_forward.widen, [wide] if parts == 1 else [f"{wide}_{i}" for i in range(parts)])
        yield from _linear_tensors(feed_forward.narrow, [names.narrow.format(**place)])
        yield from _norm_tensors(feed_forward.normalise, names.wide_norm.format(**place))
    if cross is not None:
        yield from _linear_tensors(cross.key_values, key_values)


def _linear_tensors(linear: Linear, names: Sequence[str]) -> Iterator[Tensors]:
    yield Tensors(linear.kernel, tuple(f"{name}.weight" for name in names), transposed=True)
    if linear.bias is not None:
        yield Tensors(linear.bias, tuple(f"{name}.bias" for name in names))


def _norm_tensors(normalise: Normalisation, name: str) -> Iterator[Tensors]:
    yield Tensors(normalise.gain, (f"{name}.weight",))
    if normalise.shift is not None:
        yield Tensors(normalise.shift, (f"{name}.bias",))


def read_weights(model: Seq2Seq, pretrained: PretrainedModel, rows: npt.NDArray[np.int64]) -> None:
    """Set all weights of a model to those of a pretrained model. If an error occurs, no weight changes.

    Args:
        model: The model to change.
        pretrained: The pretrained model.
        rows: The id of each token in the pretrained model, [tokens]. Tokens with the id -1 get a row of zeros.

    Raises:
        UserError: A tensor is missing, unknown or unreadable, or has the wrong shape.
    """
    files = pretrained.tensors
    names = pretrained.family.names
    table = [*tensors_of(model, pretrained.family)]
    known = {name for tensors in table for name in tensors.names}
    copies = [name for name in files if name not in known and name.endswith(EMBEDDING_COPIES)]
    if unknown := sorted(name for name in {*files} - known - {*copies} if not name.endswith(IGNORED)):
        path, name = files[unknown[0]]
        raise UserError(f"{path}: the model has an unknown tensor {name}; choose another model")
    for copy in copies:
        if not np.array_equal(pretrained.tensor(copy), pretrained.tensor(names.embedding)):
            path, name = files[copy]
            raise UserError(f"{path}: {name} differs from the embedding to which it is tied; {REMEDY}")
    values = [_read_variable(tensors, pretrained, rows) for tensors in table]
    for tensors, value in zip(table, values, strict=True):
        tensors.variable.assign(value)


def _read_variable(tensors: Tensors, pretrained: PretrainedModel, rows: npt.NDArray[np.int64]) -> Array:
    """Read the tensors of a variable, and return its value."""
    if tensors.is_bias and tensors.names[0] not in pretrained.tensors:  # The model has no output projection.
        parts = [np.zeros([1, rows.max() + 1], np.float32)]
    else:
        parts = [pretrained.tensor(name) for name in tensors.names]
    problem = f"{pretrained.folder}: {tensors.names[0]} is {list(parts[0].shape)}, which does not fit"
    if tensors.per_token and parts[0].ndim != 2:
        raise UserError(f"{problem} {CONFIG}; {REMEDY}")
    if tensors.per_token:
        tokens = parts[0].T if tensors.is_bias else parts[0]
        if len(tokens) <= rows.max():
            raise UserError(f"{problem} the tokenizer; {REMEDY}")
        selected = np.where((rows >= 0)[:, None], tokens[rows], np.float32(0))
        if tensors.is_bias:
            selected[[*UNGENERATED_IDS]] = UNGENERATED_BIAS
        parts = [selected[:, 0] if tensors.is_bias else selected]
    value = np.concatenate([part.T if tensors.transposed else part for part in parts], -1)
    if value.shape != tuple(tensors.variable.shape):
        raise UserError(f"{problem} {CONFIG}; {REMEDY}")
    return value


def write_weights(model: Seq2Seq, folder: Path, family: Family, rows: npt.NDArray[np.int64]) -> None:
    """Write all weights of a model in the format of transformers. This is the inverse of `read_weights`.

    Args:
        model: The model.
        folder: The folder to write to.
        family: The family that defines the tensor names.
        rows: The id of each token in the exported model, as in `read_weights`. If another token has the same id as BOS,
            the row of the other token is written.

    Raises:
        OSError: The file cannot be written.
    """
    named: dict[str, Array] = {}
    for tensors in tensors_of(model, family):
        value = tensors.variable.numpy()
        if tensors.per_token:
            placed = np.zeros([rows.max() + 1, *value.shape[1:]], np.float32)
            is_written = rows >= 0
            is_written[BOS] = np.count_nonzero(rows == rows[BOS]) == 1
            placed[rows[is_written]] = value[is_written]
            value = placed[None] if tensors.is_bias else placed
        for name, part in zip(tensors.names, np.split(value, len(tensors.names), -1), strict=True):
            named[name] = np.ascontiguousarray(part.T if tensors.transposed else part)
    write_tensors(folder, named)

"""The weights of pretrained models, read into a model and written from it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from chatbot.corpus.pieces import REMEDY
from chatbot.corpus.vocabulary import BOS
from chatbot.errors import UserError
from chatbot.model.seq2seq import SILENCE, UNSPOKEN, Seq2Seq
from chatbot.model.transformer_parts import Normalisation, Product
from chatbot.pretrained.families import COPIES, UNREAD, Family, Names
from chatbot.pretrained.folder import CONFIG, PretrainedModel, write_tensors

Array = npt.NDArray[np.float32]


class Tensors(NamedTuple):
    """A variable of ours, and the tensors whose values it has: side by side, each transposed or not."""

    variable: keras.Variable
    names: tuple[str, ...]
    transposed: bool = False
    of_tokens: bool = False  # whether its rows are those of tokens

    @property
    def is_bias(self) -> bool:
        """Whether it is the bias of tokens, there [1, tokens]."""
        return self.of_tokens and len(self.variable.shape) == 1


def tensors_of(model: Seq2Seq, family: Family) -> Iterator[Tensors]:
    """Yield all trainable variables of a model with the names of a family's tensors."""
    names = family.names
    yield Tensors(model.embedding.embeddings, (names.embedding,), of_tokens=True)
    if not model.tied:
        yield Tensors(model.projection, (names.projection,), of_tokens=True)
    if model.bias.trainable:
        yield Tensors(model.bias, (names.output_bias,), of_tokens=True)
    for side, coder in (("encoder", model.encoder), ("decoder", model.decoder)):
        yield from _of_side(coder, side, names)


def _of_side(coder: Any, side: str, names: Names) -> Iterator[Tensors]:
    cross = getattr(coder, "attention", None)
    key_values = list[str]()
    positions = coder.positions
    for variable in (getattr(positions, name, None) for name in ("table", "distances")):
        if variable is not None:
            yield Tensors(variable, (names.positions.format(side=side),))
    for normalise, name in ((positions.normalise, names.embedding_norm), (coder.normalise, names.final_norm)):
        if normalise is not None:
            yield from _of_norm(normalise, name.format(side=side))
    for layer, (attention, feed_forward) in enumerate(zip(coder.attentions, coder.feed_forwards, strict=True)):
        place = {"side": side, "layer": layer, "part": 1 if cross is None else 2}
        *projected, combined = (name.format(**place) for name in names.attention)
        yield from _of_product(attention.project, projected)
        yield from _of_product(attention.combine, [combined])
        yield from _of_norm(attention.normalise, names.attention_norm.format(**place))
        if cross is not None:
            query, key, value, combined = (name.format(**place) for name in names.cross_attention)
            key_values += [key, value]
            yield from _of_product(cross.project[layer], [query])
            yield from _of_product(cross.combine[layer], [combined])
            yield from _of_norm(cross.normalise[layer], names.cross_norm.format(**place))
        wide = names.wide.format(**place)
        parts = feed_forward.widen.kernel.parts
        yield from _of_product(feed_forward.widen, [wide] if parts == 1 else [f"{wide}_{i}" for i in range(parts)])
        yield from _of_product(feed_forward.narrow, [names.narrow.format(**place)])
        yield from _of_norm(feed_forward.normalise, names.wide_norm.format(**place))
    if cross is not None:
        yield from _of_product(cross.key_values, key_values)


def _of_product(product: Product, names: Sequence[str]) -> Iterator[Tensors]:
    yield Tensors(product.kernel, tuple(f"{name}.weight" for name in names), transposed=True)
    if product.bias is not None:
        yield Tensors(product.bias, tuple(f"{name}.bias" for name in names))


def _of_norm(normalise: Normalisation, name: str) -> Iterator[Tensors]:
    yield Tensors(normalise.gain, (f"{name}.weight",))
    if normalise.shift is not None:
        yield Tensors(normalise.shift, (f"{name}.bias",))


def read_weights(model: Seq2Seq, pretrained: PretrainedModel, rows: npt.NDArray[np.int64]) -> None:
    """Set all weights of a model to those of a pretrained one. Nothing is set unless all can be.

    rows: the id there of each token of the model's vocabulary; -1: none, whose row is 0. Raises UserError for tensors
    that are missing, too many, of other shapes, or cannot be read.
    """
    files = pretrained.tensors
    names = pretrained.family.names
    table = [*tensors_of(model, pretrained.family)]
    known = {name for tensors in table for name in tensors.names}
    copies = [name for name in files if name not in known and name.endswith(COPIES)]
    if unknown := sorted(name for name in {*files} - known - {*copies} if not name.endswith(UNREAD)):
        path, name = files[unknown[0]]
        raise UserError(f"{path}: {name} is not known in such a model; choose another model")
    for copy in copies:
        if not np.array_equal(pretrained.tensor(copy), pretrained.tensor(names.embedding)):
            path, name = files[copy]
            raise UserError(f"{path}: {name} differs from the embedding to which it is tied; {REMEDY}")
    values = [_joined(tensors, pretrained, rows) for tensors in table]
    for tensors, value in zip(table, values, strict=True):
        tensors.variable.assign(value)


def _joined(tensors: Tensors, pretrained: PretrainedModel, rows: npt.NDArray[np.int64]) -> Array:
    """Return the value of a variable from the tensors of files."""
    if tensors.is_bias and tensors.names[0] not in pretrained.tensors:  # of a model without an output
        parts = [np.zeros([1, rows.max() + 1], np.float32)]
    else:
        parts = [pretrained.tensor(name) for name in tensors.names]
    shown = f"{pretrained.folder}: {tensors.names[0]} is {list(parts[0].shape)}"
    if tensors.of_tokens and parts[0].ndim != 2:
        raise UserError(f"{shown}, not as {CONFIG} says; {REMEDY}")
    if tensors.of_tokens:
        tokens = parts[0].T if tensors.is_bias else parts[0]
        if len(tokens) <= rows.max():
            raise UserError(f"{shown}, not of the tokens that the tokenizer has; {REMEDY}")
        chosen = np.where((rows >= 0)[:, None], tokens[rows], np.float32(0))
        if tensors.is_bias:
            chosen[[*UNSPOKEN]] = SILENCE
        parts = [chosen[:, 0] if tensors.is_bias else chosen]
    value = np.concatenate([part.T if tensors.transposed else part for part in parts], -1)
    if value.shape != tuple(tensors.variable.shape):
        raise UserError(f"{shown}, not as {CONFIG} says; {REMEDY}")
    return value


def write_weights(model: Seq2Seq, folder: Path, family: Family, rows: npt.NDArray[np.int64]) -> None:
    """Write all weights of a model as transformers read them, the inverse of `read_weights`. Raises OSError.

    rows: as there; the row of BOS is written where no other token has its id.
    """
    named: dict[str, Array] = {}
    for tensors in tensors_of(model, family):
        value = tensors.variable.numpy()
        if tensors.of_tokens:
            placed = np.zeros([rows.max() + 1, *value.shape[1:]], np.float32)
            is_own = rows >= 0
            is_own[BOS] = np.count_nonzero(rows == rows[BOS]) == 1
            placed[rows[is_own]] = value[is_own]
            value = placed[None] if tensors.is_bias else placed
        for name, part in zip(tensors.names, np.split(value, len(tensors.names), -1), strict=True):
            named[name] = np.ascontiguousarray(part.T if tensors.transposed else part)
    write_tensors(folder, named)

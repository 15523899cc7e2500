"""The rows of a model in TensorFlow. Their state stays in tensors, on the device that computes them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batches import pad
from chatbot.corpus.pair_ids import Ragged
from chatbot.model.decoder import DecoderState
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, specs_of


class TensorState(NamedTuple):
    """The state of some rows. lengths: of their questions, [rows]. tensors: with `rounded_up` rows and positions."""

    tensors: DecoderState
    lengths: npt.NDArray[np.int64]


class TensorRows:
    """A `RowModel` of a model in TensorFlow. Each of its functions is traced once, here."""

    def __init__(self, model: Seq2Seq) -> None:
        def encode(source: Sequences) -> DecoderState:
            return model.encode(source)

        def step(state: DecoderState, last: tf.Tensor) -> tuple[tf.Tensor, Any]:
            logits, after = model.step(state, last)
            return tf.cast(logits, tf.float32), after["cells"]

        self._model = model
        with model.placed():
            source = specs_of(model.sequences(np.ones([1, 1])))
            self._encode = tf.function(encode, input_signature=[source], autograph=False)
            outputs = self._encode.get_concrete_function().structured_outputs
        state = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *_sizes(x)], x.dtype), outputs)
        numbers = tf.TensorSpec([None], tf.int64)
        width = tf.TensorSpec([], tf.int32)
        self._step = tf.function(step, input_signature=[state, numbers], autograph=False)
        self._take = tf.function(_taken, input_signature=[state, numbers, width], autograph=False)
        self._take_of_both = tf.function(
            _taken_of_both, input_signature=[state, state, numbers, width], autograph=False
        )
        with model.placed():
            for function in (self._step, self._take, self._take_of_both):
                function.get_concrete_function()

    @property
    def traces(self) -> int:
        """The number of times that a function was traced, of all four."""
        functions = (self._encode, self._step, self._take, self._take_of_both)
        return sum(function.experimental_get_tracing_count() for function in functions)

    def encode(self, questions: Sequence[Sequence[int]]) -> TensorState:
        """Return the state before the first token; see `RowModel`."""
        rows = Ragged.from_rows(questions)
        lengths = rows.lengths.astype(np.int64)
        ids = pad(rows, _filled(np.arange(len(rows))), rounded_up(int(lengths.max())))
        with self._model.placed():
            return TensorState(self._encode(self._model.sequences(ids)), lengths)

    def step(self, state: TensorState, last: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], TensorState]:
        """Decode one token; see `RowModel`."""
        with self._model.placed():
            logits, cells = self._step(state.tensors, _filled(last))
        return logits.numpy()[: len(last)], TensorState({**state.tensors, "cells": cells}, state.lengths)

    def take(self, states: Sequence[TensorState], rows: npt.NDArray[np.int64]) -> TensorState:
        """Return the state of some rows; see `RowModel`. Questions are padded to the longest of them."""
        lengths = np.concatenate([state.lengths for state in states])[rows]
        if len(states) == 1:
            function = self._take
        else:
            function, first = self._take_of_both, len(states[0].lengths)
            rows = np.where(rows < first, rows, rows - first + rounded_up(first))
        width = np.int32(rounded_up(int(lengths.max(initial=1))))
        with self._model.placed():
            return TensorState(function(*(state.tensors for state in states), _filled(rows), width), lengths)


def rounded_up(size: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: memory is kept for each size that TensorFlow has seen."""
    step = 1 << max(0, size.bit_length() - 2)
    return -(-size // step) * step


def _filled(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows with the last one repeated, up to a rounded number. Nobody reads the results of these."""
    return np.pad(rows, (0, rounded_up(len(rows)) - len(rows)), mode="edge") if len(rows) else rows


def _sizes(tensor: tf.Tensor) -> list[int | None]:
    """Return the sizes of a tensor but that of its rows."""
    sizes: list[int | None] = tensor.shape.as_list()
    return sizes[1:]


def _taken(state: DecoderState, rows: tf.Tensor, width: tf.Tensor) -> DecoderState:
    taken = tf.nest.map_structure(lambda x: tf.gather(x, rows), state)
    return {name: x if name == "cells" else _fitted(x, width) for name, x in taken.items()}


def _taken_of_both(first: DecoderState, second: DecoderState, rows: tf.Tensor, width: tf.Tensor) -> DecoderState:
    fitted = ({name: x if name == "cells" else _fitted(x, width) for name, x in y.items()} for y in (first, second))
    return tf.nest.map_structure(lambda *both: tf.gather(tf.concat(both, axis=0), rows), *fitted)


def _fitted(of_question: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Return a part of the state of questions, [rows, source, ...], with as many positions: cut or padded."""
    cut = of_question[:, :width]
    missing = width - tf.shape(cut)[1]
    return tf.pad(cut, [[0, 0], [0, missing], *[[0, 0]] * (len(cut.shape) - 2)])

"""A trained model as two functions of tensors alone, which every format can hold.

`encode` reads questions and `step` generates one token. Both take padded ids, so no index is computed on the host, and
the layers are Keras's own: what tf.custom_gradient and the packed layout add is for training. N-grams are left out;
`chatbot.export.runtime` mixes them in.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.ngrams import Ngrams
from chatbot.corpus.vocabulary import PAD
from chatbot.model.copying import spelling_table
from chatbot.model.saved import Trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Packing, Sequences

# Parts of the decoder's state that belong to the question and do not change from token to token, where a model has
# them; the others are its cells.
QUESTION = ("memory", "keys", "mask", "copy_keys", "question")


def plain_model(trained: Trained, ngrams: Ngrams | None = None) -> Seq2Seq:
    """Return the model with the same weights, whose layers take padded ids.

    ngrams: those that `Seq2Seq.step` mixes in; None: none.
    """
    settings = dataclasses.replace(trained.settings.model, plain_layers=True, ngrams=ngrams.order if ngrams else 0)
    spellings = spelling_table(trained.vocabulary.spellings())
    model = Seq2Seq(settings, len(trained.vocabulary), spellings=spellings, ngrams=ngrams)
    if model.decoder.attention is not None:
        model.decoder.attention.by_step = True  # in one operation, not by a condition and a list of tensors
    for variable, value in zip(model.trainable_variables, trained.model.trainable_variables, strict=True):
        variable.assign(value)
    return model


def sequences_in_graph(ids: tf.Tensor) -> Sequences:
    """Return a batch as a plain model takes it. ids: [rows, time] int64, padded on the right.

    Its packing has the padding, too: padded ids need no other.
    """
    mask = tf.not_equal(ids, PAD)
    positions = tf.range(tf.size(ids, tf.int64))
    unused = dict.fromkeys(Packing._fields)
    packing = Packing(**unused)._replace(
        lengths=tf.reduce_sum(tf.cast(mask, tf.int32), axis=1),
        to_packed=positions,
        to_padded=tf.reshape(positions, tf.shape(ids)),
    )
    return Sequences(ids, mask, packing)


@contextlib.contextmanager
def with_weights(model: Seq2Seq, weights: Sequence[tf.Tensor]) -> Iterator[None]:
    """Let the model compute with these weights, in the order of its trainable variables."""
    with keras.StatelessScope(list(zip(model.trainable_variables, weights, strict=True))):
        yield


def encode(model: Seq2Seq, ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the state of the decoder before the first token, by name: parts of QUESTION, and "cell_0" and so on.

    ids: [rows, time] int64, padded on the right.
    """
    state = model.encode(sequences_in_graph(ids))
    of_question = {name: state[name] for name in QUESTION if name in state}
    return {**of_question, **{f"cell_{i}": x for i, x in enumerate(tf.nest.flatten(state["cells"]))}}


def step(model: Seq2Seq, settings: ModelSettings, last: tf.Tensor, state: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Decode one token. Return "logits" [hypotheses, vocabulary], and "next_0" and so on, the cells after it.

    With attention also return its weights in this step, "attention" [hypotheses, source].

    settings: those of the model. last: [hypotheses] int32, the last ids. state: as `encode` returns it; the cells are
    [hypotheses, units] each, and the hypotheses of a question are one after another.
    """
    cells = [state[f"cell_{i}"] for i in range(len(state.keys() - QUESTION))]  # not in the order of their names
    before: dict[str, Any] = {name: x for name, x in state.items() if name in QUESTION}
    before["cells"] = tf.nest.pack_sequence_as(_cells(settings), cells)
    has_attention = model.decoder.attention is not None
    if has_attention:
        before["attention_sums"] = tf.zeros([tf.shape(last)[0], tf.shape(state["memory"])[1]])
    logits, after = model.step(before, last)
    results = {"logits": logits, **{f"next_{i}": x for i, x in enumerate(tf.nest.flatten(after["cells"]))}}
    return {**results, "attention": after["attention_sums"]} if has_attention else results


def _cells(settings: ModelSettings) -> list[Any]:
    """Return the structure of the cells, with any values."""
    states = 2 if settings.cell == "lstm" else 1
    cells = [[0] * states] * settings.num_layers
    return [*cells, [0]] if settings.input_feeding else cells


def state_specs(model: Seq2Seq) -> dict[str, tf.TensorSpec]:
    """Return the specifications of the result of `encode`, for any number of rows and any length."""
    function = tf.function(lambda ids: encode(model, ids), autograph=False)
    results = function.get_concrete_function(tf.TensorSpec([None, None], tf.int64)).structured_outputs
    specs = {}
    for name, x in results.items():
        shape = [None, x.shape[1]] if name.startswith("cell_") else [None, None, *x.shape[2:]]
        specs[name] = tf.TensorSpec(shape, x.dtype, name=name)
    return specs

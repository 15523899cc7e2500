"""Untrained models: a table of probabilities, and a small model of each architecture, created once a session."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.attempts.trained import Trained
from chatbot.config.decoding import DecodingSettings
from chatbot.config.form import Form
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import BOS, BYTES, EOS, Vocabulary
from chatbot.decoding.array_functions import functions_of
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.graph_search import search_all
from chatbot.decoding.interface import Model
from chatbot.decoding.ngrams import count_ngrams
from chatbot.decoding.sampling import uniform_numbers
from chatbot.decoding.search import new_search, search_arrays
from chatbot.flags import compose
from chatbot.inference.replier import Source
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.inference.text_responder import TextResponder
from chatbot.model.copying import spelling_table
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import unsized_specs
from chatbot.training.new_model import build_model
from tests.decoding.kneser_ney import SlowKneserNey, grams_of
from tests.model.small_transformer import TRANSFORMER
from tests.oracle import Array, Ids, NextId, Oracle, likelihood, normalised

VOCABULARY = Vocabulary(["a", "b", "ab", "▁b", "你", "好", *BYTES])
LENGTH = 6
PADDED_LENGTH = 8  # of a question


def sources_of(questions: Sequence[Ids], length: int = LENGTH) -> list[Source]:
    """Return the questions that have these ids. length: of what the model reads."""
    return [Source(ids[:length], ids) for ids in questions]


class Table:
    """A `Model` of arrays with next ids that depend on the question and the last two ids.

    check_interval: of searches over tensors, without a graph; 0 to search over arrays.
    """

    def __init__(self, seed: int = 1, check_interval: int = 0, vocabulary: Vocabulary = VOCABULARY) -> None:
        rng, size, self._vocabulary = np.random.default_rng(seed), len(vocabulary), vocabulary
        self.after, self.after_last, self.of_question = rng.normal(0, 1.5, (3, size, size))
        usual = [*range(vocabulary.first_byte), *vocabulary.ids(["他"])]
        self.after[:, np.setdiff1d(np.arange(size), usual)] -= 40  # otherwise most ids would be bytes
        self.after[:, EOS] -= 1
        self._check_interval = check_interval

    def next_id(self, source: Ids, ids: Ids) -> Array:
        """Return the log-probability of each next id."""
        logits = self.after[ids[-1]] + self.of_question[[*source]].mean(axis=0)
        return normalised(logits if len(ids) == 1 else logits + self.after_last[ids[-2]])

    def encode(self, questions: Sequence[Ids]) -> dict[str, Any]:
        mask = np.zeros((len(questions), PADDED_LENGTH), np.float32)
        for row, question in enumerate(questions):
            mask[row, : len(question)] = 1
        mean = np.stack([self.of_question[[*question]].mean(axis=0) for question in questions]).astype(np.float32)
        return {"mask": mask, "mean": mean, "cells": np.zeros((len(questions), 1), np.int64)}

    def step(self, state: dict[str, Any], last: Any) -> tuple[Any, dict[str, Any]]:
        functions = functions_of(last)
        beams = functions.shape(last)[0] // functions.shape(state["mask"])[0]
        mean = functions.repeated(state["mean"], beams)
        before = state["cells"][:, 0]  # the id before the last one; 0 before the begin symbol
        tables = [functions.float32(functions.rows(x, i)) for x, i in ((self.after, last), (self.after_last, before))]
        is_second = functions.float32(before > 0)[:, None]
        state = {**state, "cells": functions.int64(last)[:, None]}
        return tables[0] + is_second * tables[1] + mean, state

    def take(self, states: Sequence[dict[str, Any]], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        return {name: np.concatenate([state[name] for state in states])[rows] for name in states[0]}

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Any:
        interval = self._check_interval
        of_kind = functools.partial(tf.nest.map_structure, tf.constant) if interval else lambda x: x

        def search(questions: Sequence[Ids], seeds: Sequence[int], is_wanted: Any) -> Any:
            generic = of_kind(self.encode([[BOS]])) if decoding.anti_lm else None
            sizes = decoding.hypotheses, automaton.max_length
            uniform = of_kind(uniform_numbers(seeds, questions, *sizes)) if decoding.samples else None
            begun = new_search(decoding, automaton, self.step, of_kind(self.encode(questions)), generic, uniform)
            with np.errstate(all="ignore"):
                found = search_all(*begun, interval) if interval else search_arrays(*begun, is_wanted)
            ids, scores = map(np.asarray, found)
            return ids.reshape(len(questions), *sizes), scores.reshape(len(questions), -1)

        return lambda batches, seeds, is_wanted: [
            search(*batch, is_wanted) for batch in zip(batches, seeds, strict=True)
        ]

    def attention(self, questions: Sequence[Ids], replies: Sequence[Ids]) -> Any:
        pairs = zip(questions, replies, strict=True)
        return [np.full((len(reply) + 1, len(question)), 1 / len(question), np.float32) for question, reply in pairs]

    def log_probabilities(self, sources: Sequence[Ids], targets: Sequence[Ids], begin: int) -> Any:
        pairs = zip(sources, targets, strict=True)
        return np.array([likelihood(self.next_id, *pair, begin) for pair in pairs], np.float32)

    def oracle(self, length: int = LENGTH) -> Oracle:
        return Oracle(self.next_id, self._vocabulary, length)

    def responder(
        self, decoding: DecodingSettings, retrieval: Any = None, length: int = LENGTH, **settings: Any
    ) -> TextResponder:
        """Return a responder for this model. retrieval: its pairs for lookups. settings: of its attempt."""
        whole = compose(Settings, **{"max_length": length, "tokenizer": "char", "both_directions": "on", **settings})
        return TextResponder(cast(Model, self), self._vocabulary, whole, decoding, retrieval)


def responder_of(trained: Trained, decoding: DecodingSettings, model: Model | None = None) -> TextResponder:
    """Return a responder for a trained model. model: its graphs, if others share them."""
    model = model or TensorFlowModel(trained.model)
    return TextResponder(model, trained.vocabulary, trained.settings, decoding, trained.retrieval)


# Each kind of cell, attention, direction and option of the layers.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "lstm-copy-ngrams": {"copy": True, "ngrams": 3},
    "gru-bahdanau-deep": {"cell": "gru", "attention": "bahdanau", "num_layers": 2, "residual": True, "ngrams": 2},
    "lstm-copy-untied": {"copy": True, "bidirectional": False, "tied_embeddings": False},
    "lstm-none": {"attention": "none", "bidirectional": False},
    "transformer-copy": {**TRANSFORMER, "copy": True},
    "transformer-distances": {**TRANSFORMER, "form": Form(positions="relative", buckets=4, farthest=8, gated=True)},
}
NGRAM_ROWS = [[5, 6, 7], [9, 10, 10], [6, 6, 8], [9, 5]]


@dataclasses.dataclass(frozen=True, eq=False)
class Tiny:
    """A model of an architecture, and its oracle."""

    trained: Trained
    oracle: Oracle


@functools.cache
def tiny(architecture: str) -> Tiny:
    """Return a model with replies that depend on the question and seldom contain bytes."""
    values = {"rnn_size": 8, "embedding_size": 6, "max_length": LENGTH, "tokenizer": "char", "both_directions": "on"}
    settings = compose(Settings, **{**values, **ARCHITECTURES[architecture]})
    order, vocabulary = settings.model.ngrams, VOCABULARY
    ngrams = count_ngrams([Ragged.from_rows(NGRAM_ROWS)], len(vocabulary), order) if order else None
    spellings = spelling_table(vocabulary.spellings())
    model = build_model(settings.model, len(vocabulary), seed=1, spellings=spellings, ngrams=ngrams)
    enlarge(model)
    usual = [*range(vocabulary.first_byte), *vocabulary.ids(["他"])]
    model.bias.assign(np.where(np.isin(np.arange(len(vocabulary)), usual), 3.0, -12.0))
    trained = Trained(settings, vocabulary, model, step=1)
    oracle = Oracle(next_id_of(model), vocabulary, LENGTH)
    if order:
        slow = SlowKneserNey(grams_of(NGRAM_ROWS, order, BOS, EOS), order, len(vocabulary))

        @functools.cache
        def after(history: tuple[int, ...]) -> Array:
            return np.array([slow.probability(history, i) for i in range(len(vocabulary))])

        def by_ngrams(ids: Ids) -> Array:
            return after(tuple([BOS] * order + [*ids])[1 - order :])

        oracle = dataclasses.replace(oracle, ngrams=by_ngrams, ngram_weight=settings.model.ngram_weight)
    return Tiny(trained, oracle)


def enlarge(model: Seq2Seq) -> None:
    """Enlarge the weights, because the distributions of an untrained model are almost uniform."""
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable + generator.normal(size=variable.shape, scale=0.4))


def next_id_of(model: Seq2Seq) -> NextId:
    """Return the log-probabilities of a model without n-grams, computed by teacher forcing."""
    specs = unsized_specs(model.sequences(np.ones([1, 1])))
    graph = tf.function(lambda source, target: model(source, target), input_signature=[specs] * 2, autograph=False)

    @functools.cache
    def of_prefix(source: tuple[int, ...], ids: tuple[int, ...]) -> Array:
        logits = graph(*(model.sequences(np.array([row])) for row in (source, ids)))
        return normalised(logits[len(ids) - 1])

    return lambda source, ids: of_prefix(tuple(source), tuple(ids))


def small(**settings: Any) -> ModelSettings:
    """The settings of a small model."""
    return ModelSettings(**{"rnn_size": 8, "embedding_size": 6, **settings})

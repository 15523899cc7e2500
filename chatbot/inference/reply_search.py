"""The search for replies, composed from the decoding settings: a function of tensors."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.encoding.vocabulary import BOS, EOS, PAD
from chatbot.decoding.automaton import Automaton
from chatbot.decoding.beam import BeamSearch
from chatbot.decoding.greedy import greedy
from chatbot.decoding.processor import Processor
from chatbot.decoding.processors.anti_lm import anti_lm
from chatbot.decoding.processors.frequency_penalty import frequency_penalty
from chatbot.decoding.processors.min_length import min_length
from chatbot.decoding.processors.no_repeat_ngram import no_repeat_ngram
from chatbot.decoding.processors.presence_penalty import presence_penalty
from chatbot.decoding.processors.repetition_penalty import repetition_penalty
from chatbot.decoding.sampling import Truncation, sampling
from chatbot.decoding.search import Hypotheses, Pick, Search
from chatbot.decoding.step import SpecialIds, State, Step, repeated
from chatbot.decoding.truncations.min_p import min_p
from chatbot.decoding.truncations.temperature import temperature
from chatbot.decoding.truncations.top_k import top_k
from chatbot.decoding.truncations.top_p import top_p
from chatbot.decoding.truncations.typical import typical
from chatbot.decoding.unfinished import run_unfinished
from chatbot.model.decoder import DecoderState
from chatbot.model.gpu import on_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences

SPECIAL_IDS = SpecialIds(begin=BOS, end=EOS, pad=PAD)
# The question of the anti-language model: the begin symbol alone. It is in no other question, and in no reply, so that
# a model that copies gains nothing by it.
EMPTY_QUESTION = np.array([[BOS]])
# After how many ids a search on a GPU checks whether all hypotheses are finished: the host waits for each check. Up to
# three ids are then computed in vain.
CHECK_INTERVAL_ON_GPU = 4
# The least sum of attention in the coverage penalty, whose logarithm is finite.
LEAST_ATTENTION = 1e-9

# "question", and with --anti-lm "generic": the decoder's states before the first token. The latter has one row. Their
# "mask" is float32, since bool is in the host's memory in a loop on a GPU.
Encoded = dict[str, DecoderState]


@dataclasses.dataclass(frozen=True)
class ReplySearch:
    """The search that the decoding settings describe.

    automaton: which ids may be generated. max_length: of a reply, in tokens.
    """

    model: Seq2Seq
    automaton: Automaton
    max_length: int
    decoding: DecodingSettings

    def __call__(
        self, source: Sequences, uniform: tf.Tensor | None = None, abandoned: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return ids [rows, hypotheses, max_length] int32, padded, and scores [rows, hypotheses] float32.

        source: the questions.
        uniform: for sampling, [rows, candidates, max_length] float32 in [0, 1).
        abandoned: the handle of a variable [rows] bool, the rows that nobody waits for any more. It may change while
        this runs: soon after, no hypotheses of such a row are computed. None: all rows are searched to their ends.
        """
        encoded, check_interval = self.encode(source), CHECK_INTERVAL_ON_GPU if on_gpu() else 1
        if self.decoding.beams > 1:
            return self._beam(encoded, abandoned, check_interval)
        start = self.start(encoded)
        if self.decoding.compares_samples:
            assert uniform is not None
            numbers = tf.reshape(uniform, [-1, self.max_length])  # [rows * candidates, max_length]

            def search_of(rows: tf.Tensor) -> Search:
                of_rows = {**encoded, "question": _of_rows(encoded["question"], rows // self.decoding.hypotheses)}
                return self._one_a_row(of_rows, tf.gather(numbers, rows), tf.shape(rows)[0])

            wanted = _wanted(abandoned, self.decoding.hypotheses)
            ids, scores = run_unfinished(
                lambda rows: search_of(rows).run, start, self.max_length, wanted, check_interval
            )
        else:
            found = self.run(encoded, uniform, start, self.max_length, check_interval)
            ids, scores = found.ids, found.scores
        shape = [tf.shape(encoded["question"]["mask"])[0], self.decoding.hypotheses]
        return tf.cast(tf.reshape(ids, [*shape, self.max_length]), tf.int32), tf.reshape(scores, shape)

    def encode(self, source: Sequences) -> Encoded:
        """Return what belongs to the questions and does not change during the search."""
        encoded = {"question": self.model.encode(source)}
        if self.decoding.anti_lm:
            encoded["generic"] = self.model.encode(self.model.sequences(EMPTY_QUESTION))
        return {name: {**state, "mask": tf.cast(state["mask"], tf.float32)} for name, state in encoded.items()}

    def start(self, encoded: Encoded) -> Hypotheses:
        """Return the hypotheses of greedy search or sampling before the first id; those of a row are adjacent."""
        hypotheses = self.decoding.hypotheses
        cells = repeated(encoded["question"]["cells"], hypotheses)
        rows = tf.shape(encoded["question"]["mask"])[0] * hypotheses
        return self._one_a_row(encoded, None, rows).start({"cells": cells}, rows)

    def run(
        self,
        encoded: Encoded,
        uniform: tf.Tensor | None,
        hypotheses: Hypotheses,
        until: tf.Tensor | int,
        check_interval: int | None,
    ) -> Hypotheses:
        """Add ids to the hypotheses of greedy search or sampling, as `Search.run` does."""
        search = self._one_a_row(encoded, uniform, tf.shape(hypotheses.ids)[0])
        return search.run(hypotheses, until, check_interval)

    def _one_a_row(self, encoded: Encoded, uniform: tf.Tensor | None, rows: tf.Tensor) -> Search:
        pick: Pick = greedy
        if uniform is not None:
            pick = sampling(tf.reshape(uniform, [-1, self.max_length]), truncations_of(self.decoding))
        step, processors = self._step(encoded["question"]), self._processors(encoded, rows)
        return Search(step, SPECIAL_IDS, self.automaton, self.max_length, pick, processors)

    def _beam(self, encoded: Encoded, abandoned: tf.Tensor | None, check_interval: int) -> tuple[tf.Tensor, tf.Tensor]:
        question, decoding = encoded["question"], self.decoding
        state: dict[str, State] = {"cells": question["cells"]}
        if decoding.coverage_penalty:
            state["attention_sums"] = tf.zeros_like(question["mask"])

        def search_of(rows: tf.Tensor) -> BeamSearch:
            of_rows = _of_rows(question, rows)
            coverage = None
            if decoding.coverage_penalty:
                coverage = functools.partial(self._coverage, repeated(of_rows["mask"], decoding.beams))
            return BeamSearch(
                self._step(of_rows),
                SPECIAL_IDS,
                self.automaton,
                self.max_length,
                decoding.beams,
                decoding.length_penalty,
                self._processors(encoded, tf.shape(rows)[0]),
                coverage,
                decoding.diverse_groups,
                decoding.diversity,
            )

        rows = tf.shape(question["mask"])[0]
        search = search_of(tf.cast(tf.range(rows), tf.int64))
        start, wanted = search.start(state, rows), _wanted(abandoned, 1)
        found = run_unfinished(lambda rows: search_of(rows).run, start, self.max_length, wanted, check_interval)
        ids, scores = search.best_first(*found)
        return tf.cast(ids, tf.int32), scores

    def _step(self, question: DecoderState) -> Step:
        def step(state: dict[str, State], ids: tf.Tensor) -> tuple[tf.Tensor, dict[str, State]]:
            mask = tf.cast(question["mask"], tf.bool)
            logits, after = self.model.step({**question, "mask": mask, **state}, ids)
            return logits, {name: after[name] for name in state}

        return step

    def _coverage(self, mask: tf.Tensor, state: dict[str, State]) -> tf.Tensor:
        """Return the coverage penalty of Wu et al. (2016), [hypotheses]. mask: [hypotheses, source]."""
        sums = tf.clip_by_value(state["attention_sums"], LEAST_ATTENTION, 1.0)
        logarithms = tf.where(tf.cast(mask, tf.bool), tf.math.log(sums), 0.0)
        return self.decoding.coverage_penalty * tf.reduce_sum(logarithms, axis=-1)

    def _processors(self, encoded: Encoded, rows: tf.Tensor) -> list[Processor]:
        """rows: scalar int32, the rows that the search starts with."""
        decoding, processors = self.decoding, []
        if decoding.repetition_penalty != 1:
            processors.append(repetition_penalty(decoding.repetition_penalty))
        if decoding.presence_penalty:
            processors.append(presence_penalty(decoding.presence_penalty))
        if decoding.frequency_penalty:
            processors.append(frequency_penalty(decoding.frequency_penalty))
        if decoding.anti_lm:
            generic = encoded["generic"]
            start = {"cells": repeated(generic["cells"], rows)}
            processors.append(anti_lm(self._step(generic), start, decoding.anti_lm, decoding.anti_lm_tokens))
        if decoding.no_repeat_ngram:
            processors.append(no_repeat_ngram(decoding.no_repeat_ngram))
        if decoding.min_reply_length > 1:
            processors.append(min_length(decoding.min_reply_length, EOS))
        return processors


def _wanted(abandoned: tf.Tensor | None, hypotheses: int) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Return the argument of `run_unfinished`. hypotheses: the number of rows for each question."""
    if abandoned is None:
        return None

    def wanted(rows: tf.Tensor) -> tf.Tensor:
        # All are read, and copied to the device: the numbers of the rows stay there.
        left = tf.raw_ops.ReadVariableOp(resource=abandoned, dtype=tf.bool)
        left.set_shape([None])
        return ~tf.gather(left, rows // hypotheses)

    return wanted


def _of_rows(question: DecoderState, rows: tf.Tensor) -> DecoderState:
    """Return what belongs to the question of each row. A single question is shared by all rows, without copies."""
    parts = {name: x for name, x in question.items() if name != "cells"}

    def copies() -> dict[str, tf.Tensor]:
        return {name: tf.gather(x, rows) for name, x in parts.items()}

    return {**question, **tf.cond(tf.shape(question["mask"])[0] == 1, lambda: parts, copies)}


def truncations_of(decoding: DecodingSettings) -> list[Truncation]:
    """Return what sampling applies to the log-probabilities, in this order."""
    truncations: list[Truncation] = []
    if decoding.temperature not in (None, 1):
        truncations.append(functools.partial(temperature, value=decoding.temperature))
    if decoding.top_k is not None:
        truncations.append(functools.partial(top_k, k=decoding.top_k))
    if decoding.top_p not in (None, 1):
        truncations.append(functools.partial(top_p, mass=decoding.top_p))
    if decoding.min_p is not None:
        truncations.append(functools.partial(min_p, share=decoding.min_p))
    if decoding.typical not in (None, 1):
        truncations.append(functools.partial(typical, mass=decoding.typical))
    return truncations

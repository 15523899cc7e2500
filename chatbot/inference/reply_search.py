"""The search for replies, composed from a model and the decoding settings: a function of tensors."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.graph_search import GraphSearch, Progress, State, Step, repeated, search_all
from chatbot.decoding.hypotheses import coverage_penalty
from chatbot.model.decoder import DecoderState
from chatbot.model.operations import on_gpu
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences

# The question of the anti-language model: the begin symbol alone. It is in no other question, and in no reply, so that
# a model that copies gains nothing by it.
EMPTY_QUESTION = np.array([[BOS]])
# After how many ids a search on a GPU checks whether all hypotheses are finished: the host waits for each check. Up to
# three ids are then computed in vain.
CHECK_INTERVAL_ON_GPU = 4

# "question", and with --anti-lm "generic": the decoder's states before the first token. The latter has one row. Their
# "mask" is float32, since bool is in the host's memory in a loop on a GPU.
Encoded = dict[str, DecoderState]


@dataclasses.dataclass(frozen=True)
class ReplySearch:
    """The search that the decoding settings describe. automaton: which replies may be generated."""

    model: Seq2Seq
    automaton: BoundedAutomaton
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
        start, decoding, length = self.start(encoded), self.decoding, self.automaton.max_length
        numbers = None if uniform is None else tf.reshape(uniform, [-1, length])  # [rows * candidates, max_length]
        if decoding.hypotheses == 1:
            progress = self.run(encoded, numbers, start, length, check_interval)
            ids, scores = progress.hypotheses.ids, progress.hypotheses.log_probs
        else:
            candidates = decoding.hypotheses // decoding.beams  # rows of the search for each question

            def search_of(rows: tf.Tensor) -> GraphSearch:
                question = _of_rows(encoded["question"], rows // candidates)
                return self._search({**encoded, "question": question}, _rows_of(numbers, rows))

            ids, scores = search_all(search_of, start, length, _wanted(abandoned, candidates), check_interval)
        shape = [tf.shape(encoded["question"]["mask"])[0], decoding.hypotheses]
        return tf.cast(tf.reshape(ids, [*shape, length]), tf.int32), tf.reshape(scores, shape)

    def encode(self, source: Sequences) -> Encoded:
        """Return what belongs to the questions and does not change during the search."""
        encoded = {"question": self.model.encode(source)}
        if self.decoding.anti_lm:
            encoded["generic"] = self.model.encode(self.model.sequences(EMPTY_QUESTION))
        return {name: {**state, "mask": tf.cast(state["mask"], tf.float32)} for name, state in encoded.items()}

    def start(self, encoded: Encoded) -> Progress:
        """Return the search before the first id. The candidates of a question are adjacent rows."""
        decoding, question = self.decoding, encoded["question"]
        state: dict[str, State] = {"cells": question["cells"]}
        if decoding.coverage_penalty:
            state["attention_sums"] = tf.zeros_like(question["mask"])
        questions = tf.shape(question["mask"])[0]
        generic: State = ()
        if decoding.anti_lm:
            generic = repeated({"cells": encoded["generic"]["cells"]}, questions * decoding.hypotheses)
        rows = questions * (decoding.hypotheses // decoding.beams)
        return self._search(encoded, None).start(repeated(state, decoding.hypotheses), generic, rows)

    def run(
        self,
        encoded: Encoded,
        uniform: tf.Tensor | None,
        progress: Progress,
        until: tf.Tensor | int,
        check_interval: int | None,
    ) -> Progress:
        """Add ids to the hypotheses, as `GraphSearch.run` does. uniform: [rows, max_length]."""
        return self._search(encoded, uniform).run(progress, until, check_interval)

    def _search(self, encoded: Encoded, uniform: tf.Tensor | None) -> GraphSearch:
        """Return the search of some questions, those of `encoded`, one for each row."""
        decoding, question = self.decoding, encoded["question"]

        def coverage(state: dict[str, State]) -> tf.Tensor:
            mask = tf.cast(repeated(question["mask"], decoding.beams), tf.bool)
            return coverage_penalty(state["attention_sums"], mask, decoding)

        return GraphSearch(
            decoding,
            self.automaton,
            self._step(question),
            self._step(encoded["generic"]) if decoding.anti_lm else None,
            uniform,
            coverage if decoding.coverage_penalty else None,
        )

    def _step(self, question: DecoderState) -> Step:
        def step(state: dict[str, State], ids: tf.Tensor) -> tuple[tf.Tensor, dict[str, State]]:
            mask = tf.cast(question["mask"], tf.bool)
            logits, after = self.model.step({**question, "mask": mask, **state}, ids)
            return logits, {name: after[name] for name in state}

        return step


def _rows_of(numbers: tf.Tensor | None, rows: tf.Tensor) -> tf.Tensor | None:
    """Return the random numbers of some rows."""
    return None if numbers is None else tf.gather(numbers, rows)


def _wanted(abandoned: tf.Tensor | None, candidates: int) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Return the argument of `search_all`. candidates: the number of rows for each question."""
    if abandoned is None:
        return None

    def wanted(rows: tf.Tensor) -> tf.Tensor:
        # All are read, and copied to the device: the numbers of the rows stay there.
        are_abandoned = tf.raw_ops.ReadVariableOp(resource=abandoned, dtype=tf.bool)
        are_abandoned.set_shape([None])
        return ~tf.gather(are_abandoned, rows // candidates)

    return wanted


def _of_rows(question: DecoderState, rows: tf.Tensor) -> DecoderState:
    """Return what belongs to the question of each row. A single question is shared by all rows, without copies."""
    parts = {name: x for name, x in question.items() if name != "cells"}

    def copies() -> dict[str, tf.Tensor]:
        return {name: tf.gather(x, rows) for name, x in parts.items()}

    return {**question, **tf.cond(tf.shape(question["mask"])[0] == 1, lambda: parts, copies)}

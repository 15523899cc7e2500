"""Replies of a model to questions, given as ids."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.batching.batches import pad
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.spelling import spelling_automaton
from chatbot.corpus.encoding.vocabulary import BOS, EOS, PAD, Vocabulary
from chatbot.decoding.beam import beam_search
from chatbot.decoding.greedy import greedy
from chatbot.decoding.search import search
from chatbot.decoding.step import Automaton, SpecialIds, State
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, specs_of

SPECIAL_IDS = SpecialIds(begin=BOS, end=EOS, pad=PAD)

# The maximum number of questions in a batch, which bounds the memory of a search.
BATCH = 64


class Reply(NamedTuple):
    """A reply and its score: its log-probability in nats, divided by the length penalty in beam search."""

    text: str
    score: float


class Replier:
    """Answers questions by greedy search, or by beam search if beam_size is larger than 1.

    The search is traced once for questions of any number and length. `Responder` answers questions in text form.

    settings: the model's settings. Questions are truncated, and replies end, after settings.max_length tokens.
    length_penalty: the exponent of beam search's length penalty.
    """

    def __init__(
        self,
        model: Seq2Seq,
        vocabulary: Vocabulary,
        settings: ModelSettings,
        beam_size: int = 1,
        length_penalty: float = 1.0,
    ) -> None:
        self._vocabulary = vocabulary
        self._max_length = max_length = settings.max_length
        chosen_search = (
            functools.partial(search, pick=greedy)
            if beam_size == 1
            else functools.partial(beam_search, beam_size=beam_size, length_penalty=length_penalty)
        )

        automaton = Automaton(*spelling_automaton(vocabulary))

        def decode(source: Sequences) -> tuple[tf.Tensor, tf.Tensor]:
            question = model.encode(source)

            def step(cells: State, ids: tf.Tensor) -> tuple[tf.Tensor, State]:
                logits, state = model.step({**question, "cells": cells}, ids)
                return logits, state["cells"]

            return chosen_search(step, question["cells"], tf.shape(source.mask)[0], SPECIAL_IDS, automaton, max_length)

        self._sequences = model.sequences
        specs = specs_of(model.sequences(np.ones([1, 1])))
        self._decode = tf.function(decode, input_signature=[specs], autograph=False)

    @property
    def traces(self) -> int:
        """The number of times that the search was traced."""
        return self._decode.experimental_get_tracing_count()

    def replies(self, questions: Sequence[Sequence[int]]) -> list[str]:
        """Return the best reply to each question, for any number of questions.

        questions: the ids of each question, at least one, without begin and end symbols.
        """
        batches = (questions[start : start + BATCH] for start in range(0, len(questions), BATCH))
        return [candidates[0].text for batch in batches for candidates in self.candidates(batch)]

    def candidates(self, questions: Sequence[Sequence[int]]) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        questions: one batch of at least one question, as for `replies`.
        """
        rows = Ragged.from_rows([question[: self._max_length] for question in questions])
        assert rows.lengths.all(), "an empty question"
        source = self._sequences(pad(rows, np.arange(len(rows)), int(rows.lengths.max())))
        ids, scores = self._decode(source)
        return [self._distinct(*row) for row in zip(ids.numpy(), scores.numpy(), strict=True)]

    def _distinct(self, hypotheses: np.ndarray, scores: np.ndarray) -> list[Reply]:
        """Return the distinct texts of a question's hypotheses, each with its best score.

        Two hypotheses have the same text if a word is one token in the first, and characters or bytes in the second.
        """
        texts: dict[str, float] = {}
        for ids, score in zip(hypotheses, scores, strict=True):
            if np.isfinite(score):  # -inf if there are fewer hypotheses than beams
                texts.setdefault(self._vocabulary.text(ids.tolist()), float(score))
        return [Reply(text, score) for text, score in texts.items()]

"""Replies to questions, by greedy or beam search, as text."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import pad
from chatbot.corpus.encoding.encoded import ragged
from chatbot.corpus.encoding.vocabulary import ASK, BOS, EOS, PAD, UNK, Vocabulary
from chatbot.corpus.text.utterance import tokens_of
from chatbot.decoding.beam import beam_search
from chatbot.decoding.greedy import greedy_search
from chatbot.decoding.step import Tokens
from chatbot.model.seq2seq import Seq2Seq

TOKENS = Tokens(begin=BOS, end=EOS, pad=PAD, never=(PAD, BOS, UNK, ASK))


class Reply(NamedTuple):
    """A reply and its score: log-probability in nats, divided by the length penalty in beam search."""

    text: str
    score: float


class Replier:
    """Answers questions with a model. The whole search is one function, traced once."""

    def __init__(
        self,
        model: Seq2Seq,
        vocabulary: Vocabulary,
        settings: Settings,
        beam_size: int = 1,
        length_penalty: float = 1.0,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._max_length = settings.model.max_length
        self._tokens = tokens_of(settings.corpus)
        self._beam_size = beam_size
        self._length_penalty = length_penalty
        self._search = tf.function(
            self._decode, input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False
        )

    @property
    def traces(self) -> int:
        """How often the search was traced: once, however long it is used."""
        return self._search.experimental_get_tracing_count()

    def ids(self, question: str) -> list[int]:
        """The ids of a question, cut after max_length tokens; none when it has no visible character."""
        return self._vocabulary.ids(self._tokens(question))[: self._max_length]

    def best(self, questions: Sequence[str]) -> list[str]:
        """The best reply to each question. Every question must have a visible character."""
        return self.best_to([self.ids(question) for question in questions])

    def best_to(self, questions: Sequence[Sequence[int]]) -> list[str]:
        """The best reply to each question, given in ids."""
        return [found[0].text for found in self.replies_to(questions)]

    def replies_to(self, questions: Sequence[Sequence[int]]) -> list[list[Reply]]:
        """The replies to each question, given in ids and cut after max_length; the best first and each text once."""
        rows = ragged([question[: self._max_length] for question in questions])
        assert rows.lengths.all(), "an empty question"
        found, scores = self._search(pad(rows, np.arange(len(rows)), int(rows.lengths.max())))
        return [self._distinct(*row) for row in zip(found.numpy(), scores.numpy(), strict=True)]

    def _distinct(self, hypotheses: np.ndarray, scores: np.ndarray) -> list[Reply]:
        """Different tokens can spell the same text, as words or as characters: the best of them stays."""
        texts: dict[str, float] = {}
        for ids, score in zip(hypotheses, scores, strict=True):
            if np.isfinite(score):
                texts.setdefault(self._vocabulary.text(ids.tolist()), float(score))
        return [Reply(text, score) for text, score in texts.items()]

    def _decode(self, source: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        state = self._model.encode(source)
        rows = tf.shape(source)[0]
        if self._beam_size == 1:
            return greedy_search(self._model.step, state, rows, TOKENS, self._max_length)
        return beam_search(
            self._model.step, state, rows, TOKENS, self._max_length, self._beam_size, self._length_penalty
        )

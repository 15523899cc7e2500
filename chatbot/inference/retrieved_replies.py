"""Replies that people wrote to similar training questions, ranked by a model. It needs no TensorFlow."""

import math
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.history import question_of
from chatbot.corpus.retrieval import Retrieval, Retrieved
from chatbot.corpus.vocabulary import BOS, Vocabulary
from chatbot.inference.model import EMPTY_QUESTION, Floats, IsWanted, Model, Rows, log_probabilities
from chatbot.inference.reply_text import Reply, before_stop

# The ranking of replies to training questions: the weights of their log-probability after any question, of the
# similarity of the questions, and of the logarithm of how many pairs have the reply.
GENERIC, SIMILARITY, FREQUENCY = 0.5, 8.0, 0.15
# The number of replies whose log-probability after any question is remembered: some twenty megabytes.
MOST_REMEMBERED = 100_000
# Where no training question is so similar, a reply is generated.
LEAST_SIMILARITY = 0.1
# A reply that is more like the question repeats it: the share of characters in matching blocks.
MOST_ALIKE = 0.75


class RetrievedReplies:
    """Replies to similar training questions, as a model judges them (Qiu et al., 2017, AliMe Chat).

    A reply should be probable, more so after this question than after any, each by its length; it should have been
    written to a similar question, and not to many others. The weights are those whose best replies were rated best by
    readers who knew no source (BENCHMARKS.md).
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, retrieval: Retrieval, decoding: DecodingSettings) -> None:
        self._model, self._vocabulary, self._retrieval, self._decoding = model, vocabulary, retrieval, decoding
        self._after_any: dict[tuple[int, ...], float] = {}  # of replies, see `_log_probabilities_after_any`

    def ranked(self, questions: Rows, is_wanted: IsWanted) -> list[list[Reply]]:
        """Return the replies to training questions like each question, the best first; none where none is like it.

        Once is_wanted() is False, none are returned. questions: the ids of each, at least one.
        """
        offers: list[list[Retrieved]] = []
        for question in questions:
            text = self._vocabulary.text(question_of(question, self._vocabulary))
            nearest = self._retrieval.nearest(text, self._decoding.retrieved)
            is_near = bool(nearest) and nearest[0].similarity >= LEAST_SIMILARITY
            offers.append([x for x in nearest if is_near and self._is_allowed(x.ids, text)])
        replies = [x.ids for of_question in offers for x in of_question]
        sources = [question for question, x in zip(questions, offers, strict=True) for _ in x]
        after_question = log_probabilities(self._model, sources, replies, BOS, is_wanted)
        after_any = self._log_probabilities_after_any(replies, is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        lengths = np.array([len(reply) + 1 for reply in replies])
        by_model = iter(((after_question - GENERIC * after_any) / lengths).tolist())

        def scored(x: Retrieved) -> Reply:
            score = next(by_model) + SIMILARITY * x.similarity - FREQUENCY * math.log(x.pairs)
            return Reply(before_stop(self._vocabulary.text(x.ids), self._decoding.stop), score, x.ids, x.question)

        return [sorted(map(scored, of_question), key=lambda reply: -reply.score) for of_question in offers]

    def _is_allowed(self, reply: Sequence[int], question: str) -> bool:
        """Return whether a reply of a person keeps to the settings of any reply, and does not repeat the question."""
        text, decoding = self._vocabulary.text(reply), self._decoding
        is_whole = bool(before_stop(text, decoding.stop)) and len(reply) >= decoding.min_reply_length
        return is_whole and not any(word in text for word in decoding.ban) and not is_copy(text, question)

    def _log_probabilities_after_any(self, replies: Rows, is_wanted: IsWanted) -> Floats:
        """Return the log-probability of replies after an empty question, which is computed once for each: [replies]."""
        if len(self._after_any) > MOST_REMEMBERED:
            self._after_any = {}
        known = self._after_any
        new = [reply for reply in dict.fromkeys(map(tuple, replies)) if reply not in known]
        values = log_probabilities(self._model, [EMPTY_QUESTION] * len(new), new, BOS, is_wanted)
        if not is_wanted():
            return np.zeros(len(replies), np.float32)
        known.update(zip(new, values.tolist(), strict=True))
        return np.array([known[tuple(reply)] for reply in replies], np.float32)


def is_copy(reply: str, question: str) -> bool:
    """Return whether a reply repeats the question, or nearly."""
    return SequenceMatcher(None, reply, question, autojunk=False).ratio() > MOST_ALIKE

"""Replies that people wrote to similar training questions, ranked by a model. It needs no TensorFlow."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.history import question_of
from chatbot.corpus.retrieval import Retrieval, Retrieved
from chatbot.corpus.vocabulary import BOS, Vocabulary
from chatbot.inference.model import IsWanted, Model, Rows, log_probabilities
from chatbot.inference.reply_text import Reply, before_stop

# The weights, beside the log-probability of a token given the question, of its log-probability by the shares of tokens
# in all replies, of the similarity of the questions, and of that of the reply to the question.
COMMON, SIMILARITY, SHARED = 1.2, 8.0, 3.0
# The model scores the best replies by the rest of the ranking: the best of all is among them for 95% of the questions.
SCORED = 10
# Where no training question is so similar, a reply is generated.
LEAST_SIMILARITY = 0.12
# A reply that is more like the question repeats it: the share of characters in matching blocks.
MOST_ALIKE = 0.75


class RetrievedReplies:
    """Replies to similar training questions, as a model judges them (Qiu et al., 2017, AliMe Chat).

    A token of the reply should be more probable after this question than in any reply, and the question, and the
    reply itself, similar to what was asked. The weights are those whose best replies were rated best by readers who
    knew no source (BENCHMARKS.md).
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, retrieval: Retrieval, decoding: DecodingSettings) -> None:
        self._model, self._vocabulary, self._retrieval, self._decoding = model, vocabulary, retrieval, decoding

    def ranked(self, questions: Rows, is_wanted: IsWanted) -> list[list[Reply]]:
        """Return at most `SCORED` replies to training questions like each question, the best first.

        There are none where no training question is like it, and none at all once is_wanted() is False. questions: the
        ids of each, at least one.
        """
        offers = [self._offers(question) for question in questions]
        replies = [reply.ids for of_question in offers for reply in of_question]
        sources = [question for question, of_question in zip(questions, offers, strict=True) for _ in of_question]
        values = iter(log_probabilities(self._model, sources, replies, BOS, is_wanted).tolist())
        if not is_wanted():
            return [[] for _ in questions]
        scored = [
            [reply._replace(score=reply.score + next(values) / (len(reply.ids) + 1)) for reply in of_question]
            for of_question in offers
        ]
        return [sorted(of_question, key=lambda reply: -reply.score) for of_question in scored]

    def _offers(self, question: Sequence[int]) -> list[Reply]:
        """Return the replies that the model scores, with their scores without the model. question: ids."""
        text = self._vocabulary.text(question_of(question, self._vocabulary))
        nearest = self._retrieval.nearest(text, self._decoding.retrieved)
        if not nearest or nearest[0].similarity < LEAST_SIMILARITY:
            return []
        offers = [self._offer(x) for x in nearest if self._is_allowed(x.ids, text)]
        return sorted(offers, key=lambda reply: -reply.score)[:SCORED]

    def _offer(self, x: Retrieved) -> Reply:
        common = self._retrieval.log_probability(x.ids) / (len(x.ids) + 1)
        score = SIMILARITY * x.similarity + SHARED * x.shared - COMMON * common
        return Reply(before_stop(self._vocabulary.text(x.ids), self._decoding.stop), score, x.ids, x.question)

    def _is_allowed(self, reply: Sequence[int], question: str) -> bool:
        """Return whether a reply of a person keeps to the settings of any reply, and does not repeat the question."""
        text, decoding = self._vocabulary.text(reply), self._decoding
        is_whole = bool(before_stop(text, decoding.stop)) and len(reply) >= decoding.min_reply_length
        return is_whole and not any(word in text for word in decoding.ban) and not is_copy(text, question)


def is_copy(reply: str, question: str) -> bool:
    """Return whether a reply repeats the question, or nearly."""
    return SequenceMatcher(None, reply, question, autojunk=False).ratio() > MOST_ALIKE

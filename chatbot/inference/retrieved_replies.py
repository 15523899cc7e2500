"""Replies that people wrote to similar training questions, ranked by a model. It needs no TensorFlow."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.history import question_of
from chatbot.corpus.retrieval import Retrieval
from chatbot.corpus.vocabulary import BOS, Vocabulary
from chatbot.inference.model import IsWanted, Model, Rows, log_probabilities
from chatbot.inference.reply_text import Origin, Reply, before_stop

# The weights, beside the log-probability of a token given the question, of its log-probability by the shares of tokens
# in all replies, of the similarity of the questions, and of that of the reply to the question.
COMMON, SIMILARITY, SHARED = 0.6, 10.0, 8.0
# Where no reply has this score, the most probable reply as a whole is chosen: a common one, which fits more questions.
LEAST_SCORE = 1.0
# The model scores as many replies, those that are best by the rest of the ranking, and where that is not enough the
# most common ones.
SCORED, MOST_COMMON = 10, 5
# A reply that is more like the question repeats it: the share of characters in matching blocks.
MOST_ALIKE = 0.75


class RetrievedReplies:
    """Replies to similar training questions, as a model judges them (Qiu et al., 2017, AliMe Chat).

    A token of the reply should be more probable after this question than in any reply, and the question, and the
    reply itself, similar to what was asked. Where no reply meets that, the most probable one is a common one, which
    fits. The weights are those whose best replies were rated best by readers who knew no source (docs/experiments.md).
    """

    def __init__(self, model: Model, vocabulary: Vocabulary, retrieval: Retrieval, decoding: DecodingSettings) -> None:
        self._model, self._vocabulary, self._retrieval, self._decoding = model, vocabulary, retrieval, decoding

    def ranked(self, questions: Rows, last_replies: Sequence[str], is_wanted: IsWanted) -> list[list[Reply]]:
        """Return replies to training questions like each question, the best first, with their scores.

        There are none where no training question shares a character with it, and none at all once is_wanted() is False.
        questions: the ids of each, at least one. last_replies: what the chatbot said last before each question: it is
        not among them.
        """
        offers = [self._different_offers(*asked) for asked in zip(questions, last_replies, strict=True)]
        best = self._judged(questions, [of_question[:SCORED] for of_question in offers], is_wanted)
        others = [
            [] if any(one.reply.score >= LEAST_SCORE for one in judged) else self._most_common(of_question[SCORED:])
            for judged, of_question in zip(best, offers, strict=True)
        ]
        common = self._judged(questions, others, is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        return [_by_score(*of_question) for of_question in zip(best, common, strict=True)]

    def _judged(self, questions: Rows, offers: Sequence[Sequence[Reply]], is_wanted: IsWanted) -> "list[list[_Judged]]":
        """Return the replies offered to each question as the model judges them; any once they are not wanted."""
        replies = [reply.ids for of_question in offers for reply in of_question]
        sources = [question for question, of_question in zip(questions, offers, strict=True) for _ in of_question]
        values = iter(log_probabilities(self._model, sources, replies, BOS, is_wanted).tolist())

        def judged(reply: Reply) -> _Judged:
            value = next(values)
            return _Judged(reply._replace(score=reply.score + value / (len(reply.ids) + 1)), value)

        return [[judged(reply) for reply in of_question] for of_question in offers]

    def origin(self, question: Sequence[int], reply: str) -> Origin:
        """Return the pair in which a reply to a question is looked up; that of a generated reply if it is in none."""
        return next((offer.origin for offer in self._offers(question) if offer.text == reply), Origin())

    def _different_offers(self, question: Sequence[int], last_reply: str) -> list[Reply]:
        """Return the different replies that may be given, with their scores without the model, the best first."""
        different = {offer.text: offer for offer in reversed(self._offers(question)) if offer.text != last_reply}
        offers = [*different.values()][::-1]  # of equal texts, cut by --stop, the one to the most similar question
        return sorted(offers, key=lambda reply: -reply.score)

    def _most_common(self, offers: Sequence[Reply]) -> list[Reply]:
        return sorted(offers, key=lambda reply: -self._retrieval.log_probability(reply.ids))[:MOST_COMMON]

    def _offers(self, question: Sequence[int]) -> list[Reply]:
        """Return the replies that may be given, with their scores without the model. question: ids."""
        text, decoding = self._vocabulary.text(question_of(question, self._vocabulary)), self._decoding
        matcher, offers = SequenceMatcher(None, "", text, autojunk=False), list[Reply]()
        for pair, similarity, shared in self._retrieval.nearest(text, decoding.retrieved):
            reply = before_stop(pair.reply, decoding.stop)
            # It keeps to the settings of any reply, and does not repeat the question.
            is_whole = bool(reply) and len(pair.ids) >= decoding.min_reply_length
            if is_whole and not any(word in pair.reply for word in decoding.ban) and not is_copy(pair.reply, matcher):
                common = self._retrieval.log_probability(pair.ids) / (len(pair.ids) + 1)
                score = SIMILARITY * similarity + SHARED * shared - COMMON * common
                offers.append(Reply(reply, score, pair.ids, Origin(pair.question, pair.rating == "good")))
        return offers


class _Judged(NamedTuple):
    """A reply with its score, and its log-probability in nats as a reply to the question."""

    reply: Reply
    log_probability: float


def _by_score(best: Sequence[_Judged], common: Sequence[_Judged]) -> list[Reply]:
    """Return the replies to a question, the best first. common: only where the best are below LEAST_SCORE."""
    if all(one.reply.score < LEAST_SCORE for one in best):
        return [one.reply for one in sorted((*best, *common), key=lambda one: -one.log_probability)]
    return sorted((one.reply for one in best), key=lambda reply: -reply.score)


def is_copy(reply: str, matcher: "SequenceMatcher[str]") -> bool:
    """Return whether a reply repeats the question, the second sequence of `matcher`, or nearly."""
    matcher.set_seq1(reply)
    ratios = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio  # the first two are upper bounds
    return all(ratio() > MOST_ALIKE for ratio in ratios)

"""Replies that people wrote to similar training questions, as a judge ranks them. It needs no TensorFlow."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import Vocabulary, question_of
from chatbot.decoding.interface import IsWanted, Rows
from chatbot.decoding.reply_text import Origin, Reply, before_stop
from chatbot.retrieval.index import Retrieval, Retrieved
from chatbot.retrieval.judge import FEATURES, LEAST_SCORE, OF_MODEL, Judge

# The model reads as many replies, those that are best by the other features, and where that is not enough the most
# common ones.
SCORED = 10
MOST_COMMON = 5
# Added to the score of the answer to the very question, where the model does not judge: nothing may come before it.
EXACT = 100.0
# A reply that is more like the question repeats it: the share of characters in matching blocks.
MOST_ALIKE = 0.75


class RetrievedReplies:
    """Replies to similar training questions, the best first by a judge (Qiu et al., 2017, AliMe Chat).

    Where the judge's weights are the constants of an attempt without embeddings, and no reply has `LEAST_SCORE`, the
    most probable reply as a whole is chosen: a common one, which fits more questions.
    """

    def __init__(self, judge: Judge, vocabulary: Vocabulary, retrieval: Retrieval, decoding: DecodingSettings) -> None:
        self._judge = judge
        self._vocabulary = vocabulary
        self._retrieval = retrieval
        self._decoding = decoding

    def ranked(self, questions: Rows, last_replies: Sequence[str], is_wanted: IsWanted) -> list[list[Reply]]:
        """Return replies to training questions like each question, the best first, with their scores.

        There are none where no training question is similar, or no reply has the least score of the attempt, and none
        at all once is_wanted() is False. questions: the ids of each, at least one. last_replies: what the chatbot said
        last before each question: it is not among them.
        """
        offers = [_different(*asked) for asked in zip(self._offers(questions), last_replies, strict=True)]
        read = SCORED if self._judge.asks_model else None
        best = self._judged(questions, [of_question[:read] for of_question in offers], is_wanted)
        chooses_common = [
            self._judge.chooses_common and all(one.reply.score < LEAST_SCORE for one in judged) for judged in best
        ]
        others = [
            self._most_common(of_question[read:]) if is_common else []
            for of_question, is_common in zip(offers, chooses_common, strict=True)
        ]
        common = self._judged(questions, others, is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        least = -np.inf if self._retrieval.least is None else self._retrieval.least
        found = []
        for one, other, is_common in zip(best, common, chooses_common, strict=True):
            ordered = sorted([*one, *other], key=lambda x: -(x.log_probability if is_common else x.reply.score))
            found.append([x.reply for x in ordered if x.reply.score >= least])
        return found

    def _judged(
        self, questions: Rows, offers: "Sequence[Sequence[_Offer]]", is_wanted: IsWanted
    ) -> "list[list[_Judged]]":
        """Return the replies offered to each question with what the model knows of them; any once not wanted."""
        replies = [offer.reply.ids for of_question in offers for offer in of_question]
        asked = [question for question, of_question in zip(questions, offers, strict=True) for _ in of_question]
        features = iter(self._judge.of_model(asked, replies, is_wanted))
        weights = self._judge.weights[-len(OF_MODEL) :]

        def judged(reply: Reply) -> _Judged:
            of_model = next(features)
            score = reply.score + float(of_model @ weights)
            return _Judged(reply._replace(score=score), float(of_model[0]) * (len(reply.ids) + 1))

        return [[judged(offer.reply) for offer in of_question] for of_question in offers]

    def _most_common(self, offers: "Sequence[_Offer]") -> "list[_Offer]":
        return sorted(offers, key=lambda one: -self._retrieval.log_probability(one.reply.ids))[:MOST_COMMON]

    def origin(self, question: Sequence[int], reply: str) -> Origin:
        """Return the pair in which a reply to a question is looked up; that of a generated reply if it is in none."""
        (offers,) = self._offers([question])
        return next((offer.reply.origin for offer in offers if offer.reply.text == reply), Origin())

    def _offers(self, questions: Rows) -> "list[list[_Offer]]":
        """Return the replies that may be given to each question. questions: ids."""
        texts = [self._vocabulary.text(question_of(question, self._vocabulary)) for question in questions]
        nearest = self._retrieval.nearest(texts, self._decoding.retrieved)
        return [self._offers_of(*asked) for asked in zip(texts, nearest, strict=True)]

    def _offers_of(self, text: str, found: Sequence[Retrieved]) -> "list[_Offer]":
        decoding = self._decoding
        weights = self._judge.weights
        matcher = SequenceMatcher(None, "", text, autojunk=False)
        offers = list[_Offer]()
        for pair, *values in found:
            reply = before_stop(pair.reply, decoding.stop)
            # It keeps to the settings of any reply, and does not repeat the question.
            is_whole = bool(reply) and len(pair.ids) >= decoding.min_reply_length
            repeats = self._retrieval.is_validated and is_copy(pair.reply, matcher)  # without, it is an answer
            if is_whole and not any(word in pair.reply for word in decoding.ban) and not repeats:
                score = float(np.dot(values, weights[: len(values)]))
                if not self._judge.asks_model and pair.question == text:
                    score += EXACT
                # A common reply is more probable, and its score without the model too low by as much.
                common = weights[FEATURES.index("common")] * self._retrieval.log_probability(pair.ids)
                origin = Origin(pair.question, pair.rating == "good")
                offers.append(_Offer(Reply(reply, score, pair.ids, origin), score + common / (len(pair.ids) + 1)))
        return offers


class _Offer(NamedTuple):
    """A reply with its score without the features of the model, and that by which the model is asked."""

    reply: Reply
    before_model: float


class _Judged(NamedTuple):
    """A reply with its score, and its log-probability in nats as a reply to the question."""

    reply: Reply
    log_probability: float


def _different(offers: Sequence[_Offer], last_reply: str) -> list[_Offer]:
    """Return the offers of different replies, the best first by what is known without the model."""
    different: dict[str, _Offer] = {}
    for offer in offers:  # of equal texts, cut by --stop, the one to the most similar question
        if offer.reply.text != last_reply:
            different.setdefault(offer.reply.text, offer)
    return sorted(different.values(), key=lambda offer: -offer.before_model)


def is_copy(reply: str, matcher: "SequenceMatcher[str]") -> bool:
    """Return whether a reply repeats the question, the second sequence of `matcher`, or nearly."""
    matcher.set_seq1(reply)
    ratios = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio  # the first two are upper bounds
    return all(ratio() > MOST_ALIKE for ratio in ratios)

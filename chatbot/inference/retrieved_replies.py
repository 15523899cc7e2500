"""Replies that people wrote to similar training questions, ranked by a model. It needs no TensorFlow."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.history import question_of
from chatbot.corpus.retrieval import Retrieval, Retrieved
from chatbot.corpus.vocabulary import BOS, Vocabulary
from chatbot.inference.model import IsWanted, Model, Rows, log_probabilities
from chatbot.inference.reply_text import Origin, Reply, before_stop

# The weights, beside the log-probability of a token given the question, of its log-probability by the shares of tokens
# in all replies, of the similarity of the questions, and of that of the reply to the question.
COMMON, SIMILARITY, SHARED = 0.6, 10.0, 8.0
# Where no reply has this score, the most probable reply as a whole is chosen: a common one, which fits more questions.
LEAST_SCORE = 1.0
# The model scores as many replies, those that are best by the rest of the ranking, and the most common ones.
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
        offers = [self._best_offers(*asked) for asked in zip(questions, last_replies, strict=True)]
        replies = [reply.ids for of_question in offers for reply in of_question]
        sources = [question for question, of_question in zip(questions, offers, strict=True) for _ in of_question]
        values = iter(log_probabilities(self._model, sources, replies, BOS, is_wanted).tolist())
        if not is_wanted():
            return [[] for _ in questions]
        return [_by_score([(reply, next(values)) for reply in of_question]) for of_question in offers]

    def origin(self, question: Sequence[int], reply: str) -> Origin:
        """Return the pair in which a reply to a question is looked up; that of a generated reply if it is in none."""
        return next((offer.origin for offer in self._offers(question) if offer.text == reply), Origin())

    def _best_offers(self, question: Sequence[int], last_reply: str) -> list[Reply]:
        """Return the replies that the model scores, with their scores without it; then `MOST_COMMON` common ones."""
        different = {offer.text: offer for offer in reversed(self._offers(question)) if offer.text != last_reply}
        offers = [*different.values()][::-1]  # of equal texts, cut by --stop, the one to the most similar question
        offers.sort(key=lambda reply: -reply.score)
        rest = sorted(offers[SCORED:], key=lambda reply: -self._retrieval.log_probability(reply.ids))
        return [*offers[:SCORED], *rest[:MOST_COMMON]]

    def _offers(self, question: Sequence[int]) -> list[Reply]:
        """Return the replies that may be given, with their scores without the model. question: ids."""
        text = self._vocabulary.text(question_of(question, self._vocabulary))
        nearest = self._retrieval.nearest(text, self._decoding.retrieved)
        return [self._offer(x) for x in nearest if self._is_allowed(x.ids, text)]

    def _offer(self, x: Retrieved) -> Reply:
        common = self._retrieval.log_probability(x.ids) / (len(x.ids) + 1)
        score = SIMILARITY * x.similarity + SHARED * x.shared - COMMON * common
        origin = Origin(x.question, x.rating == "good")
        return Reply(before_stop(self._vocabulary.text(x.ids), self._decoding.stop), score, x.ids, origin)

    def _is_allowed(self, reply: Sequence[int], question: str) -> bool:
        """Return whether a reply of a person keeps to the settings of any reply, and does not repeat the question."""
        text, decoding = self._vocabulary.text(reply), self._decoding
        is_whole = bool(before_stop(text, decoding.stop)) and len(reply) >= decoding.min_reply_length
        return is_whole and not any(word in text for word in decoding.ban) and not is_copy(text, question)


def _by_score(replies: Sequence[tuple[Reply, float]]) -> list[Reply]:
    """Return the replies to a question with their scores, the best first.

    replies: those of `RetrievedReplies._best_offers`, each with its log-probability in nats.
    """
    scored = [(reply._replace(score=reply.score + value / (len(reply.ids) + 1)), value) for reply, value in replies]
    if all(reply.score < LEAST_SCORE for reply, _ in scored[:SCORED]):
        return [reply for reply, _ in sorted(scored, key=lambda one: -one[1])]
    return sorted((reply for reply, _ in scored[:SCORED]), key=lambda reply: -reply.score)


def is_copy(reply: str, question: str) -> bool:
    """Return whether a reply repeats the question, or nearly."""
    return SequenceMatcher(None, reply, question, autojunk=False).ratio() > MOST_ALIKE

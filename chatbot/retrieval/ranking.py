"""Ranks replies that people wrote to similar training questions. TensorFlow is not required."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.interface import IdRows, IsWanted
from chatbot.decoding.reply_text import Origin, Reply, cut_at_stop
from chatbot.retrieval.index import Retrieval, Retrieved
from chatbot.retrieval.judge import FEATURES, MODEL_FEATURES, PLAUSIBLE_SCORE, Judge

# The maximum number of replies that the model scores. The other features select these replies.
MAX_SCORED = 10
# The maximum number of common replies that the model also scores if no other reply is plausible.
MAX_COMMON = 5
# If the model features are ignored, this bonus ranks the replies to exactly the same question first.
EXACT = 100.0
# A reply counts as a copy of the question if their similarity ratio (see difflib) exceeds this value.
COPY_SIMILARITY = 0.75


class _Candidate(NamedTuple):
    """A candidate reply before the model scores it.

    Attributes:
        reply: The reply with its score without the model features.
        before_model: The score by which candidates are selected for the model.
    """

    reply: Reply
    before_model: float


class _Judged(NamedTuple):
    """A reply with its final score, and its log-probability given the question in nats."""

    reply: Reply
    log_probability: float


class RetrievedReplies:
    """Retrieves the replies to similar training questions and ranks them with a judge (Qiu et al., 2017, AliMe Chat).

    If no reply is plausible, replies are ranked by log-probability instead. This ranking favours common replies, which
    fit many questions. It is only used without embeddings and with the default weights.

    Args:
        judge: The judge.
        retrieval: The index of the training pairs.
        decoding: The decoding settings.
    """

    def __init__(self, judge: Judge, retrieval: Retrieval, decoding: DecodingSettings) -> None:
        self._judge = judge
        self._retrieval = retrieval
        self._decoding = decoding

    def ranked(
        self, questions: IdRows, texts: Sequence[str], last_replies: Sequence[str], is_wanted: IsWanted
    ) -> list[list[Reply]]:
        """Return the retrieved replies to each question with their scores, best first.

        A question has no replies if it resembles no training question, or if no reply reaches the minimum score of the
        attempt and --min-score is not given.

        Args:
            questions: The ids of each question and its history that the model reads.
            texts: The whole text of each question, which is looked up.
            last_replies: The chatbot's previous reply in each conversation, which is not returned again.
            is_wanted: A callback that returns False to abort. All results are then empty.
        """
        all_candidates = zip(self._find_candidates(texts), last_replies, strict=True)
        candidates = [_distinct_candidates(*pair) for pair in all_candidates]
        max_read = MAX_SCORED if self._judge.asks_model else None
        best = self._score(questions, [group[:max_read] for group in candidates], is_wanted)
        chooses_common = [
            self._judge.chooses_common and all(main.reply.score < PLAUSIBLE_SCORE for main in judged) for judged in best
        ]
        others = [
            self._most_common(group[max_read:]) if by_probability else []
            for group, by_probability in zip(candidates, chooses_common, strict=True)
        ]
        common = self._score(questions, others, is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        min_score = self._retrieval.min_score
        if min_score is None or self._decoding.min_score is not None:
            min_score = -np.inf  # If the user chooses a minimum score, the caller applies it.
        results = []
        for main, more, by_probability in zip(best, common, chooses_common, strict=True):
            ordered = sorted([*main, *more], key=lambda x: -(x.log_probability if by_probability else x.reply.score))
            results.append([x.reply for x in ordered if x.reply.score >= min_score])
        return results

    def _score(
        self, questions: IdRows, candidates: Sequence[Sequence[_Candidate]], is_wanted: IsWanted
    ) -> list[list[_Judged]]:
        """Add the weighted model features to the scores of the candidates for each question."""
        replies = [candidate.reply.ids for group in candidates for candidate in group]
        repeated_questions = [question for question, group in zip(questions, candidates, strict=True) for _ in group]
        features = iter(self._judge.model_features(repeated_questions, replies, is_wanted))
        weights = self._judge.weights[-len(MODEL_FEATURES) :]

        def add_model_score(reply: Reply) -> _Judged:
            model_features = next(features)
            score = reply.score + float(model_features @ weights)
            return _Judged(reply._replace(score=score), float(model_features[0]) * (len(reply.ids) + 1))

        return [[add_model_score(candidate.reply) for candidate in group] for group in candidates]

    def _most_common(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        ordered = sorted(candidates, key=lambda candidate: -self._retrieval.log_probability(candidate.reply.ids))
        return ordered[:MAX_COMMON]

    def origin(self, text: str, reply: str) -> Origin:
        """Return the origin of a reply. It is empty if the reply cannot be retrieved for the text of the question."""
        (candidates,) = self._find_candidates([text])
        return next((candidate.reply.origin for candidate in candidates if candidate.reply.text == reply), Origin())

    def _find_candidates(self, texts: Sequence[str]) -> list[list[_Candidate]]:
        """Return the candidate replies to each question."""
        nearest = self._retrieval.nearest(texts, self._decoding.retrieved)
        return [self._candidates_for(*pair) for pair in zip(texts, nearest, strict=True)]

    def _candidates_for(self, text: str, retrieved: Sequence[Retrieved]) -> list[_Candidate]:
        decoding = self._decoding
        weights = self._judge.weights
        matcher = SequenceMatcher(None, "", text, autojunk=False)
        candidates = list[_Candidate]()
        for pair, *values in retrieved:
            reply = cut_at_stop(pair.reply, decoding.stop)
            # The decoding settings also apply to retrieved replies.
            is_long_enough = bool(reply) and len(pair.ids) >= decoding.min_reply_length
            # A reply must not repeat the question. Without validation, all training pairs are considered valid answers.
            repeats = self._retrieval.is_validated and is_copy(pair.reply, matcher)
            if is_long_enough and not any(word in pair.reply for word in decoding.ban) and not repeats:
                score = float(np.dot(values, weights[: len(values)]))
                if not self._judge.asks_model and pair.question == text:
                    score += EXACT
                # The selection already penalises common replies, because the model prefers them.
                common = weights[FEATURES.index("common")] * self._retrieval.log_probability(pair.ids)
                origin = Origin(pair.question, pair.rating == "good")
                candidates.append(
                    _Candidate(Reply(reply, score, pair.ids, origin), score + common / (len(pair.ids) + 1))
                )
        return candidates


def _distinct_candidates(candidates: Sequence[_Candidate], last_reply: str) -> list[_Candidate]:
    """Remove duplicate candidates and the chatbot's last reply, and sort the remaining candidates, best first."""
    by_text: dict[str, _Candidate] = {}
    for candidate in candidates:  # Cutting at stop texts can create duplicates. The best-ranked one is kept.
        if candidate.reply.text != last_reply:
            by_text.setdefault(candidate.reply.text, candidate)
    return sorted(by_text.values(), key=lambda candidate: -candidate.before_model)


def is_copy(reply: str, matcher: "SequenceMatcher[str]") -> bool:
    """Return whether a reply is nearly a copy of the question, which is the second sequence of `matcher`."""
    matcher.set_seq1(reply)
    ratios = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio  # The first two are cheap upper bounds.
    return all(ratio() > COPY_SIMILARITY for ratio in ratios)

"""Replies to questions that are given as ids: a search by a model, and the ranking of what it finds.

It needs no TensorFlow.
"""

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.vocabulary import ASK, EOS, PAD, Vocabulary, question_of
from chatbot.decoding.automaton import BoundedAutomaton, spelling_automaton, without_words
from chatbot.decoding.interface import NOT_FINITE, Floats, IsWanted, Model, Rows, log_probabilities
from chatbot.decoding.reply_text import Origin, Reply, ReplyText, before_stop, good_enough
from chatbot.decoding.search import length_penalty
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.retrieval.index import Retrieval
from chatbot.retrieval.judge import Judge
from chatbot.retrieval.ranking import RetrievedReplies

# The maximum number of questions in a batch, and of their hypotheses, which bound the memory of a search.
BATCH = 64
HYPOTHESES = 640
# Looked-up replies to as many questions are about what the model scores at once (`POSITIONS`).
LOOKED_UP = 12


class Replier:
    """Answers questions by the search of the decoding settings, by default greedy search.

    settings: the model's settings. Questions are truncated, and replies end, after settings.max_length tokens.
    retrieval: the training pairs, for decoding.retrieve. Raises UserError for decoding settings that the model or the
    vocabulary does not admit.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        settings: ModelSettings,
        decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
        retrieval: Retrieval | None = None,
    ) -> None:
        check_decoding(decoding, vocabulary, settings)
        self.model = model
        self.retrieval = retrieval
        self._vocabulary = vocabulary
        self._max_length = settings.max_length
        self._look_up(decoding)
        self.automaton = reply_automaton(decoding, vocabulary, settings.max_length)
        self.search = model.searcher(decoding, self.automaton)

    def looking_up(self, decoding: DecodingSettings) -> "Replier":
        """Return a replier with the same search, and other settings of what is looked up, and of the seed.

        Raises UserError without an index.
        """
        other = copy.copy(self)
        other._look_up(decoding)
        return other

    def _look_up(self, decoding: DecodingSettings) -> None:
        if decoding.retrieved and self.retrieval is None:
            raise UserError(
                f"--retrieve {decoding.retrieve}: this attempt has no index of its training pairs, which "
                "training writes (--retrieve-pairs); leave it out"
            )
        self.decoding = decoding
        self._retrieved = None
        if self.retrieval is not None and decoding.retrieved:
            judge = Judge(self.model, self._vocabulary, self.retrieval)
            self._retrieved = RetrievedReplies(judge, self._vocabulary, self.retrieval, decoding)
        self.generates = self._retrieved is None or self.retrieval is None or self.retrieval.is_validated
        if decoding.fallback != DecodingSettings.fallback and decoding.min_score is None and self.generates:
            raise UserError("--fallback: not used without --min-score; leave it out, or add that")

    @property
    def follows_ratings(self) -> bool:
        """Whether ratings change the replies at once."""
        return self._retrieved is not None and self.retrieval is not None and self.retrieval.is_rated

    @property
    def batch(self) -> int:
        """The maximum number of questions that are searched at once."""
        return max(1, min(BATCH, HYPOTHESES // self.decoding.hypotheses))

    @property
    def answered_at_once(self) -> int:
        """The number of questions that are best answered at once, where more wait: further ones delay the replies."""
        return self.batch if self._retrieved is None else LOOKED_UP

    def replies(self, questions: Rows) -> list[str]:
        """Return the best reply to each question, for any number of questions.

        questions: the ids of each question, at least one, without begin and end symbols.
        """
        return [reply.text for reply in self.best(questions)]

    def best(self, questions: Rows) -> list[Reply]:
        """Return the best reply to each question, or the fallback, with its score. questions: as for `replies`."""
        least = self.decoding.min_score
        fallback = self.decoding.fallback
        return [good_enough(found, least, fallback)[0] for found in self.candidates(questions)]

    def candidates(
        self,
        questions: Rows,
        last_replies: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        is_wanted: IsWanted = lambda: True,
    ) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        There are none where nothing that is looked up fits, and no validation has measured what the model generates.
        questions: as for `replies`. last_replies: what the chatbot said last before each question, "" for nothing: a
        looked-up reply does not repeat it; None: nothing. seeds: of the samples for each question; None: that of the
        settings. is_wanted: when it becomes False, the search ends within a few ids, and no replies are returned.
        """
        questions = [question[: self._max_length] for question in questions]
        seeds = [self.decoding.seed] * len(questions) if seeds is None else seeds
        if self._retrieved is None:
            return self._generated(questions, seeds, is_wanted)
        retrieved = self._retrieved.ranked(questions, last_replies or [""] * len(questions), is_wanted)
        if not self.generates:
            return retrieved
        unanswered = [number for number, replies in enumerate(retrieved) if not replies]
        asked = [questions[i] for i in unanswered]
        of_asked = [seeds[i] for i in unanswered]
        generated = iter(self._generated(asked, of_asked, is_wanted))
        return [replies or next(generated) for replies in retrieved]

    def origin(self, question: Sequence[int], reply: str) -> Origin:
        """Return where a reply to a question comes from. question: ids, at least one."""
        return Origin() if self._retrieved is None else self._retrieved.origin(question[: self._max_length], reply)

    def _generated(self, questions: Rows, seeds: Sequence[int], is_wanted: IsWanted) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first."""
        parts = [slice(start, start + self.batch) for start in range(0, len(questions), self.batch)]
        hypotheses = self.search([questions[part] for part in parts], [seeds[part] for part in parts], is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        candidates = [self._distinct(*row) for batch in hypotheses for row in zip(*batch, strict=True)]
        return self._reranked(questions, candidates, is_wanted) if self.decoding.rerank else candidates

    def _distinct(self, hypotheses: npt.NDArray[np.integer], scores: Floats) -> list[Reply]:
        """Return the distinct texts of a question's hypotheses, each with its best score, the best first.

        An empty text, before a stop text, is left out if there is another.

        hypotheses: [hypotheses, max_length], padded. scores: [hypotheses]. Raises UserError if none is a number.
        """
        if self.decoding.compares_samples:  # beam search has applied it
            scores = scores / length_penalty((hypotheses != PAD).sum(axis=-1), self.decoding)
        texts: dict[str, Reply] = {}
        for index in np.argsort(-scores, kind="stable").tolist():
            if np.isfinite(scores[index]):  # -inf if there are fewer hypotheses than beams
                ids = [i for i in hypotheses[index].tolist() if i not in (PAD, EOS)]
                text = before_stop(self._vocabulary.text(ids), self.decoding.stop)
                texts.setdefault(text, Reply(text, float(scores[index]), ids))
        replies = list(texts.values())
        if not replies:
            raise UserError(NOT_FINITE)
        return [reply for reply in replies if reply.text] or replies

    def _reranked(self, questions: Rows, candidates: list[list[Reply]], is_wanted: IsWanted) -> list[list[Reply]]:
        """Add the weighted log-probability of the question given the reply to the scores (Li et al., 2016, MMI-bidi).

        It is divided by the length penalty of the question, so that one weight serves questions of all lengths.
        """
        stops = self.decoding.stop
        reply_ids = [self.ids_before_stop(reply, stops) for of_question in candidates for reply in of_question]
        alone = [question_of(question, self._vocabulary) for question in questions]
        of_pairs = [question for question, replies in zip(alone, candidates, strict=True) for _ in replies]
        values = log_probabilities(self.model, reply_ids, of_pairs, ASK, is_wanted)
        values = values / length_penalty(np.array([len(question) + 1 for question in of_pairs]), self.decoding)
        added = iter(((self.decoding.rerank or 0) * values).tolist())
        scored = [
            [reply._replace(score=reply.score + next(added)) for reply in of_question] for of_question in candidates
        ]
        return [sorted(of_question, key=lambda reply: -reply.score) for of_question in scored]

    def ids_before_stop(self, reply: Reply, stops: Sequence[str]) -> Sequence[int]:
        """Return the ids of a reply before a stop text, at least one."""
        text = ReplyText(self._vocabulary, stops, list(reply.ids))
        text.read(is_whole=True)
        return reply.ids[: max(1, text.ids_before_stop())] if text.is_stopped else reply.ids


def for_attempt(decoding: DecodingSettings, settings: Settings) -> DecodingSettings:
    """Return the decoding settings for a trained model. Banned words are cleaned as the training pairs were.

    settings: those of the attempt. Raises UserError for decoding settings that the attempt does not admit.
    """
    if decoding.rerank and settings.learning.both_directions != "on":
        raise UserError(
            "--rerank: this attempt did not learn to generate questions from answers; train another with "
            "--both-directions on"
        )
    clean = cleaner(settings.corpus.clean)
    ban = tuple(dict.fromkeys(map(clean, decoding.ban)))
    if "" in ban:
        raise UserError("--ban: a word without visible characters; remove it")
    return dataclasses.replace(decoding, ban=ban)


def check_decoding(decoding: DecodingSettings, vocabulary: Vocabulary, settings: ModelSettings) -> None:
    """Raise UserError for decoding settings that the model or the vocabulary does not admit."""
    if decoding.top_k is not None and decoding.top_k > len(vocabulary):
        raise UserError(
            f"--top-k {decoding.top_k}: the vocabulary has {counted(len(vocabulary), 'token')}; give at most that"
        )
    if decoding.min_reply_length > settings.max_length:
        raise UserError(
            f"--min-reply-length {decoding.min_reply_length}: replies of this attempt have at most "
            f"{counted(settings.max_length, 'token')} (--max-length); give at most that"
        )


def reply_automaton(decoding: DecodingSettings, vocabulary: Vocabulary, max_length: int) -> BoundedAutomaton:
    """Return the automaton of replies: complete characters, and no banned words.

    max_length: of a reply, in tokens. Raises UserError for banned words that leave no reply.
    """
    automaton = spelling_automaton(vocabulary)
    if decoding.ban:
        automaton = without_words(automaton, vocabulary, decoding.ban, max_length)
    return BoundedAutomaton(automaton, max_length)

"""Replies to tokenised questions by searching with a model or by retrieval. TensorFlow is not required."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.vocabulary import ASK, EOS, PAD, Vocabulary, question_of
from chatbot.decoding.array_functions import Floats
from chatbot.decoding.automaton import BoundedAutomaton, spelling_automaton, without_words
from chatbot.decoding.interface import NOT_FINITE, IdRows, IsWanted, Model, score_pairs
from chatbot.decoding.reply_text import Origin, Reply, ReplyText, cut_at_stop, filter_by_score
from chatbot.decoding.search import length_penalty
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.retrieval.index import Retrieval
from chatbot.retrieval.judge import Judge
from chatbot.retrieval.ranking import RetrievedReplies

# The maximum numbers of questions and of hypotheses in a batch, which limit the memory of a search.
BATCH = 64
HYPOTHESES = 640
# The number of questions per batch for retrieval, over all search threads of an engine. With 12, 64 clients get a sixth
# fewer replies per second, and 96 is no faster.
LOOKUP_BATCH = 48


class Source(NamedTuple):
    """A question as token ids.

    Attributes:
        ids: The ids that the model reads: the history and the question, cut to --max-length tokens. They are empty if
            the question has no visible characters.
        question: The ids of the whole question, without history, which retrieval looks up.
    """

    ids: Sequence[int]
    question: Sequence[int]


class Replier:
    """Answers questions with the search that the decoding settings choose, by default greedy search.

    Args:
        model: The model.
        vocabulary: The vocabulary of the model.
        settings: The settings of the model. Questions and replies are cut to settings.max_length tokens.
        decoding: Decoding settings returned by `for_attempt`.
        retrieval: The index of the training pairs, required for decoding.retrieve.

    Raises:
        UserError: The retrieval settings do not fit the model, or no reply avoids the banned words.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        settings: ModelSettings,
        decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
        retrieval: Retrieval | None = None,
    ) -> None:
        self.model = model
        self.retrieval = retrieval
        self._vocabulary = vocabulary
        self._max_length = settings.max_length
        self._set_decoding(decoding)
        self.automaton = reply_automaton(decoding, vocabulary, settings.max_length)
        self.search = model.searcher(decoding, self.automaton)

    def with_lookup(self, decoding: DecodingSettings) -> "Replier":
        """Return a replier with the same search, but with the retrieval settings and the seed of `decoding`.

        Raises:
            UserError: The settings require an index of training pairs, but there is none.
        """
        other = copy.copy(self)
        other._set_decoding(decoding)
        return other

    def _set_decoding(self, decoding: DecodingSettings) -> None:
        if decoding.retrieved and self.retrieval is None:
            raise UserError(
                f"--retrieve {decoding.retrieve}: this attempt has no index of its training pairs; leave it out, or "
                "train with --retrieve-pairs"
            )
        self.decoding = decoding
        self._retrieved = None
        if self.retrieval is not None and decoding.retrieved:
            judge = Judge(self.model, self._vocabulary, self.retrieval)
            self._retrieved = RetrievedReplies(judge, self.retrieval, decoding)
        self.generates = self._retrieved is None or self.retrieval is None or self.retrieval.is_validated
        if decoding.fallback != DecodingSettings.fallback and decoding.min_score is None and self.generates:
            raise UserError("--fallback: not used without --min-score; leave it out, or add --min-score")

    @property
    def follows_ratings(self) -> bool:
        """Whether new ratings affect the next reply."""
        return self._retrieved is not None and self.retrieval is not None and self.retrieval.is_rated

    @property
    def batch(self) -> int:
        """The maximum number of questions searched together."""
        return max(1, min(BATCH, HYPOTHESES // self.decoding.hypotheses))

    @property
    def preferred_batch(self) -> int:
        """The recommended number of questions per batch. Larger batches would delay the replies."""
        return self.batch if self._retrieved is None else LOOKUP_BATCH

    def replies(self, questions: IdRows) -> list[str]:
        """Return the text of the best reply to each question."""
        return [reply.text for reply in self.best(questions)]

    def best(self, questions: IdRows) -> list[Reply]:
        """Return the best reply to each question, or the fallback if no reply reaches the minimum score.

        Args:
            questions: The non-empty id sequence of each question, without BOS and EOS. It can be longer than the model
                reads.
        """
        sources = [Source(ids[: self._max_length], question_of(ids, self._vocabulary)) for ids in questions]
        min_score = self.decoding.min_score
        fallback = self.decoding.fallback
        return [filter_by_score(candidates, min_score, fallback)[0] for candidates in self.candidates(sources)]

    def candidates(
        self,
        sources: Sequence[Source],
        last_replies: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        is_wanted: IsWanted = lambda: True,
    ) -> list[list[Reply]]:
        """Return the distinct replies found for each question, best first.

        A model that was never validated must not generate replies. With such a model, a question without a plausible
        retrieved reply has no candidates.

        Args:
            sources: The questions, which must not be empty.
            last_replies: The chatbot's previous reply in each conversation, or an empty string. Retrieval does not
                return this reply again. None if there are no previous replies.
            seeds: The random seed for each question, or None to use the seed of the settings.
            is_wanted: A callback that returns False to abort. The search then stops within a few tokens and the
                candidate lists are empty.
        """
        questions = [source.ids for source in sources]
        seeds = [self.decoding.seed] * len(questions) if seeds is None else seeds
        if self._retrieved is None:
            return self._generate(questions, seeds, is_wanted)
        texts = [self._vocabulary.text(source.question) for source in sources]
        retrieved = self._retrieved.ranked(questions, texts, last_replies or [""] * len(questions), is_wanted)
        if not self.generates:
            return retrieved
        unanswered = [number for number, replies in enumerate(retrieved) if not replies]
        remaining = [questions[i] for i in unanswered]
        remaining_seeds = [seeds[i] for i in unanswered]
        generated = iter(self._generate(remaining, remaining_seeds, is_wanted))
        return [replies or next(generated) for replies in retrieved]

    def origin(self, source: Source, reply: str) -> Origin:
        """Return where a reply came from: a stored pair or the model. The question must not be empty."""
        if self._retrieved is None:
            return Origin()
        return self._retrieved.origin(self._vocabulary.text(source.question), reply)

    def _generate(self, questions: IdRows, seeds: Sequence[int], is_wanted: IsWanted) -> list[list[Reply]]:
        """Return the distinct replies that the model generates for each question, best first."""
        parts = [slice(start, start + self.batch) for start in range(0, len(questions), self.batch)]
        hypotheses = self.search([questions[part] for part in parts], [seeds[part] for part in parts], is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        candidates = [self._distinct_replies(*row) for batch in hypotheses for row in zip(*batch, strict=True)]
        return self._rerank(questions, candidates, is_wanted) if self.decoding.rerank else candidates

    def _distinct_replies(self, hypotheses: npt.NDArray[np.integer], scores: Floats) -> list[Reply]:
        """Return the distinct replies among a question's hypotheses, best first.

        Hypotheses with the same text become one reply with the best score. Empty replies are dropped if others exist.

        Args:
            hypotheses: Padded ids, with shape [hypotheses, max_length].
            scores: The scores of the hypotheses, with shape [hypotheses].

        Raises:
            UserError: No score is finite.
        """
        if self.decoding.compares_samples:  # Beam search has already applied the length penalty.
            scores = scores / length_penalty((hypotheses != PAD).sum(axis=-1), self.decoding)
        texts: dict[str, Reply] = {}
        for index in np.argsort(-scores, kind="stable").tolist():
            if np.isfinite(scores[index]):  # Beam search fills missing hypotheses with -inf.
                ids = [i for i in hypotheses[index].tolist() if i not in (PAD, EOS)]
                text = cut_at_stop(self._vocabulary.text(ids), self.decoding.stop)
                texts.setdefault(text, Reply(text, float(scores[index]), ids))
        replies = list(texts.values())
        if not replies:
            raise UserError(NOT_FINITE)
        return [reply for reply in replies if reply.text] or replies

    def _rerank(self, questions: IdRows, candidates: list[list[Reply]], is_wanted: IsWanted) -> list[list[Reply]]:
        """Rank replies also by how probable the question is given the reply (MMI-bidi, Li et al., 2016).

        The weighted log-probability of the question is added to each score. It is first divided by a length penalty,
        so one weight suits questions of any length.
        """
        stops = self.decoding.stop
        reply_ids = [self.ids_before_stop(reply, stops) for replies in candidates for reply in replies]
        last_turns = [question_of(question, self._vocabulary) for question in questions]
        targets = [question for question, replies in zip(last_turns, candidates, strict=True) for _ in replies]
        log_probs = score_pairs(self.model, reply_ids, targets, ASK, is_wanted)
        log_probs = log_probs / length_penalty(np.array([len(question) + 1 for question in targets]), self.decoding)
        bonuses = iter(((self.decoding.rerank or 0) * log_probs).tolist())
        scored = [[reply._replace(score=reply.score + next(bonuses)) for reply in replies] for replies in candidates]
        return [sorted(replies, key=lambda reply: -reply.score) for replies in scored]

    def ids_before_stop(self, reply: Reply, stops: Sequence[str]) -> Sequence[int]:
        """Return the ids of a reply before the first stop text. At least one id is returned."""
        text = ReplyText(self._vocabulary, stops, list(reply.ids))
        text.read(is_whole=True)
        return reply.ids[: max(1, text.ids_before_stop())] if text.is_stopped else reply.ids


def for_attempt(decoding: DecodingSettings, settings: Settings, vocabulary: Vocabulary) -> DecodingSettings:
    """Check that an attempt supports the decoding settings, and clean the banned words like the training pairs.

    Args:
        decoding: The decoding settings.
        settings: The settings of the attempt.
        vocabulary: The vocabulary of the attempt.

    Raises:
        UserError: The attempt does not support the decoding settings.
    """
    if decoding.rerank and settings.learning.both_directions != "on":
        raise UserError(
            "--rerank: this attempt did not learn to generate questions from answers; train another with "
            "--both-directions on"
        )
    if decoding.top_k is not None and decoding.top_k > len(vocabulary):
        raise UserError(
            f"--top-k {decoding.top_k}: the vocabulary has {pluralize(len(vocabulary), 'token')}; "
            "choose a smaller value"
        )
    if decoding.min_reply_length > settings.model.max_length:
        raise UserError(
            f"--min-reply-length {decoding.min_reply_length}: replies of this attempt have at most "
            f"{pluralize(settings.model.max_length, 'token')} (--max-length); choose a smaller value"
        )
    clean = cleaner(settings.corpus.clean)
    ban = tuple(dict.fromkeys(map(clean, decoding.ban)))
    if "" in ban:
        raise UserError("--ban: one of the words has no visible characters; remove it")
    return dataclasses.replace(decoding, ban=ban)


def reply_automaton(decoding: DecodingSettings, vocabulary: Vocabulary, max_length: int) -> BoundedAutomaton:
    """Return an automaton that accepts replies without banned words and without incomplete UTF-8 characters.

    Args:
        decoding: The decoding settings, which contain the banned words.
        vocabulary: The vocabulary of the replies.
        max_length: The maximum length of a reply in tokens.

    Raises:
        UserError: No reply avoids the banned words.
    """
    automaton = spelling_automaton(vocabulary)
    if decoding.ban:
        automaton = without_words(automaton, vocabulary, decoding.ban, max_length)
    return BoundedAutomaton(automaton, max_length)

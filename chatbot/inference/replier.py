"""Replies to questions that are given as ids: a search by a model, and the ranking of what it finds.

It needs no TensorFlow.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import pad
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.history import question_of
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.reading.display import counted
from chatbot.corpus.retrieval import Retrieval, Retrieved
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD, Vocabulary, spelling_automaton
from chatbot.decoding.automaton import Automaton, BoundedAutomaton, without_words
from chatbot.decoding.hypotheses import length_penalty
from chatbot.errors import UserError
from chatbot.inference.reply_text import ReplyText, before_stop

# The maximum number of questions in a batch, and of their hypotheses, which bound the memory of a search.
BATCH, HYPOTHESES = 64, 640
# The maximum number of padded positions of targets in a batch of pairs that are scored, which bounds the memory of
# their logits.
POSITIONS = 1024
# The ranking of replies to training questions: the weights of their log-probability after any question, of the
# similarity of the questions, and of the logarithm of how many pairs have the reply.
GENERIC, SIMILARITY, FREQUENCY = 0.5, 8.0, 0.15
# The number of replies whose log-probability after any question is remembered: some twenty megabytes.
MOST_REMEMBERED = 100_000
# Where no training question is so similar, a reply is generated.
LEAST_SIMILARITY = 0.1
# A reply that is more like the question repeats it: the share of characters in matching blocks.
MOST_ALIKE = 0.75
# The question of the anti-language model: the begin symbol alone. It is in no other question, and in no reply, so that
# a model that copies gains nothing by it.
EMPTY_QUESTION = [BOS]

Rows = Sequence[Sequence[int]]  # ids of each
Floats = npt.NDArray[np.float32]
# Whether somebody waits for a search. It is asked every few ids; once it is False, the ids that follow have no meaning.
IsWanted = Callable[[], bool]
# (the questions of each batch, the seed of samples, whether it is wanted) -> for each batch padded ids
# [questions, hypotheses, max_length], and the scores of all hypotheses.
Searcher = Callable[[Sequence[Rows], int, IsWanted], Sequence[tuple[npt.NDArray[np.integer], Floats]]]


class Model(Protocol):
    """A model that replies, of an attempt or an export. Any thread may call it.

    Its state is of a number of rows, which only the model reads. A row has one hypothesis.
    """

    def encode(self, questions: Rows) -> Any:
        """Return the state before the first token. questions: of each row, at least one id."""

    def step(self, state: Any, last: npt.NDArray[np.int64]) -> tuple[Floats, Any]:
        """Return the logits of the next ids, [rows, vocabulary], and the state after the last ones. last: [rows]."""

    def take(self, states: Sequence[Any], rows: npt.NDArray[np.int64]) -> Any:
        """Return the state of some rows, in this order; a row may be taken several times.

        states: one or two. rows: numbers of those of the first state and of the second behind them.
        """

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Searcher:
        """Return the search of decoding settings, but for their seed."""

    def log_probabilities(self, sources: Rows, targets: Rows, begin: int) -> Floats:
        """Return log P(target | source) of each pair in nats, the end symbol included and n-grams left out: [pairs].

        sources, targets: of a batch of at least one pair, without begin and end symbols, at least one id each. begin:
        BOS for replies to questions, ASK for questions to replies.
        """


class Reply(NamedTuple):
    """A reply that a search has found, and its score; larger is better.

    The score is the log-probability in nats; of several replies, with the penalties and the score of `--rerank`; of
    replies to training questions, see `Replier._retrieved`.
    """

    text: str
    score: float
    ids: Sequence[int] = ()  # without the end
    question: str = ""  # of the training pair that it comes from; "": the model has generated it


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
        if decoding.retrieved and retrieval is None:
            raise UserError(
                f"--retrieve {decoding.retrieve}: this attempt has no index of its training pairs, which train.py "
                "writes with validation (--retrieve-pairs); leave it out"
            )
        self.model, self.decoding = model, decoding
        self._retrieval = retrieval if decoding.retrieved else None
        self._after_any: dict[tuple[int, ...], float] = {}  # of replies, see `_log_probabilities_after_any`
        self._vocabulary, self._max_length = vocabulary, settings.max_length
        self.search = model.searcher(decoding, reply_automaton(decoding, vocabulary, settings.max_length))

    @property
    def batch(self) -> int:
        """The maximum number of questions that are searched at once."""
        return max(1, min(BATCH, HYPOTHESES // self.decoding.hypotheses))

    def replies(self, questions: Rows) -> list[str]:
        """Return the best reply to each question, for any number of questions.

        questions: the ids of each question, at least one, without begin and end symbols.
        """
        return [replies[0].text for replies in self.candidates(questions)]

    def candidates(
        self, questions: Rows, seed: int | None = None, is_wanted: IsWanted = lambda: True
    ) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        questions: as for `replies`. seed: of samples; None: that of the settings. is_wanted: when it becomes
        False, the search ends within a few ids, and no replies are returned.
        """
        questions = [question[: self._max_length] for question in questions]
        seed = self.decoding.seed if seed is None else seed
        if self._retrieval is None:
            return self._generated(questions, seed, is_wanted)
        retrieved = self._retrieved(self._retrieval, questions, is_wanted)
        unanswered = [question for question, replies in zip(questions, retrieved, strict=True) if not replies]
        generated = iter(self._generated(unanswered, seed, is_wanted))
        return [replies or next(generated) for replies in retrieved]

    def _retrieved(self, retrieval: Retrieval, questions: Rows, is_wanted: IsWanted) -> list[list[Reply]]:
        """Return the replies to similar training questions, the best first; none where no question is similar enough.

        The model judges them (Qiu et al., 2017, AliMe Chat): a reply should be probable, more so after this question
        than after any, each by its length; it should have been written to a similar question, and not to many others.
        The weights are those whose best replies were rated best by readers who knew no source (BENCHMARKS.md).
        """
        offers: list[list[Retrieved]] = []
        for question in questions:
            text = self._vocabulary.text(question_of(question, self._vocabulary))
            nearest = retrieval.nearest(text, self.decoding.retrieved)
            is_near = bool(nearest) and nearest[0].similarity >= LEAST_SIMILARITY
            offers.append([x for x in nearest if is_near and self._is_allowed(x.ids, text)])
        replies = [x.ids for of_question in offers for x in of_question]
        sources = [question for question, x in zip(questions, offers, strict=True) for _ in x]
        after_question = log_probabilities(self.model, sources, replies, BOS, is_wanted)
        after_any = self._log_probabilities_after_any(replies, is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        lengths = np.array([len(reply) + 1 for reply in replies])
        by_model = iter(((after_question - GENERIC * after_any) / lengths).tolist())

        def scored(x: Retrieved) -> Reply:
            score = next(by_model) + SIMILARITY * x.similarity - FREQUENCY * math.log(x.pairs)
            return Reply(before_stop(self._vocabulary.text(x.ids), self.decoding.stop), score, x.ids, x.question)

        return [sorted(map(scored, of_question), key=lambda reply: -reply.score) for of_question in offers]

    def _is_allowed(self, reply: Sequence[int], question: str) -> bool:
        """Return whether a reply of a person keeps to the settings of any reply, and does not repeat the question."""
        text, decoding = self._vocabulary.text(reply), self.decoding
        is_whole = bool(before_stop(text, decoding.stop)) and len(reply) >= decoding.min_reply_length
        return is_whole and not any(word in text for word in decoding.ban) and not is_copy(text, question)

    def _log_probabilities_after_any(self, replies: Rows, is_wanted: IsWanted) -> Floats:
        """Return the log-probability of replies after an empty question, which is computed once for each: [replies]."""
        if len(self._after_any) > MOST_REMEMBERED:
            self._after_any = {}
        known = self._after_any
        new = [reply for reply in dict.fromkeys(map(tuple, replies)) if reply not in known]
        values = log_probabilities(self.model, [EMPTY_QUESTION] * len(new), new, BOS, is_wanted)
        if not is_wanted():
            return np.zeros(len(replies), np.float32)
        known.update(zip(new, values.tolist(), strict=True))
        return np.array([known[tuple(reply)] for reply in replies], np.float32)

    def _generated(self, questions: Rows, seed: int, is_wanted: IsWanted) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first."""
        batches = [questions[start : start + self.batch] for start in range(0, len(questions), self.batch)]
        hypotheses = self.search(batches, seed, is_wanted)
        if not is_wanted():
            return [[] for _ in questions]
        candidates = [self._distinct(*row) for batch in hypotheses for row in zip(*batch, strict=True)]
        return self._reranked(questions, candidates, is_wanted) if self.decoding.rerank else candidates

    def _distinct(self, hypotheses: npt.NDArray[np.integer], scores: Floats) -> list[Reply]:
        """Return the distinct texts of a question's hypotheses, each with its best score, the best first.

        An empty text, before a stop text, is left out if there is another.

        hypotheses: [hypotheses, max_length], padded. scores: [hypotheses].
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
        return [reply for reply in replies if reply.text] or replies

    def _reranked(self, questions: Rows, candidates: list[list[Reply]], is_wanted: IsWanted) -> list[list[Reply]]:
        """Add the weighted log-probability of the question given the reply to the scores (Li et al., 2016, MMI-bidi).

        It is divided by the length penalty of the question, so that one weight serves questions of all lengths.
        """
        reply_ids = [self._before_stop(reply) for of_question in candidates for reply in of_question]
        alone = [question_of(question, self._vocabulary) for question in questions]
        of_pairs = [question for question, replies in zip(alone, candidates, strict=True) for _ in replies]
        values = log_probabilities(self.model, reply_ids, of_pairs, ASK, is_wanted)
        values = values / length_penalty(np.array([len(question) + 1 for question in of_pairs]), self.decoding)
        added = iter(((self.decoding.rerank or 0) * values).tolist())
        scored = [
            [reply._replace(score=reply.score + next(added)) for reply in of_question] for of_question in candidates
        ]
        return [sorted(of_question, key=lambda reply: -reply.score) for of_question in scored]

    def _before_stop(self, reply: Reply) -> Sequence[int]:
        """Return the ids of a reply before a stop text, at least one."""
        text = ReplyText(self._vocabulary, self.decoding.stop, list(reply.ids))
        text.read(is_whole=True)
        return reply.ids[: max(1, text.ids_before_stop())] if text.is_stopped else reply.ids


def log_probabilities(model: Model, sources: Rows, targets: Rows, begin: int, is_wanted: IsWanted) -> Floats:
    """Return `Model.log_probabilities` of any number of pairs, computed in batches; any once they are not wanted."""
    values = np.zeros(len(sources), np.float32)
    order = np.lexsort([[*map(len, sources)], [*map(len, targets)]])
    while len(order) and is_wanted():  # the longest targets first, so that a batch is bounded by its first row
        number = max(1, POSITIONS // (len(targets[order[-1]]) + 1))
        order, rows = order[:-number], order[-number:]
        values[rows] = model.log_probabilities([sources[i] for i in rows], [targets[i] for i in rows], begin)
    return values


def is_copy(reply: str, question: str) -> bool:
    """Return whether a reply repeats the question, or nearly."""
    return SequenceMatcher(None, reply, question, autojunk=False).ratio() > MOST_ALIKE


def padded(rows: Rows) -> npt.NDArray[np.int32]:
    """Return rows of ids as an array, with PAD on the right."""
    ragged = Ragged.from_rows(rows)
    return pad(ragged, np.arange(len(ragged)), int(ragged.lengths.max()))


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
    if decoding.coverage_penalty and settings.attention == "none":
        raise UserError("--coverage-penalty: this attempt has no attention; leave it out")


def reply_automaton(decoding: DecodingSettings, vocabulary: Vocabulary, max_length: int) -> BoundedAutomaton:
    """Return the automaton of replies: complete characters, and no banned words.

    max_length: of a reply, in tokens. Raises UserError for banned words that leave no reply.
    """
    automaton = Automaton(*spelling_automaton(vocabulary))
    if decoding.ban:
        automaton = without_words(automaton, vocabulary, decoding.ban, max_length)
    return BoundedAutomaton(automaton, max_length)

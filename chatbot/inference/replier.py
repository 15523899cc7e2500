"""Replies to questions that are given as ids: a search by a model, and the ranking of what it finds.

It needs no TensorFlow.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.history import question_of
from chatbot.corpus.reading.display import counted
from chatbot.corpus.vocabulary import EOS, PAD, Vocabulary, spelling_automaton
from chatbot.decoding.automaton import Automaton, BoundedAutomaton, without_words
from chatbot.errors import UserError
from chatbot.inference.questions import Ticket
from chatbot.inference.reply_text import ReplyText, before_stop

# The maximum number of questions in a batch, and of their hypotheses, which bound the memory of a search.
BATCH, HYPOTHESES = 64, 640

Rows = Sequence[Sequence[int]]  # ids of each
Floats = npt.NDArray[np.float32]
# The questions of a batch, and their tickets or none.
Batch = tuple[Rows, Sequence[Ticket]]
# (batches, the seed of samples) -> for each batch padded ids [questions, hypotheses, max_length], and the scores of
# all hypotheses.
Searcher = Callable[[Sequence[Batch], int], Sequence[tuple[npt.NDArray[np.integer], Floats]]]


class RowModel(Protocol):
    """A model whose state is of a number of rows, which only the model reads. A row has one hypothesis."""

    def encode(self, questions: Rows) -> Any:
        """Return the state before the first token. questions: of each row, at least one id."""

    def step(self, state: Any, last: npt.NDArray[np.int64]) -> tuple[Floats, Any]:
        """Return the logits of the next ids, [rows, vocabulary], and the state after the last ones. last: [rows]."""

    def take(self, states: Sequence[Any], rows: npt.NDArray[np.int64]) -> Any:
        """Return the state of some rows, in this order; a row may be taken several times.

        states: one or two. rows: numbers of those of the first state and of the second behind them.
        """


class Model(RowModel, Protocol):
    """A model that replies, of an attempt or an export. Any thread may call it."""

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Searcher:
        """Return the search of decoding settings, but for their seed.

        When a ticket is cancelled, the search for its question ends early; then what is found for it is of no use.
        """

    def reverse_scores(self, replies: Rows, questions: Rows, tickets: Sequence[Ticket] = ()) -> Floats:
        """Return log P(question | reply) of each pair in nats, the end symbol included and n-grams left out: [pairs].

        replies, questions: without begin and end symbols, at least one id each. tickets: one for each pair, or none; a
        pair has any score if its ticket was cancelled before its batch.
        """


Reverse = Callable[[Rows, Rows, Sequence[Ticket]], Floats]  # `Model.reverse_scores`


class Reply(NamedTuple):
    """A reply and its score; larger is better.

    The score is the log-probability in nats, as the decoding settings change it. If the search finds several replies,
    it is divided by the length penalty, and the coverage penalty and the score of `--rerank` are added.
    """

    text: str
    score: float


class Candidate(NamedTuple):
    """A reply that a search has found."""

    text: str
    score: float
    ids: list[int]  # without the end


class Ranking:
    """Ranks what the search of the decoding settings has found."""

    def __init__(self, decoding: DecodingSettings, vocabulary: Vocabulary) -> None:
        self._decoding, self._vocabulary = decoding, vocabulary

    def replies(
        self,
        questions: Sequence[Sequence[int]],
        ids: Sequence[npt.NDArray[np.integer]],
        scores: Sequence[npt.NDArray[np.float32]],
        reverse: Reverse | None,
        tickets: Sequence[Ticket] = (),
    ) -> list[list[Reply]]:
        """Return the distinct replies to each question, the best first.

        questions: the ids of each. ids: of the hypotheses, [hypotheses, max_length] for each question, padded. scores:
        [hypotheses] for each. reverse: for `--rerank`. tickets: one for each; no replies are ranked for one that is
        cancelled.
        """
        found = [
            [] if tickets and tickets[number].cancelled.is_set() else self._distinct(row[0], self._penalised(*row))
            for number, row in enumerate(zip(ids, scores, strict=True))
        ]
        if reverse is not None:
            found = self._reranked(questions, found, reverse, tickets)
        return [[Reply(text, score) for text, score, _ in replies] for replies in found]

    def _penalised(self, ids: npt.NDArray[np.integer], scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the scores, with the length penalty if several candidates were sampled; beam search has applied it."""
        if not self._decoding.compares_samples:
            return scores
        return scores / self._penalty((ids != PAD).sum(axis=-1))

    def _penalty(self, lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Return the length penalty of Wu et al. (2016), as in beam search."""
        return (((5 + lengths) / 6) ** self._decoding.length_penalty).astype(np.float32)

    def _distinct(self, hypotheses: npt.NDArray[np.integer], scores: npt.NDArray[np.float32]) -> list[Candidate]:
        """Return the distinct texts of a question's hypotheses, each with its best score, the best first.

        Two hypotheses have the same text if a word is one token in the first, and characters or bytes in the second.
        An empty text, before a stop text, is left out if there is another.
        """
        texts: dict[str, Candidate] = {}
        for index in np.argsort(-scores, kind="stable").tolist():
            if np.isfinite(scores[index]):  # -inf if there are fewer hypotheses than beams
                ids = [i for i in hypotheses[index].tolist() if i not in (PAD, EOS)]
                text = before_stop(self._vocabulary.text(ids), self._decoding.stop)
                texts.setdefault(text, Candidate(text, float(scores[index]), ids))
        found = list(texts.values())
        return [reply for reply in found if reply.text] or found

    def _reranked(
        self,
        questions: Sequence[Sequence[int]],
        found: list[list[Candidate]],
        reverse: Reverse,
        tickets: Sequence[Ticket],
    ) -> list[list[Candidate]]:
        """Add the weighted log-probability of the question given the reply to the scores (Li et al., 2016, MMI-bidi).

        It is divided by the length penalty of the question, as the score by that of the reply, so that one weight
        serves questions of all lengths. Without a length penalty both are sums, as in the paper.
        """
        alone = [question_of(question, self._vocabulary) for question in questions]
        pairs = [(reply, question) for question, replies in zip(alone, found, strict=True) for reply in replies]
        of_pairs = [ticket for ticket, replies in zip(tickets, found, strict=True) for _ in replies] if tickets else []
        values = reverse(
            [self._before_stop(reply) for reply, _ in pairs], [question for _, question in pairs], of_pairs
        )
        values = values / self._penalty(np.array([len(question) + 1 for _, question in pairs]))
        rest = iter(((self._decoding.rerank or 0) * values).tolist())
        scored = [[reply._replace(score=reply.score + next(rest)) for reply in replies] for replies in found]
        return [sorted(replies, key=lambda reply: -reply.score) for replies in scored]

    def _before_stop(self, reply: Candidate) -> list[int]:
        """Return the ids of a reply before a stop text, at least one."""
        text = ReplyText(self._vocabulary, self._decoding.stop)
        text.add(reply.ids)
        return reply.ids[: max(1, text.ids_before_stop())] if text.is_stopped else reply.ids


class Replier:
    """Answers questions by the search of the decoding settings, by default greedy search.

    settings: the model's settings. Questions are truncated, and replies end, after settings.max_length tokens.
    Raises UserError for decoding settings that the model or the vocabulary does not admit.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        settings: ModelSettings,
        decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
    ) -> None:
        check_decoding(decoding, vocabulary, settings)
        self.model, self.decoding, self._max_length = model, decoding, settings.max_length
        self._ranking = Ranking(decoding, vocabulary)
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

    def candidates(self, questions: Rows, tickets: Sequence[Ticket] = ()) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        questions: as for `replies`. tickets: one for each. When a ticket is cancelled, the search for replies to its
        question ends within a few tokens, and those that are returned are of no use; there may be none.
        """
        questions = [question[: self._max_length] for question in questions]
        parts = [slice(start, start + self.batch) for start in range(0, len(questions), self.batch)]
        found = self.search([(questions[part], tickets[part]) for part in parts], self.decoding.seed)
        ids, scores = ([row for batch in found for row in batch[side]] for side in (0, 1))
        reverse = self.model.reverse_scores if self.decoding.rerank else None
        return self._ranking.replies(questions, ids, scores, reverse, tickets)


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

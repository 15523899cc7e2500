"""The ranking of the replies that a search has found, and checks of the decoding settings. It needs no TensorFlow."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.history import question_of
from chatbot.corpus.reading.display import counted
from chatbot.corpus.vocabulary import EOS, PAD, Vocabulary, spelling_automaton
from chatbot.decoding.automaton import Automaton, BoundedAutomaton
from chatbot.errors import UserError
from chatbot.inference.banned_words import without_words
from chatbot.inference.questions import Ticket
from chatbot.inference.reply_text import ReplyText, before_stop

# (replies, questions, tickets), ids each -> log P(question | reply) of each pair in nats, [pairs] float32; 0 for pairs
# whose ticket was cancelled before they were computed. There are as many tickets as pairs, or none.
Reverse = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], Sequence[Ticket]], npt.NDArray[np.float32]]


class Reply(NamedTuple):
    """A reply and its score; larger is better.

    The score is the log-probability in nats, as the decoding settings change it. If the search finds several replies,
    it is divided by the length penalty, and the coverage penalty and the score of `--rerank` are added.
    """

    text: str
    score: float


class Found(NamedTuple):
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

    def _distinct(self, hypotheses: npt.NDArray[np.integer], scores: npt.NDArray[np.float32]) -> list[Found]:
        """Return the distinct texts of a question's hypotheses, each with its best score, the best first.

        Two hypotheses have the same text if a word is one token in the first, and characters or bytes in the second.
        An empty text, before a stop text, is left out if there is another.
        """
        texts: dict[str, Found] = {}
        for index in np.argsort(-scores, kind="stable").tolist():
            if np.isfinite(scores[index]):  # -inf if there are fewer hypotheses than beams
                ids = [i for i in hypotheses[index].tolist() if i not in (PAD, EOS)]
                text = before_stop(self._vocabulary.text(ids), self._decoding.stop)
                texts.setdefault(text, Found(text, float(scores[index]), ids))
        found = list(texts.values())
        return [reply for reply in found if reply.text] or found

    def _reranked(
        self, questions: Sequence[Sequence[int]], found: list[list[Found]], reverse: Reverse, tickets: Sequence[Ticket]
    ) -> list[list[Found]]:
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

    def _before_stop(self, reply: Found) -> list[int]:
        """Return the ids of a reply before a stop text, at least one."""
        text = ReplyText(self._vocabulary, self._decoding.stop)
        text.add(reply.ids)
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

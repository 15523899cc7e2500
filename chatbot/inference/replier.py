"""Replies of a model to questions, given as ids."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.batching.batches import pad
from chatbot.corpus.encoding.history import question_of
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.spelling import spelling_automaton
from chatbot.corpus.encoding.vocabulary import EOS, PAD, Vocabulary
from chatbot.corpus.text.cleaning import cleaner
from chatbot.decoding.step import Automaton
from chatbot.errors import UserError
from chatbot.inference.banned_words import without_words
from chatbot.inference.random_numbers import uniform_numbers
from chatbot.inference.reply_search import ReplySearch
from chatbot.inference.reverse_scorer import ReverseScorer
from chatbot.inference.stop_texts import before_stop
from chatbot.inference.streaming import TokenStream, pieces
from chatbot.model.saved import Trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, specs_of

# The maximum number of questions in a batch, and of their hypotheses, which bound the memory of a search.
BATCH, HYPOTHESES = 64, 640


class Reply(NamedTuple):
    """A reply and its score; larger is better.

    The score is the log-probability in nats, as the decoding settings change it. If the search finds several replies,
    it is divided by the length penalty, and the coverage penalty and the score of `--rerank` are added.
    """

    text: str
    score: float


class Replier:
    """Answers questions by the search of the decoding settings, by default greedy search.

    The search is traced once for questions of any number and length. `Responder` answers questions in text form, and
    `replier_of` makes the replier of a trained model.

    settings: the model's settings. Questions are truncated, and replies end, after settings.max_length tokens.
    Raises UserError for decoding settings that the model or the vocabulary does not admit.
    """

    def __init__(
        self,
        model: Seq2Seq,
        vocabulary: Vocabulary,
        settings: ModelSettings,
        decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
    ) -> None:
        _check(decoding, vocabulary, settings)
        self.decoding = decoding
        self._vocabulary = vocabulary
        self._max_length = settings.max_length
        automaton = Automaton(*spelling_automaton(vocabulary))
        if decoding.ban:
            automaton = without_words(automaton, vocabulary, decoding.ban, settings.max_length)
        self._search = ReplySearch(model, automaton, settings.max_length, decoding)
        self._sequences = model.sequences
        specs = [specs_of(model.sequences(np.ones([1, 1])))]
        if decoding.samples:
            specs.append(tf.TensorSpec([None, decoding.hypotheses, settings.max_length], tf.float32))

        def decode(*arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
            return self._search(*arguments)

        self._specs = specs
        self._stream: TokenStream | None = None
        self._decode = tf.function(decode, input_signature=specs, autograph=False)
        self._reverse = ReverseScorer(model) if decoding.rerank else None

    @property
    def traces(self) -> int:
        """The number of times that the search was traced."""
        return self._decode.experimental_get_tracing_count()

    def replies(self, questions: Sequence[Sequence[int]]) -> list[str]:
        """Return the best reply to each question, for any number of questions.

        questions: the ids of each question, at least one, without begin and end symbols.
        """
        return [replies[0].text for replies in self.candidates(questions)]

    def candidates(self, questions: Sequence[Sequence[int]]) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        questions: as for `replies`.
        """
        questions = [question[: self._max_length] for question in questions]
        # The candidates of a question are a batch, of which only unfinished ones are computed.
        size = 1 if self.decoding.compares_samples else max(1, min(BATCH, HYPOTHESES // self.decoding.beams))
        found: list[list[_Found]] = []
        for start in range(0, len(questions), size):
            ids, scores = self._decode(*self._arguments(questions[start : start + size]))
            found += [self._distinct(*row) for row in zip(ids.numpy(), self._ranked(ids, scores), strict=True)]
        if self._reverse is not None:
            found = self._reranked(questions, found)
        return [[Reply(text, score) for text, score, _ in replies] for replies in found]

    def stream(self, question: Sequence[int]) -> Iterator[str]:
        """Yield the best reply to a question in pieces, as its tokens are found.

        If the search compares several replies, the reply is one piece. A reply without text has no pieces.
        """
        if self.decoding.hypotheses > 1:
            yield from filter(None, self.replies([question]))
            return
        if self._stream is None:
            self._stream = TokenStream(self._search, self._specs)
        prefixes = self._stream.ids(self._arguments([question[: self._max_length]]))
        yield from pieces(prefixes, self._vocabulary, self.decoding.stop)

    def _arguments(self, questions: Sequence[Sequence[int]]) -> list[Sequences | npt.NDArray[np.float32]]:
        """Return the arguments of the search."""
        rows = Ragged.from_rows(questions)
        assert rows.lengths.all(), "an empty question"
        source = self._sequences(pad(rows, np.arange(len(rows)), int(rows.lengths.max())))
        if not self.decoding.samples:
            return [source]
        return [source, uniform_numbers(self.decoding.seed, questions, self.decoding.hypotheses, self._max_length)]

    def _ranked(self, ids: tf.Tensor, scores: tf.Tensor) -> npt.NDArray[np.float32]:
        """Return the scores [questions, hypotheses], with the length penalty if there are several candidates."""
        values: npt.NDArray[np.float32] = scores.numpy()
        if not self.decoding.compares_samples:
            return values
        return values / self._penalty((ids.numpy() != PAD).sum(axis=-1))

    def _penalty(self, lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Return the length penalty of Wu et al. (2016), as in beam search."""
        return (((5 + lengths) / 6) ** self.decoding.length_penalty).astype(np.float32)

    def _distinct(self, hypotheses: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]) -> "list[_Found]":
        """Return the distinct texts of a question's hypotheses, each with its best score, the best first.

        Two hypotheses have the same text if a word is one token in the first, and characters or bytes in the second.
        An empty text, before a stop text, is left out if there is another.
        """
        texts: dict[str, _Found] = {}
        for index in np.argsort(-scores, kind="stable").tolist():
            if np.isfinite(scores[index]):  # -inf if there are fewer hypotheses than beams
                ids = [i for i in hypotheses[index].tolist() if i not in (PAD, EOS)]
                text = before_stop(self._vocabulary.text(ids), self.decoding.stop)
                texts.setdefault(text, _Found(text, float(scores[index]), ids))
        found = list(texts.values())
        return [reply for reply in found if reply.text] or found

    def _reranked(self, questions: Sequence[Sequence[int]], found: "list[list[_Found]]") -> "list[list[_Found]]":
        """Add the weighted log-probability of the question given the reply to the scores (Li et al., 2016, MMI-bidi).

        It is divided by the length penalty of the question, as the score by that of the reply, so that one weight
        serves questions of all lengths. Without a length penalty both are sums, as in the paper.
        """
        assert self._reverse is not None
        alone = [question_of(question, self._vocabulary) for question in questions]
        pairs = [(reply, question) for question, replies in zip(alone, found, strict=True) for reply in replies]
        values = self._reverse([self._before_stop(reply) for reply, _ in pairs], [question for _, question in pairs])
        values = values / self._penalty(np.array([len(question) + 1 for _, question in pairs]))
        rest = iter(((self.decoding.rerank or 0) * values).tolist())
        scored = [[reply._replace(score=reply.score + next(rest)) for reply in replies] for replies in found]
        return [sorted(replies, key=lambda reply: -reply.score) for replies in scored]

    def _before_stop(self, reply: "_Found") -> list[int]:
        """Return the ids of a reply before a stop text, at least one."""
        ids, text = reply.ids, self._vocabulary.text
        if reply.text == text(ids):
            return ids
        within = (n for n in range(len(ids), 1, -1) if reply.text.startswith(text(ids[:n])))
        return ids[: next(within, 1)]


class _Found(NamedTuple):
    text: str
    score: float
    ids: list[int]


def replier_of(trained: Trained, decoding: DecodingSettings) -> Replier:
    """Return the replier of a trained model. Banned words are cleaned as the training pairs were.

    Raises UserError for decoding settings that the model does not admit.
    """
    if decoding.rerank and trained.settings.learning.both_directions != "on":
        raise UserError(
            "--rerank: this attempt did not learn to generate questions from answers; train another with "
            "--both-directions on"
        )
    clean = cleaner(trained.settings.corpus.clean)
    ban = tuple(dict.fromkeys(map(clean, decoding.ban)))
    if "" in ban:
        raise UserError("--ban: a word without visible characters; remove it")
    return Replier(trained.model, trained.vocabulary, trained.settings.model, dataclasses.replace(decoding, ban=ban))


def _check(decoding: DecodingSettings, vocabulary: Vocabulary, settings: ModelSettings) -> None:
    if decoding.top_k is not None and decoding.top_k > len(vocabulary):
        raise UserError(f"--top-k {decoding.top_k}: the vocabulary has {len(vocabulary):,} tokens; give at most that")
    if decoding.min_reply_length > settings.max_length:
        raise UserError(
            f"--min-reply-length {decoding.min_reply_length}: replies of this attempt have at most "
            f"{settings.max_length} tokens (--max-length); give at most that"
        )
    if decoding.coverage_penalty and settings.attention == "none":
        raise UserError("--coverage-penalty: this attempt has no attention; leave it out")

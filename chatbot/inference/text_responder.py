"""Replies to any text, whatever computes them. It needs no TensorFlow."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.history import source_of
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.inference.questions import Asked, Message, Piece, Question, Ticket
from chatbot.inference.ranking import Reply
from chatbot.inference.rows import RowBatch, RowModel, RuleBook
from chatbot.inference.word_attention import Weights, WordAttention, by_word

# The reply to a text without visible characters.
EMPTY_QUESTION_REPLY = "（请说点什么 / please say something）"
# Longer texts are truncated before they are tokenised: the model reads only --max-length tokens.
MAX_CHARACTERS = 2000


class IdReplier(Protocol):
    """Replies to questions given as ids, of at least one id each; see `chatbot.inference.replier.Replier`."""

    decoding: DecodingSettings

    @property
    def batch(self) -> int:
        """The maximum number of questions that are searched at once."""

    def replies(self, questions: Sequence[Sequence[int]]) -> list[str]:
        """Return the best reply to each question."""

    def candidates(self, questions: Sequence[Sequence[int]], tickets: Sequence[Ticket] = ()) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        tickets: one for each question, or none. When one is cancelled, the search for its question ends early.
        """

    def row_model(self) -> RowModel:
        """Return the model that generates token by token, the same one each time."""


# (the ids of a question, of a reply) -> their attention weights, [reply + 1, question]
AttentionWeights = Callable[[Sequence[int], Sequence[int]], Weights]


class TextResponder:
    """Answers questions in text form, each by one line of text.

    settings: those of the attempt. attention: None for a model that shows no attention.
    """

    def __init__(
        self, replier: IdReplier, vocabulary: Vocabulary, settings: Settings, attention: AttentionWeights | None
    ) -> None:
        self.replier: IdReplier = replier
        self.decoding = replier.decoding
        self.vocabulary, self.settings, self._attention = vocabulary, settings, attention
        self._tokens = tokens_of(settings.corpus)
        self._max_length = settings.model.max_length
        self._turns = settings.encoding.history
        self.rule_book = RuleBook(vocabulary, settings)

    def reply(self, text: str, history: Sequence[str] = ()) -> str:
        """Return the best reply, one line; for a text without visible characters, `EMPTY_QUESTION_REPLY`.

        history: the turns before the text, the oldest first, alternately of the user and of the chatbot. A model that
        was trained with --history N reads the last N of them.
        """
        return self.replies([text], [history])[0]

    def replies(self, texts: Sequence[str], histories: Sequence[Sequence[str]] | None = None) -> list[str]:
        """Return the reply to each text. Texts are batched, which is faster than one `reply` per text.

        histories: the turns before each text; None: there are none.
        """
        histories = [()] * len(texts) if histories is None else histories
        questions = [self.source(text, history) for text, history in zip(texts, histories, strict=True)]
        replies = iter(self.replier.replies([question for question in questions if question]))
        return [next(replies) if question else EMPTY_QUESTION_REPLY for question in questions]

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return which words of a text and of the turns before it each word of a reply to it looked at.

        None for a model that shows no attention. text: with visible characters.
        """
        if self._attention is None:
            return None
        question, ids = self.source(text, history)[: self._max_length], self.ids(reply)
        return by_word(self.vocabulary, question, ids, self._attention(question, ids))

    def stream(self, text: str, history: Sequence[str] = ()) -> Iterator[str]:
        """Yield the reply to a text in pieces, as its tokens are found; joined, they are `reply(text, history)`."""
        source = self.source(text, history)[: self._max_length]
        if not source:
            yield EMPTY_QUESTION_REPLY
        elif self.decoding.hypotheses > 1:  # compared when all are complete
            yield from filter(None, self.replier.replies([source]))
        else:
            yield from self._pieces(source)

    def _pieces(self, source: Sequence[int]) -> Iterator[str]:
        """Yield the reply to a question in pieces. source: its ids, at least one."""
        messages: list[Message] = []
        asked, batch = (
            Asked(Question(""), messages.append, Ticket()),
            RowBatch(self.replier.row_model(), self._max_length),
        )
        batch.change([self.rule_book.started(asked, source, self.decoding)])
        while batch.unfinished:
            batch.advance()
            for message in messages:
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Piece) and message.text:
                    yield message.text
            messages.clear()

    def n_best(self, text: str, history: Sequence[str] = ()) -> list[Reply]:
        """Return at most as many distinct replies as the setting n_best says, with their scores, the best first.

        A text without visible characters has one, `EMPTY_QUESTION_REPLY`. history: as in `reply`.
        """
        question = self.source(text, history)
        if not question:
            return [Reply(EMPTY_QUESTION_REPLY, 0.0)]
        return self.replier.candidates([question])[0][: self.decoding.n_best]

    def varied(self, seed: int, n_best: int) -> "TextResponder":
        """Return a responder with another seed and number of replies, which shares what was computed or traced.

        Raises UserError for more replies than the search finds.
        """
        other = copy.copy(self)
        other.replier = copy.copy(self.replier)
        other.decoding = dataclasses.replace(self.decoding, seed=seed, n_best=n_best)
        other.replier.decoding = other.decoding
        return other

    def source(self, text: str, history: Sequence[str]) -> list[int]:
        """Return the ids of a text and the turns before it, as the model reads them; [] if the text has no ids.

        Nothing is read of the turns up to the last one without visible characters.
        """
        turns = [self.ids(text)]
        for turn in reversed(history[max(0, len(history) - self._turns) :]):
            if not (ids := self.ids(turn)):
                break
            turns.insert(0, ids)
        return source_of(turns, self.vocabulary, self._max_length) if turns[-1] else []

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, cleaned and tokenised as the training pairs were; [] without visible characters."""
        return self.vocabulary.ids(self._tokens(text[:MAX_CHARACTERS]))

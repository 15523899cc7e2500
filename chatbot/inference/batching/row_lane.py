"""Answers questions by one reply each that is generated token by token, of many questions at once."""

from collections.abc import Callable, Sequence

import numpy as np

from chatbot.inference.batching.asked import Asked
from chatbot.inference.batching.question import Piece
from chatbot.inference.batching.reply import UnfinishedReply
from chatbot.inference.batching.row_batch import RowBatch, Started
from chatbot.inference.batching.rules import RuleBook
from chatbot.inference.batching.waiting import Waiting
from chatbot.inference.random_numbers import uniform_numbers
from chatbot.inference.row_model import RowModel
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder

# The largest number of replies in a batch, but for a question that wants more.
REPLIES = 128
# Questions join a batch when they are a quarter of it, or after as many tokens: to encode one costs as much time as to
# encode several.
JOINING_SHARE, JOINING_TOKENS = 0.25, 4


class RowLane:
    """Answers questions with settings of one reply, by continuous batching: replies begin and end at any time.

    lane: the number of its questions in `waiting`. row_model: called when there is a question.
    """

    def __init__(
        self, responder: TextResponder, waiting: Waiting, lane: int, row_model: Callable[[], RowModel]
    ) -> None:
        self._responder, self._waiting, self._lane = responder, waiting, lane
        self._row_model = row_model
        self._max_length = responder.settings.model.max_length
        self._rule_book = RuleBook(responder.vocabulary, responder.settings)
        self._batch: RowBatch | None = None
        self._tokens = 0  # of a reply, since questions last joined

    @property
    def active(self) -> int:
        """The number of questions that are being answered."""
        return 0 if self._batch is None else len(self._batch.asked)

    def run(self) -> None:
        """Answer questions until `waiting` is closed and none is left."""
        while (taken := self.joining()) is not None:
            self.step(taken)

    def joining(self) -> list[Asked] | None:
        """Return the questions that join now. None if there is nothing to do any more."""
        number = 0 if self._batch is None else self._batch.unfinished
        self._tokens += 1
        if self._tokens < JOINING_TOKENS and self._waiting.number(self._lane) < JOINING_SHARE * number:
            return []
        self._tokens = 0
        return self._waiting.take(self._lane, REPLIES - number, blocks=not number)

    def step(self, taken: Sequence[Asked]) -> None:
        """Begin replies to these questions, and add a token to each unfinished reply."""
        try:
            if self._batch is None:
                self._batch = RowBatch(self._row_model(), self._max_length)
            self._add(self._batch, [started for asked in taken if (started := self._started(asked)) is not None])
            if self._batch.unfinished:
                self._batch.advance()
        except Exception as error:  # the next questions are answered
            for asked in taken if self._batch is None else [*self._batch.asked, *taken]:
                asked.give(error)
            if self._batch is not None:
                self._batch.clear()

    def _add(self, batch: RowBatch, started: list[Started]) -> None:
        try:
            batch.change(started)
        except Exception as error:
            if len(started) == 0:
                raise
            if len(started) == 1:
                started[0].replies[0].asked.give(error)
            else:  # one of them may be the reason
                for one in started:
                    self._add(batch, [one])

    def _started(self, asked: Asked) -> Started | None:
        """Return the replies to a question before their first id; None if it is answered."""
        question, responder = asked.question, self._responder
        try:
            source = responder.source(question.text, question.history)[: self._max_length]
            if not source:
                give_empty_question_replies(asked)
                return None
            decoding = responder.decoding if question.decoding is None else question.decoding
            rules = self._rule_book.rules_of(decoding)
            limit = min(question.max_tokens or self._max_length, self._max_length)
            uniform = np.zeros((question.replies, self._max_length), np.float32)
            if decoding.samples:
                seed = decoding.seed if question.seed is None else question.seed
                (uniform,) = uniform_numbers(seed, [source], question.replies, self._max_length)
            asked.question_tokens, asked.unfinished = len(source), question.replies
            stops = (*decoding.stop, *question.stop)
            replies = [
                UnfinishedReply(asked, number, rules, stops, limit, responder.vocabulary)
                for number in range(question.replies)
            ]
            return Started(source, replies, uniform)
        except Exception as error:  # of this question: the others go on
            asked.give(error)
            return None


def give_empty_question_replies(asked: Asked) -> None:
    """Give the replies to a question without visible characters."""
    asked.unfinished = asked.question.replies
    for number in range(asked.question.replies):
        asked.give_reply(Piece(number, EMPTY_QUESTION_REPLY, finish_reason="stop"), 0)

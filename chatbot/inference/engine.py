"""Answers questions of many threads in batches, in threads of its own."""

import threading
import time
from collections.abc import Sequence

import numpy as np

from chatbot.corpus.vocabulary import BOS
from chatbot.inference.questions import FinishReason, Piece, Question, Receive, Request, Ticket, TokenLogProb
from chatbot.inference.replier import Reply
from chatbot.inference.rows import NewReplies, RowBatch, token_log_prob
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder
from chatbot.inference.waiting import BusyError, Waiting

__all__ = ["BusyError", "Engine", "Receive"]

ROWS, SEARCHES = range(2)
# Threads that search: with half of the cores for each operation, two keep all cores busy.
SEARCH_THREADS = 2
# The largest number of replies in a batch, but for a question that wants more.
REPLIES = 128
# Questions join a batch when they are a quarter of it, or after as many tokens: to encode one costs as much time as to
# encode several.
JOINING_SHARE, JOINING_TOKENS = 0.25, 4
# The share of a batch's time to wait for as many questions as it had: clients ask again when they have their replies,
# and to begin with the first of them would leave the others for the batch after it.
PATIENCE = 0.1


class Engine:
    """Answers the questions of many threads by one model, those that arrive together in batches.

        engine = Engine(responder)
        ticket = engine.submit(Question("你好"), receive)  # receive gets pieces, at last a Usage or an exception
        ticket.cancel()  # when who asked has gone, or a time limit is over; receive gets nothing more
        engine.close()

    One thread generates all replies of one hypothesis token by token: questions join between two tokens. The others run
    the engine's search if it compares hypotheses. The reply to a question does not depend on the other questions. The
    first question of a kind takes seconds longer, since graphs are traced.

    responder: its search is that of questions without settings. most_waiting: of a client, see `Waiting`.
    """

    def __init__(self, responder: TextResponder, most_waiting: int = 256) -> None:
        self._waiting = Waiting(2, most_waiting)
        self._own_lane = SEARCHES if responder.decoding.hypotheses > 1 else ROWS
        self._rows = RowLane(responder, self._waiting, ROWS)
        self._searches = [SearchLane(responder, self._waiting, SEARCHES) for _ in range(SEARCH_THREADS)]
        self._threads = [threading.Thread(target=self._rows.run, name="engine: rows", daemon=True)]
        self._threads += [
            threading.Thread(target=lane.run, args=[SEARCH_THREADS], name="engine: searches", daemon=True)
            for lane in self._searches
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, question: Question, receive: Receive) -> Ticket:
        """Give a question to the engine, from any thread. Raises BusyError if too many wait, or after `close`."""
        request = Request(question, receive, Ticket())
        self._waiting.put(self._own_lane if question.decoding is None else ROWS, request)
        return request.ticket

    @property
    def waiting(self) -> int:
        """The number of questions that wait."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """The number of questions that are being answered."""
        return self._rows.active + sum(lane.active for lane in self._searches)

    def close(self) -> None:
        """Answer the questions that were submitted, and end the threads."""
        self._waiting.close()
        for thread in self._threads:
            thread.join()


class RowLane:
    """Answers questions with settings of one reply, by continuous batching: replies begin and end at any time.

    lane: the number of its questions in `waiting`.
    """

    def __init__(self, responder: TextResponder, waiting: Waiting, lane: int) -> None:
        self._responder, self._waiting, self._lane = responder, waiting, lane
        self._max_length = responder.settings.model.max_length
        self._batch = RowBatch(responder.replier.model, self._max_length)
        self._tokens = 0  # of a reply, since questions last joined

    @property
    def active(self) -> int:
        """The number of questions that are being answered."""
        return len(self._batch.requests)

    def run(self) -> None:
        """Answer questions until `waiting` is closed and none is left."""
        while (requests := self.joining()) is not None:
            self.step(requests)

    def joining(self) -> list[Request] | None:
        """Return the questions that join now. None if there is nothing to do any more."""
        number = self._batch.unfinished
        self._tokens += 1
        if self._tokens < JOINING_TOKENS and self._waiting.number(self._lane) < JOINING_SHARE * number:
            return []
        self._tokens = 0
        return self._waiting.take(self._lane, REPLIES - number, blocks=not number)

    def step(self, requests: Sequence[Request]) -> None:
        """Begin replies to these questions, and add a token to each unfinished reply."""
        try:
            self._batch.change([replies for request in requests if (replies := self._begin(request)) is not None])
            if self._batch.unfinished:
                self._batch.advance()
        except Exception as error:  # the next questions are answered
            for request in [*self._batch.requests, *requests]:
                request.give(error)
            self._batch.clear()

    def _begin(self, request: Request) -> NewReplies | None:
        """Return the replies to a question before their first id; None if it is answered."""
        question, responder = request.question, self._responder
        try:
            source = responder.source(question.text, question.history)[: self._max_length]
            if not source:
                give_empty_question_replies(request)
                return None
            return responder.rule_book.begin(request, source, question.decoding or responder.decoding)
        except Exception as error:  # of this question: the others go on
            request.give(error)
            return None


def give_empty_question_replies(request: Request) -> None:
    """Give the replies to a question without visible characters."""
    request.unfinished = request.question.replies
    for number in range(request.question.replies):
        request.give_reply(Piece(number, EMPTY_QUESTION_REPLY, finish_reason="stop"), 0)


class SearchLane:
    """Answers questions by the search of the responder; the arguments are those of `RowLane`."""

    def __init__(self, responder: TextResponder, waiting: Waiting, lane: int) -> None:
        self._responder, self._waiting, self._lane = responder, waiting, lane
        self._max_length = responder.settings.model.max_length
        self.active = 0  # the number of questions that are being answered

    def run(self, threads: int = 1) -> None:
        """Answer questions until `waiting` is closed and none is left. threads: those that take from the same lane."""
        number, patience = 1, 0.0
        most = max(1, self._responder.replier.batch // threads)
        while (requests := self._waiting.take(self._lane, most, True, number, patience)) is not None:
            began = time.monotonic()
            self.active = number = len(requests)
            self._answer(requests)
            self.active = 0
            patience = PATIENCE * (time.monotonic() - began)

    def _answer(self, requests: Sequence[Request]) -> None:
        try:
            questions = [self._responder.source(one.question.text, one.question.history) for one in requests]
            tickets = [one.ticket for one, question in zip(requests, questions, strict=True) if question]
            candidates = iter(
                self._responder.replier.candidates([question for question in questions if question], tickets)
            )
            for one, question in zip(requests, questions, strict=True):
                if question:
                    self._give(one, question[: self._max_length], next(candidates))
                else:
                    give_empty_question_replies(one)
        except Exception as error:  # the next questions are answered
            for one in requests:
                one.give(error)

    def _give(self, request: Request, source: Sequence[int], replies: Sequence[Reply]) -> None:
        """Give the best replies, as many as the question wants. Their tokens are those of their texts."""
        question, responder = request.question, self._responder
        best = replies[: question.replies]
        request.question_tokens, request.reply_tokens, request.unfinished = len(source), 0, len(best)
        for number, reply in enumerate(best):
            text, ids = reply.text, responder.ids(reply.text)
            is_cut = question.max_tokens is not None and len(ids) > question.max_tokens
            if is_cut:
                ids = ids[: question.max_tokens]
                text = responder.vocabulary.text(ids)
            tokens = self._tokens(request, source, ids)
            reason: FinishReason = "length" if is_cut or len(ids) >= self._max_length else "stop"
            request.give_reply(Piece(number, text, tokens, reason), len(ids))

    def _tokens(self, request: Request, source: Sequence[int], ids: Sequence[int]) -> tuple[TokenLogProb, ...]:
        """Return the log-probabilities of a reply that was found, if they are needed."""
        if (top := request.question.top_log_probs) is None:
            return ()
        model, tokens = self._responder.replier.model, []
        state = model.encode([source])
        for last, token in zip((BOS, *ids), ids, strict=False):
            if request.is_over:
                break
            logits, state = model.step(state, np.array([last]))
            tokens.append(token_log_prob(self._responder.vocabulary, token, logits[0], top))
        return tuple(tokens)

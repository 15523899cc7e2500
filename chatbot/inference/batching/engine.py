"""Answers questions in a thread of its own."""

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from chatbot.inference.batching.question import Piece, Question, Usage
from chatbot.inference.text_responder import TextResponder

# Gets the pieces of the replies, then their usage, or an exception. It is called in the engine's thread.
Receive = Callable[[Piece | Usage | Exception], None]


class BusyError(Exception):
    """As many questions wait as may."""


class Ticket:
    """A question that was given to the engine."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop computing replies to the question: nobody waits for them. Any thread may call this."""
        self.cancelled.set()


class _Waiting(NamedTuple):
    question: Question
    receive: Receive
    ticket: Ticket


class Engine:
    """Answers the questions of many threads by one model.

    responder: its search is that of questions without settings. most_waiting: the number of questions that may wait.
    """

    def __init__(self, responder: TextResponder, most_waiting: int = 256) -> None:
        self._responder = responder
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(most_waiting)
        self._thread = threading.Thread(target=self._answer_all, name="engine", daemon=True)
        self._thread.start()

    def submit(self, question: Question, receive: Receive) -> Ticket:
        """Give a question to the engine, from any thread. Raises BusyError if too many wait."""
        ticket = Ticket()
        try:
            self._waiting.put_nowait(_Waiting(question, receive, ticket))
        except queue.Full:
            raise BusyError from None
        return ticket

    @property
    def waiting(self) -> int:
        """The number of questions that wait."""
        return self._waiting.qsize()

    def close(self) -> None:
        """Answer the questions that wait, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _answer_all(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            if not waiting.ticket.cancelled.is_set():
                self._answer(*waiting)

    def _answer(self, question: Question, receive: Receive, ticket: Ticket) -> None:
        try:
            number = 0
            for text in self._responder.stream(question.text, question.history):
                if ticket.cancelled.is_set():
                    return
                number += 1
                receive(Piece(0, text))
            receive(Piece(0, "", finish_reason="stop"))
            receive(Usage(len(self._responder.source(question.text, question.history)), number))
        except Exception as error:  # the caller gets it; the next question is answered
            receive(error)

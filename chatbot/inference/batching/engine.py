"""Answers questions of many threads in batches, in threads of its own."""

import threading

from chatbot.inference.batching.asked import Asked, Receive
from chatbot.inference.batching.question import Question
from chatbot.inference.batching.row_lane import RowLane
from chatbot.inference.batching.search_lane import SearchLane
from chatbot.inference.batching.waiting import BusyError, Waiting
from chatbot.inference.row_model import RowModel
from chatbot.inference.text_responder import TextResponder
from chatbot.inference.ticket import Ticket

__all__ = ["BusyError", "Engine", "Receive"]

ROWS, SEARCHES = range(2)
# Threads that search: with half of the cores for each operation, two keep all cores busy.
SEARCH_THREADS = 2


class Engine:
    """Answers the questions of many threads by one model, those that arrive together in batches.

    Example:

        engine = Engine(responder)
        ticket = engine.submit(Question("你好"), receive)  # receive gets pieces, at last a Usage or an exception
        ticket.cancel()  # when who asked has gone, or a time limit is over; receive gets nothing more
        engine.close()

    One thread generates replies of one hypothesis token by token: those of questions with settings of their own, and
    of the engine's search if it finds one reply. Questions join between two tokens, and leave when they are finished.
    The reply to a question, its settings and its seed does not depend on the others. The other threads run the engine's
    search if it compares hypotheses. All share the processor, so none blocks the others for long.

    The first question of a kind takes seconds longer, since graphs are traced: a server asks one before it is ready.

    responder: its search is that of questions without settings. most_waiting, most_characters: the number of questions
    of a client that may wait while nobody else's do, and of their characters, histories included; see `Waiting`.
    """

    def __init__(self, responder: TextResponder, most_waiting: int = 256, most_characters: int = 1_000_000) -> None:
        self._waiting = Waiting(2, most_waiting, most_characters)
        self._own_lane = SEARCHES if responder.decoding.hypotheses > 1 else ROWS
        self._replier = responder.replier
        self._row_model: RowModel | None = None
        self._making = threading.Lock()
        self._rows = RowLane(responder, self._waiting, ROWS, self._made_row_model)
        self._searches = [
            SearchLane(responder, self._waiting, SEARCHES, self._made_row_model) for _ in range(SEARCH_THREADS)
        ]
        self._threads = [threading.Thread(target=self._rows.run, name="engine: rows", daemon=True)]
        self._threads += [
            threading.Thread(target=lane.run, args=[SEARCH_THREADS], name="engine: searches", daemon=True)
            for lane in self._searches
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, question: Question, receive: Receive) -> Ticket:
        """Give a question to the engine, from any thread. Raises BusyError if too many wait, or after `close`."""
        asked = Asked(question, receive, Ticket())
        self._waiting.put(self._own_lane if question.decoding is None else ROWS, asked)
        return asked.ticket

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

    def _made_row_model(self) -> RowModel:
        with self._making:
            if self._row_model is None:
                self._row_model = self._replier.row_model()
            return self._row_model

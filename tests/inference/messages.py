"""What the engine gives to those who ask."""

import dataclasses
import queue

from chatbot.inference.engine import Engine, RowLane, SearchLane, Waiting
from chatbot.inference.questions import Piece, Question, Request, TokenLogProb, Usage
from chatbot.inference.text_responder import TextResponder

Message = Piece | Usage | Exception


@dataclasses.dataclass
class Answer:
    """All messages about a question, put together."""

    texts: list[str]
    reasons: list[str | None]
    tokens: list[list[TokenLogProb]]
    scores: list[float | None]
    read: list[str]
    usage: Usage | None
    pieces: int

    def __init__(self, messages: list[Message]) -> None:
        *pieces, usage = messages
        assert all(isinstance(piece, Piece) for piece in pieces), messages
        assert isinstance(usage, Usage), messages
        found = [piece for piece in pieces if isinstance(piece, Piece)]
        number = 1 + max((piece.reply for piece in found), default=-1)
        self.texts = ["".join(x.text for x in found if x.reply == i) for i in range(number)]
        self.tokens = [[token for x in found if x.reply == i for token in x.tokens] for i in range(number)]
        self.reasons = [[x.finish_reason for x in found if x.reply == i][-1] for i in range(number)]
        last = {piece.reply: piece for piece in found}
        self.scores, self.read = ([getattr(last[i], name) for i in range(number)] for name in ("score", "read"))
        self.usage, self.pieces = usage, len(found)
        before_last = [x for x in found if x.finish_reason is None]
        assert len(before_last) == len(found) - number, "each reply has one last piece"
        assert all(x.text for x in before_last)


def asked(question: Question, messages: list[Message]) -> Request:
    """A question whose messages are put into a list."""
    return Request(question, messages.append)


def answers_of(responder: TextResponder, *questions: Question) -> list[list[Message]]:
    """What is given for these questions by the loops of an engine, one after the other and without threads."""
    messages: list[list[Message]] = [[] for _ in questions]
    rows, searches = Waiting(100), Waiting(100)
    for question, own in zip(questions, messages, strict=True):
        lane = rows if (question.decoding or responder.decoding).streams else searches
        lane.put(asked(question, own))
    rows.close()
    searches.close()
    RowLane(responder, rows).run()
    SearchLane(responder, searches, 64).run()
    return messages


def messages_of(engine: Engine, question: Question, timeout: float = 240) -> list[Message]:
    """Ask the engine, and wait for the last message."""
    got: queue.Queue[Message] = queue.Queue()
    engine.submit(question, got.put)
    messages = [got.get(timeout=timeout)]
    while isinstance(messages[-1], Piece):
        messages.append(got.get(timeout=timeout))
    return messages


def answer_of(engine: Engine | TextResponder, question: Question) -> Answer:
    """Ask an engine, or its loops alone, and wait for the answer."""
    return Answer(messages_of(engine, question) if isinstance(engine, Engine) else answers_of(engine, question)[0])

"""What the engine gives to those who ask."""

import dataclasses
import queue
from collections.abc import Sequence

from chatbot.decoding.reply_text import Reply
from chatbot.inference.engine import Engine, SearchWorker, StreamWorker
from chatbot.inference.request import Message, Piece, Question, Request, TokenLogProb, Usage
from chatbot.inference.request_queue import RequestQueue
from chatbot.inference.text_responder import TextResponder

# No visible character.
EMPTY = ["", " \t\u3000", "\x00\x07\u200b"]
UNUSUAL = [
    "\x1b[31mred",
    "你好" * 5000,
    "😀👨\u200d👩\u200d👧 🇨🇳",
    "妳好嗎？請問國語怎麼說",
    "How are you today? I'm fine.",
    "\u202eabc",
    "<eos> <pad>",
]


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
        if isinstance(usage, Exception):
            raise usage
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
    rows, searches = RequestQueue(100), RequestQueue(100)
    for question, own in zip(questions, messages, strict=True):
        streams = (question.decoding or responder.decoding).streams and not question.n_best
        worker = rows if streams else searches
        worker.put(asked(question, own))
    rows.close()
    searches.close()
    StreamWorker(responder, rows).run()
    SearchWorker(responder, searches, 64).run()
    return messages


def reply_of(responder: TextResponder, text: str, history: Sequence[str] = (), last_reply: str | None = None) -> str:
    """The reply to a text, which is the same whether it is given in pieces or as one."""
    if last_reply is None:
        last_reply = history[-1] if history else ""
    asked = [Question(text, tuple(history), last_reply, streams=streams) for streams in (False, True)]
    whole, joined = (Answer(messages).texts[0] for messages in answers_of(responder, *asked))
    assert whole == joined
    return whole


def replies_of(responder: TextResponder, texts: Sequence[str]) -> list[str]:
    """The replies to texts, which are asked together."""
    return [Answer(messages).texts[0] for messages in answers_of(responder, *map(Question, texts))]


def best_of(responder: TextResponder, text: str, number: int = 1, history: Sequence[str] = ()) -> list[Reply]:
    """The best replies to a text, as a search finds them."""
    asked = Question(text, tuple(history), history[-1] if history else "", n_best=number)
    return [
        Reply(x.text, x.score or 0.0, (), x.origin) for x in answers_of(responder, asked)[0] if isinstance(x, Piece)
    ]


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

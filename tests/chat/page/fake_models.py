"""Models whose replies are known, behind the real app."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from chatbot.chat.loading import ModelCard
from chatbot.chat.server.models import Models, ServedModel
from chatbot.config.attempts import LAST
from chatbot.config.decoding import DecodingSettings
from chatbot.inference.engine import BusyError
from chatbot.inference.questions import Piece, Question, Receive, Request, TokenLogProb, Usage
from tests.chat.server.fake_models import FakeResponder, served

CARDS = {
    "weibo": ModelCard(
        "weibo", 12_400, ("weibo.conv.gz",), 1_098_275, 3.8712, True, questions=("今天天气真好", "你好")
    ),
    "chatterbot": ModelCard("chatterbot", 1_200, ("ChatterBot",), 529),
}
TURNS = {"weibo": 2, "chatterbot": 0}
REPLIES = {
    "weibo": {
        "你好": ["你好呀，今天过得怎么样？", "你好！", "好久不见，最近忙什么呢"],
        "今天天气真好": ["是啊，出去走走吧", "这样的天气最适合晒太阳了", "我这边还在下雨呢"],
        "晚上吃什么？": ["火锅！天冷了就想吃点热的。", "随便", "你做什么我就吃什么"],
        "What is AI?": ["The science of machines that think.", "A branch of computer science.", "I wish I knew."],
    },
    "chatterbot": {
        "你好": ["你好", "嗨", "您好"],
        "今天天气真好": ["我看不懂.", "是的", "嗯"],
        "晚上吃什么？": ["我不吃东西，我只吃电.", "面条", "米饭"],
    },
}
SLOW, EMPTY, BUSY = "slow", "empty", "busy"
MOST_READ = 1000  # characters of a question
PIECE_SECONDS = 0.02


class FakeEngine:
    """Gives the reply of a table, in pieces of two characters, and to other questions the question itself.

    SLOW has a reply without end, EMPTY an empty one, and for BUSY too many others wait. asked: all questions.
    """

    waiting = 0

    def __init__(self, name: str, pause: float = 0.0) -> None:
        self.asked: list[Question] = []
        self._replies, self._pause = REPLIES[name], pause

    def submit(self, question: Question, receive: Receive) -> Request:
        """Answer in a thread."""
        if question.text == BUSY:
            raise BusyError
        self.asked.append(question)
        request = Request(question, receive)
        threading.Thread(target=self._answer, args=(question, receive, request), daemon=True).start()
        return request

    def close(self) -> None:
        """End."""

    def _answer(self, question: Question, receive: Receive, request: Request) -> None:
        if question.text == SLOW:
            while not request.cancelled.wait(PIECE_SECONDS):
                receive(Piece(0, "again "))
            return
        known = self._replies.get(question.text, [question.text, "second", "third"])
        texts = [""] if question.text == EMPTY else known[: question.replies]
        for number in range(question.replies):
            text = texts[number % len(texts)]
            for start in range(0, len(text), 2):
                time.sleep(self._pause)
                part = text[start : start + 2]
                receive(Piece(number, part, (TokenLogProb(part, -0.5 - number / 4),)))
            origin = FakeResponder().origin(question.text, text)
            read = question.text[-MOST_READ:] if len(question.text) > MOST_READ else ""
            receive(Piece(number, "", finish_reason="stop", origin=origin, read=read))
        receive(Usage(3, 3))


@dataclasses.dataclass
class FakeServer:
    """The models of a server, and their engines."""

    models: Models
    engines: dict[str, FakeEngine]


def fake_server(folder: Path, pause: float = 0.0, names: Sequence[str] = tuple(CARDS)) -> FakeServer:
    """Return models that the names name. pause: seconds before each piece of a reply."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / LAST).touch()
    engines = {name: FakeEngine(name, pause) for name in names}

    def open_model(directory: Path) -> ServedModel:
        name = directory.name
        return served(engines[name], turns=TURNS[name], own=DecodingSettings(), card=CARDS[name])

    models = Models(lambda: {name: folder / name for name in names}, open_model, 2**40)
    for name in names:  # in memory, so that no card is read from files
        models.put(name, folder / name, open_model(folder / name))
    return FakeServer(models, engines)

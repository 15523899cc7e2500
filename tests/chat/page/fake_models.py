"""Models with fixed replies behind the real app."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.chat.server.models import Models
from chatbot.config.decoding import DecodingSettings
from chatbot.inference.request import Message, Piece, Question, TokenLogProb, Usage
from chatbot.inference.request_queue import BusyError
from tests.chat.server.fake_models import Answer, FakeEngine, FakeResponder, fake_models, served

CARDS = {
    "weibo": ModelCard(
        "weibo", 12_400, ("weibo.conv.gz",), 1_098_275, 3.8712, True, questions=("今天天气真好", "你好")
    ),
    "chatterbot": ModelCard("chatterbot", 1_200, ("ChatterBot",), 529),
}
RESPONDER = FakeResponder(DecodingSettings(), DecodingSettings(beam_size=3))
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
MAX_READ = 1000  # characters of a question
PIECE_SECONDS = 0.02


def replies_of(name: str) -> Answer:
    """Reply from a table in pieces of two characters, and to other questions with the question itself.

    SLOW has an endless reply, EMPTY an empty one, and BUSY raises BusyError.
    """

    def answer(question: Question) -> Iterator[Message]:
        if question.text == BUSY:
            raise BusyError
        return pieces(question)

    def pieces(question: Question) -> Iterator[Message]:
        while question.text == SLOW:
            time.sleep(PIECE_SECONDS)
            yield Piece(0, "again ")
        known = REPLIES[name].get(question.text, [question.text, "second", "third"])
        texts = [""] if question.text == EMPTY else known[: question.replies]
        for number in range(question.replies):
            text = texts[number % len(texts)]
            for start in range(0, len(text), 2):
                part = text[start : start + 2]
                yield Piece(number, part, (TokenLogProb(part, -0.5 - number / 4),))
            origin = FakeResponder().origin(question.text, text)
            read = question.text[-MAX_READ:] if len(question.text) > MAX_READ else ""
            yield Piece(number, "", finish_reason="stop", origin=origin, read=read)
        yield Usage(3, 3)

    return answer


def fake_server(folder: Path, names: Sequence[str] = tuple(CARDS)) -> tuple[Models, dict[str, FakeEngine]]:
    """Return the named models of a server, and their engines."""
    engines = {name: FakeEngine(replies_of(name), has_thread=True) for name in names}

    def open_model(directory: Path) -> LoadedModel:
        name = directory.name
        return served(engines[name], turns=TURNS[name], responder=RESPONDER, directory=str(directory), card=CARDS[name])

    models = fake_models(engines, folder, 2**40, open_model)
    for name in names:  # in memory, so that no card is read from files
        models.put(name, open_model(folder / name))
    return models, engines

"""Models of a server whose engine answers at once, without computing anything."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.chat.server.models import Models, ServedModel
from chatbot.chat.server.questions import Searches
from chatbot.config.decoding import DecodingSettings
from chatbot.inference.engine import BusyError
from chatbot.inference.questions import Piece, Question, Receive, Request, TokenLogProb, Usage
from chatbot.inference.reply_text import Origin
from chatbot.inference.text_responder import END, TextResponder, WordAttention

# What the engine receives for a question, in this order.
Answer = Callable[[Question], list[Piece | Usage | Exception]]


def echo(question: Question) -> list[Piece | Usage | Exception]:
    """Each reply is the question, in two pieces."""
    half = len(question.text) // 2
    items: list[Piece | Usage | Exception] = []
    for reply in range(question.replies):
        for text in (question.text[:half], question.text[half:]):
            top = tuple((token, -1.0) for token in "ab"[: question.top_log_probs or 0])
            tokens = (TokenLogProb(text, -0.5, top),) if question.top_log_probs is not None else ()
            items.append(Piece(reply, text, tokens))
        items.append(Piece(reply, "", finish_reason="length" if question.max_tokens == 1 else "stop"))
    return [*items, Usage(len(question.text), question.replies)]


class FakeEngine:
    """An engine that answers in the thread that asks. silent: it never answers; most: questions before BusyError."""

    def __init__(self, answer: Answer = echo, silent: bool = False, most: int = 10**9) -> None:
        self.answer, self.silent, self.most = answer, silent, most
        self.questions: list[Question] = []
        self.requests: list[Request] = []
        self.closed = threading.Event()
        self.waiting = 0

    def submit(self, question: Question, receive: Receive) -> Request:
        """Answer."""
        assert not self.closed.is_set()
        if len(self.questions) >= self.most:
            raise BusyError
        self.questions.append(question)
        self.requests.append(Request(question, receive))
        for item in [] if self.silent else self.answer(question):
            receive(item)
        return self.requests[-1]

    def close(self) -> None:
        """End."""
        self.closed.set()


class FakeResponder:
    """Shows attention on the diagonal. Words are characters."""

    def source(self, text: str, history: Sequence[str]) -> list[int]:
        """Return some ids of a text."""
        return [*range(len(text))]

    def origin(self, text: str, reply: str, history: Sequence[str] = ()) -> Origin:
        """Return the question of a training pair for a reply that has an x."""
        return Origin("What is x?" if "x" in reply else "")

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return the attention; None for a reply that has an x."""
        if "x" in reply:
            return None
        question, words = [*history, *text], [*reply, END]
        distance = np.abs(np.linspace(0, 1, len(words))[:, None] - np.linspace(0, 1, len(question))[None])
        weights = np.exp(-9 * distance).astype(np.float32)
        return WordAttention(question, words, weights / weights.sum(axis=1, keepdims=True))


def served(
    engine: Any,
    *,
    turns: int = 2,
    own: DecodingSettings | None = None,
    step: int = 1,
    directory: str = "a",
    card: ModelCard | None = None,
) -> ServedModel:
    """A model with a fake engine and a fake responder. own: the search of the model."""
    responder = cast(TextResponder, FakeResponder())
    card = card or ModelCard(directory, step, ("pairs.tsv",))
    loaded = LoadedModel(Path(directory), card, turns, lambda decoding: responder)
    searches = Searches(DecodingSettings(), own or DecodingSettings(beam_size=5))
    return ServedModel(engine, responder, loaded, turns, searches)


def fake_models(engines: Mapping[str, FakeEngine], folder: Path, limit: int = 10**12, **changes: Any) -> Models:
    """Models with these engines. folder: gets an empty directory for each."""
    directories = {name: folder / name for name in engines}
    for directory in directories.values():
        directory.mkdir(exist_ok=True)
        (directory / "last").write_text('{"checkpoint": "ckpt-1", "step": 1}', encoding="utf-8")

    def open_model(directory: Path) -> ServedModel:
        return served(engines[directory.name], directory=directory.name, **changes)

    return Models(lambda: directories, open_model, limit)

"""Models and engines without weights, with fixed replies and recorded questions."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from chatbot.attempts.checkpoint import checkpoint_path, write_checkpoint
from chatbot.attempts.files import LAST
from chatbot.chat.loading import LoadedModel, ModelCard, checkpoint_version
from chatbot.chat.server.models import Models, Open
from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.reply_text import END, Origin, WordAttention
from chatbot.inference.replier import Source
from chatbot.inference.request import Message, Piece, Question, Receive, Request, TokenLogProb, Usage
from chatbot.inference.request_queue import BusyError
from chatbot.inference.text_responder import TextResponder

# What the engine receives for a question, in this order.
Answer = Callable[[Question], Iterable[Message]]


def echo(question: Question) -> Iterator[Message]:
    """Reply with the question, in two pieces."""
    half = len(question.text) // 2
    for reply in range(question.replies):
        for text in (question.text[:half], question.text[half:]):
            top = tuple((token, -1.0) for token in "ab"[: question.top_log_probs or 0])
            tokens = (TokenLogProb(text, -0.5, top),) if question.top_log_probs is not None else ()
            yield Piece(reply, text, tokens)
        yield Piece(reply, "", finish_reason="length" if question.max_tokens == 1 else "stop")
    yield Usage(len(question.text), question.replies)


def nothing(question: Question) -> Iterator[Message]:
    """Never answer the question."""
    yield from ()


class FakeEngine:
    """An engine that answers in the calling thread or in one of its own, until the request is cancelled.

    most: the number of questions before BusyError. questions, requests: the received ones.
    """

    waiting = 0

    def __init__(self, answer: Answer = echo, most: int = 10**9, has_thread: bool = False) -> None:
        self.answer, self.most, self._has_thread = answer, most, has_thread
        self.questions: list[Question] = []
        self.requests: list[Request] = []
        self.closed = threading.Event()

    def submit(self, question: Question, receive: Receive) -> Request:
        """Answer."""
        assert not self.closed.is_set()
        if len(self.questions) >= self.most:
            raise BusyError
        messages, request = self.answer(question), Request(question, receive)
        self.questions.append(question)
        self.requests.append(request)
        if self._has_thread:
            threading.Thread(target=self._give, args=(messages, request), daemon=True).start()
        else:
            self._give(messages, request)
        return request

    def _give(self, messages: Iterable[Message], request: Request) -> None:
        for message in messages:
            if request.cancelled.is_set():
                return
            request.receive(message)

    def warm_up(self, searches: object = ()) -> None:
        """Answer one question."""
        self.submit(Question("a"), lambda _: None)

    def close(self) -> None:
        """End."""
        self.closed.set()


class FakeResponder:
    """A responder with diagonal attention and characters as words."""

    def __init__(
        self,
        chosen: DecodingSettings = DecodingSettings(),  # noqa: B008
        decoding: DecodingSettings = DecodingSettings(beam_size=5),  # noqa: B008
        retrieval: bool | None = None,
    ) -> None:
        self.chosen = chosen
        self.decoding = decoding
        self.retrieval = retrieval

    def source(self, text: str, history: Sequence[str]) -> Source:
        """Return ids for a text."""
        return Source(range(len(text)), range(len(text)))

    def origin(self, text: str, reply: str, history: Sequence[str] = ()) -> Origin:
        """Return a training question for replies with an x."""
        return Origin("What is x?" if "x" in reply else "")

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return the attention; None for replies with an x."""
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
    responder: FakeResponder = FakeResponder(),  # noqa: B008  # immutable
    step: int = 1,
    directory: str = "a",
    card: ModelCard | None = None,
) -> LoadedModel:
    """Return a model with a fake engine and a fake responder."""
    path = Path(directory)
    card = card or ModelCard(path.name, step, ("pairs.tsv",))
    return LoadedModel(path, card, turns, cast(TextResponder, responder), engine, checkpoint_version(path))


def fake_models(
    engines: Mapping[str, Any], folder: Path, limit: int = 10**12, open_model: Open | None = None
) -> Models:
    """Return models with these engines, each with a directory in `folder`."""
    directories = {name: folder / name for name in engines}
    for directory in directories.values():
        directory.mkdir(exist_ok=True)
        (directory / "last").write_text('{"checkpoint": "ckpt-1", "step": 1}', encoding="utf-8")

    def open_with_engine(directory: Path) -> LoadedModel:
        return served(engines[directory.name], directory=str(directory))

    return Models(lambda: directories, open_model or open_with_engine, limit)


def point(directory: Path, step: int, whole: bool = True) -> None:
    """Give an attempt a newer checkpoint. whole: whether its manifest is valid."""
    write_checkpoint(checkpoint_path(directory, step), {}, {})
    if not whole:
        (directory / f"ckpt-{step}.json").write_text("{", encoding="utf-8")
    (directory / LAST).write_text(f'{{"checkpoint": "ckpt-{step}", "step": {step}, "x": "{"y" * step}"}}')

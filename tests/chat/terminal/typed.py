"""The chat in the test's process, with lines instead of keys."""

import dataclasses
import io
import itertools
import signal
from collections.abc import Iterable, Iterator, Sequence

import pytest

from chatbot.chat.loading import LoadedModel
from chatbot.chat.start import chat
from chatbot.config.chat import CHAT
from chatbot.inference.engine import Engine
from tests.chat.terminal.fake_model import fake_model

Line = str | type[BaseException]
Printed = pytest.CaptureFixture[str]


class Keyboard(io.StringIO):
    """The standard input of a terminal."""

    def isatty(self) -> bool:
        return True


def typed(model: LoadedModel, lines: Iterable[Line], *flags: str) -> int:
    """Chat with a model and return the exit code. An exception stands for a key, such as Ctrl-C."""
    left = itertools.chain(lines, [EOFError])

    def read_line() -> str:
        line = next(left)
        if not isinstance(line, str):
            raise line
        return line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.chat.terminal.prompt.line_reader", lambda: read_line)
        return _chat(model, Keyboard(), flags)


def printed(capsys: Printed, lines: list[Line], *flags: str, turns: int = 0) -> tuple[list[str], list[str]]:
    """Return the lines on standard output, and on standard error after the introduction."""
    assert typed(fake_model(turns), lines, *flags) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    return out.splitlines(), err.rstrip("\n").splitlines()[3 if turns else 2 :]


def session(model: LoadedModel, lines: Iterable[Line], *flags: str) -> str:
    """Return the whole content of the terminal, including the typed lines and ^C."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)

    def shown() -> Iterator[Line]:
        for line in lines:
            print(f"> {line if isinstance(line, str) else '^C'}".rstrip(), file=screen)
            yield line

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        patch.setattr("sys.stderr", screen)
        assert typed(model, shown(), *flags) == 0
    screen.seek(0)
    return screen.read()


def piped(model: LoadedModel, text: str, *flags: str) -> int:
    """Chat with a model through a pipe, and return the exit code."""
    return _chat(model, io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"), flags)


def _chat(model: LoadedModel, stdin: object, flags: Sequence[str]) -> int:
    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", stdin)
        settings = CHAT.parse(flags)
        try:
            return chat(dataclasses.replace(model, engine=Engine(model.responder)), settings)
        finally:
            signal.signal(signal.SIGINT, before)

"""Starts a chat in a terminal or through a pipe, the reply to one question, or the server."""

import collections
import contextlib
import functools
import io
import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import TextIO

from chatbot.chat.loading import CurrentModel, LoadedModel, limit_threads, load_chosen
from chatbot.config.chat import ChatSettings
from chatbot.display import visible
from chatbot.errors import UserError, as_user_errors, in_c_locale
from chatbot.inference.request import Question
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY


def start(settings: ChatSettings) -> int:
    """Talk, answer or serve, as the settings say, and return the exit code. Raises UserError."""
    limit_threads()
    if settings.server.serve is not None:
        try:
            from chatbot.chat.server.run import serve
        except ModuleNotFoundError as error:
            raise UserError(f'--serve: {error}; run `make serve`, or pip install "duida[serve]"') from error
        return serve(settings)
    model = load_chosen(settings.attempt, settings.export, settings.decoding)
    settings.turns_of(model.turns)  # or UserError
    return ask(model, settings) if settings.question else chat(model, settings)


def chat(model: LoadedModel, settings: ChatSettings) -> int:
    """Talk until the input ends, or until Ctrl-C is pressed twice at the prompt. Returns the exit code, always 0."""
    if sys.stdin is None:  # no console, as under Windows' pythonw
        return 0
    set_encoding(sys.stdin)
    set_encoding(sys.stdout)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(newline="\n")  # Windows would end a line at a lone "\r", too
    read = settings.turns_of(model.turns)
    try:
        with contextlib.closing(CurrentModel(model, settings.decoding, settings.follow)) as current:
            if sys.stdin.isatty():
                _converse(current, read)
            else:
                answer_lines(current, read, sys.stdin, sys.stdout)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return 0


def ask(model: LoadedModel, settings: ChatSettings) -> int:
    """Print the reply to the question of the settings, as text or as JSON. Returns the exit code, always 0."""
    set_encoding(sys.stdout)
    with contextlib.closing(model.engine):
        (reply,) = model.engine.pieces(Question(settings.question, n_best=1))
    if settings.json:
        value = {"reply": reply.text, "score": reply.score or 0.0, "looked_up": reply.origin.question or None}
        print(json.dumps(value, ensure_ascii=False))
    else:
        print(visible(reply.text) if sys.stdout.isatty() else reply.text)
    return 0


def _converse(model: CurrentModel, read: int) -> None:
    from chatbot.chat.terminal.commands import respond
    from chatbot.chat.terminal.prompt import line_reader
    from chatbot.chat.terminal.session import Screen, Session

    screen = Screen()
    session = Session(model, read, screen)
    session.introduce()
    try:
        "中文".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        screen.note(
            f"This terminal is in {sys.stdout.encoding}, without Chinese; LC_ALL=C.UTF-8 gives it all characters."
        )
    screen.note("/help lists the commands; Ctrl-D or /exit exits.")
    read_line = line_reader()
    interrupted = False
    while not session.finished:
        try:
            line = read_line()
        except EOFError:
            return
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            screen.note("Ctrl-C again, Ctrl-D or /exit exits.")
            continue
        interrupted = False
        try:
            with as_user_errors():
                respond(session, line)
        except UserError as error:
            screen.error(error)
        except KeyboardInterrupt:
            screen.note("Stopped.")


def answer_lines(model: CurrentModel, history: int, questions: Iterable[str], replies: TextIO) -> None:
    """Write one reply line for each question, the best one, before the next question is read.

    A line without visible characters ends the conversation; the next line begins another. history: the maximum number
    of turns that the model reads before a question.
    """
    turns: collections.deque[str] = collections.deque(maxlen=history)
    in_terminal = replies.isatty()
    for question in questions:
        model.update(functools.partial(print, file=sys.stderr, flush=True))
        last_reply = turns[-1] if turns else ""
        reply = "".join(piece.text for piece in model.pieces(question, turns, last_reply, streams=False))
        print(visible(reply) if in_terminal else reply, file=replies, flush=True)
        if reply == EMPTY_QUESTION_REPLY:
            turns.clear()
        else:
            turns.extend((question, reply))


def set_encoding(stream: TextIO | None) -> None:
    """Set a pipe or a file to UTF-8 on every system. A console keeps its encoding, which may be GBK, but not ASCII.

    PYTHONIOENCODING in the environment takes precedence. Characters that cannot be encoded or decoded are replaced.
    """
    if isinstance(stream, io.TextIOWrapper):
        keep = (stream.isatty() and not in_c_locale(stream)) or "PYTHONIOENCODING" in os.environ
        stream.reconfigure(encoding=None if keep else "utf-8", errors="replace")

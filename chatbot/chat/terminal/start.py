"""Starts the chat: in a terminal if standard input is one, otherwise as a pipe."""

import collections
import functools
import io
import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import TextIO

from chatbot.chat.loading import LoadedModel
from chatbot.chat.terminal.session import CurrentModel, Session
from chatbot.config.chat import ChatSettings
from chatbot.display import visible
from chatbot.errors import UserError, as_user_errors, in_c_locale
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY


def chat(model: LoadedModel, settings: ChatSettings) -> int:
    """Talk until the input ends, or until Ctrl-C is pressed twice at the prompt. Returns the exit code, always 0.

    Raises UserError for settings that the model does not admit.
    """
    if sys.stdin is None:  # no console, as under Windows' pythonw
        return 0
    set_encoding(sys.stdin)
    set_encoding(sys.stdout)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.stdin.isatty():
            _converse(model, settings)
        else:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(newline="\n")  # Windows would end a line at a lone "\r", too
            current = CurrentModel(model, settings.decoding, settings.follow)
            answer_lines(current, settings.turns_of(model.turns), sys.stdin, sys.stdout)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return 0


def ask(model: LoadedModel, settings: ChatSettings) -> int:
    """Print the reply to the question of the settings, as text or as JSON. Returns the exit code, always 0.

    Raises UserError for settings that the model does not admit.
    """
    set_encoding(sys.stdout)
    responder = model.responder_of(settings.decoding)
    reply, *_ = responder.n_best(settings.question, number=1)
    if settings.json:
        value = {"reply": reply.text, "score": reply.score, "looked_up": reply.origin.question or None}
        print(json.dumps(value, ensure_ascii=False))
    else:
        print(visible(reply.text) if sys.stdout.isatty() else reply.text)
    return 0


def _converse(model: LoadedModel, settings: ChatSettings) -> None:
    from chatbot.chat.terminal.commands import respond
    from chatbot.chat.terminal.prompt import line_reader
    from chatbot.chat.terminal.screen import Screen

    screen = Screen()
    session = Session(model, settings, screen)
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
        reply = model.responder().reply(question, list(turns))
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

"""Runs a chat in a terminal or a pipe, answers the question on the command line, or starts the server."""

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
    """Start the chat, answer one question, or start the server, depending on the settings. Returns the exit code."""
    limit_threads()
    if settings.server.serve is not None:
        try:
            from chatbot.chat.server.run import serve
        except ModuleNotFoundError as error:
            raise UserError(f'--serve: {error}; run `make serve`, or pip install ".[serve]"') from error
        return serve(settings)
    model = load_chosen(settings.attempt, settings.export, settings.decoding)
    settings.turns_of(model.turns)  # Raises UserError if --history is too large for the model.
    return ask(model, settings) if settings.question else chat(model, settings)


def chat(model: LoadedModel, settings: ChatSettings) -> int:
    """Chat until the input ends, or until the user presses Ctrl-C twice at the prompt. Always returns exit code 0."""
    if sys.stdin is None:  # There is no console, for example under pythonw on Windows.
        return 0
    set_encoding(sys.stdin)
    set_encoding(sys.stdout)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(newline="\n")  # By default, Python on Windows also ends lines at a lone "\r".
    max_turns = settings.turns_of(model.turns)
    try:
        with contextlib.closing(CurrentModel(model, settings.decoding, settings.follow)) as current:
            if sys.stdin.isatty():
                _run_terminal(current, max_turns)
            else:
                answer_lines(current, max_turns, sys.stdin, sys.stdout)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return 0


def ask(model: LoadedModel, settings: ChatSettings) -> int:
    """Print the reply to the question on the command line, as text or JSON. Always returns exit code 0."""
    set_encoding(sys.stdout)
    with contextlib.closing(model.engine):
        (reply,) = model.engine.pieces(Question(settings.question, n_best=1))
    if settings.json:
        value = {"reply": reply.text, "score": reply.score or 0.0, "looked_up": reply.origin.question or None}
        print(json.dumps(value, ensure_ascii=False))
    else:
        print(visible(reply.text) if sys.stdout.isatty() else reply.text)
    return 0


def _run_terminal(model: CurrentModel, max_turns: int) -> None:
    from chatbot.chat.terminal.commands import handle_line
    from chatbot.chat.terminal.prompt import line_reader
    from chatbot.chat.terminal.session import Screen, Session

    screen = Screen()
    session = Session(model, max_turns, screen)
    session.introduce()
    try:
        "中文".encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        screen.note(f"The terminal's encoding {sys.stdout.encoding} does not support Chinese; set LC_ALL=C.UTF-8.")
    screen.note("/help lists all commands; Ctrl-D or /exit ends the chat.")
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
            screen.note("Press Ctrl-C again or Ctrl-D to end the chat.")
            continue
        interrupted = False
        try:
            with as_user_errors():
                handle_line(session, line)
        except UserError as error:
            screen.error(error)
        except KeyboardInterrupt:
            screen.note("Stopped.")


def answer_lines(model: CurrentModel, max_turns: int, questions: Iterable[str], replies: TextIO) -> None:
    """Answer one question per line, and write each reply before reading the next question.

    A blank line starts a new conversation.

    Args:
        model: The model that answers.
        max_turns: The maximum number of earlier messages that the model reads along with a question.
        questions: The questions, one per line.
        replies: The stream to write the replies to, one per line.
    """
    turns: collections.deque[str] = collections.deque(maxlen=max_turns)
    in_terminal = replies.isatty()
    for question in questions:
        model.update(functools.partial(print, file=sys.stderr))
        last_reply = turns[-1] if turns else ""
        reply = "".join(piece.text for piece in model.pieces(question, turns, last_reply, streams=False))
        print(visible(reply) if in_terminal else reply, file=replies, flush=True)
        if reply == EMPTY_QUESTION_REPLY:
            turns.clear()
        else:
            turns.extend((question, reply))


def set_encoding(stream: TextIO | None) -> None:
    """Use UTF-8 if a stream is a pipe or a file. A console keeps its own encoding, such as GBK, unless it is ASCII.

    The environment variable PYTHONIOENCODING overrides this choice. Characters that cannot be encoded are replaced.
    """
    if isinstance(stream, io.TextIOWrapper):
        keeps_encoding = (stream.isatty() and not in_c_locale(stream)) or "PYTHONIOENCODING" in os.environ
        stream.reconfigure(encoding=None if keeps_encoding else "utf-8", errors="replace")

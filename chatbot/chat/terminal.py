"""The chat in a terminal, and through a pipe: one reply line for each input line."""

import contextlib
import io
import locale
import os
import signal
import sys
from collections.abc import Iterable
from typing import TextIO

from chatbot.chat.why import NO_ATTENTION, NO_REPLY, table
from chatbot.errors import in_c_locale
from chatbot.inference.responder import EMPTY_QUESTION_REPLY, Responder

EXIT = ("exit", "quit")
WHY = "/why"


def chat(responder: Responder, name: str) -> int:
    """Talk until the input ends or Ctrl-C. Returns the exit code, always 0.

    name: the model's name, shown in the first line.
    """
    if sys.stdin is None:  # no console, as under Windows' pythonw
        return 0
    set_encoding(sys.stdin)
    set_encoding(sys.stdout)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.stdin.isatty():
            _converse(responder, name)
        else:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(newline="\n")  # Windows would end a line at a lone "\r", too
            answer_lines(responder, sys.stdin, sys.stdout)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return 0


def set_encoding(stream: TextIO | None) -> None:
    """Set a pipe or a file to UTF-8 on every system. A console keeps its encoding, which may be GBK, but not ASCII.

    PYTHONIOENCODING in the environment takes precedence. Characters that cannot be encoded or decoded are replaced.
    """
    if isinstance(stream, io.TextIOWrapper):
        keep = (stream.isatty() and not in_c_locale(stream)) or "PYTHONIOENCODING" in os.environ
        stream.reconfigure(encoding=None if keep else "utf-8", errors="replace")


def answer_lines(responder: Responder, questions: Iterable[str], replies: TextIO) -> None:
    """Write one reply line for each question, the best one, before the next question is read."""
    for question in questions:
        print(responder.reply(question), file=replies, flush=True)


def _converse(responder: Responder, name: str) -> None:
    if locale.setlocale(locale.LC_CTYPE) not in ("C", "POSIX"):  # where readline drops the eighth bit of UTF-8
        with contextlib.suppress(ImportError):  # Windows has none
            import readline  # noqa: F401  (gives input() line editing and history)

    print(f"Talking to {name}. {WHY} explains a reply; {EXIT[0]}, {EXIT[1]}, Ctrl-D or Ctrl-C exits.", file=sys.stderr)
    last: tuple[str, str] | None = None
    while True:
        try:
            question = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        if question.strip().lower() in EXIT:
            return
        if question.strip().lower() == WHY:
            print(*explanation(responder, last), sep="\n")
            continue
        reply = _answer(responder, question)
        last = None if reply == EMPTY_QUESTION_REPLY else (question, reply)


def explanation(responder: Responder, last: tuple[str, str] | None) -> list[str]:
    """Return the lines of /why. last: the last question and its reply; None if there is none."""
    if last is None:
        return [NO_REPLY]
    attention = responder.attention(*last)
    return [NO_ATTENTION] if attention is None else table(attention)


def _answer(responder: Responder, question: str) -> str:
    """Print the reply as it is generated; or with --n-best, the best replies, each with its score on a line.

    Returns the best reply.
    """
    if responder.decoding.n_best > 1:
        replies = responder.n_best(question)
        for number, (reply, score) in enumerate(replies, 1):
            print(f"{number}. {reply}  ({score:.2f})")
        return replies[0].text
    pieces: list[str] = []
    for piece in responder.stream(question):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    return "".join(pieces)

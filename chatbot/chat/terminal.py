"""The chat in a terminal, and through a pipe: one reply line for each input line."""

import contextlib
import io
import locale
import os
import signal
import sys
from collections.abc import Iterable
from typing import TextIO

from chatbot.chat.conversation import Conversation
from chatbot.errors import in_c_locale
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder

EXIT = ("exit", "quit")
WHY = "/why"
NEW_CONVERSATION = "/new"


def chat(responder: TextResponder, name: str, history: int = 0) -> int:
    """Talk until the input ends or Ctrl-C. Returns the exit code, always 0.

    name: the model's name, shown in the first line. history: the maximum number of turns to remember.
    """
    if sys.stdin is None:  # no console, as under Windows' pythonw
        return 0
    set_encoding(sys.stdin)
    set_encoding(sys.stdout)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.stdin.isatty():
            _converse(Conversation(responder, history), name)
        else:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(newline="\n")  # Windows would end a line at a lone "\r", too
            answer_lines(Conversation(responder, history), sys.stdin, sys.stdout)
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


def answer_lines(conversation: Conversation, questions: Iterable[str], replies: TextIO) -> None:
    """Write one reply line for each question, the best one, before the next question is read.

    A line without visible characters ends the conversation; the next line begins another.
    """
    for question in questions:
        reply = conversation.reply(question)
        print(reply, file=replies, flush=True)
        if reply == EMPTY_QUESTION_REPLY:
            conversation.turns.clear()


def _converse(conversation: Conversation, name: str) -> None:
    if locale.setlocale(locale.LC_CTYPE) not in ("C", "POSIX"):  # where readline drops the eighth bit of UTF-8
        with contextlib.suppress(ImportError):  # Windows has none
            import readline  # noqa: F401  (gives input() line editing and history)

    remembers = conversation.turns.maxlen or 0
    begin = f"{NEW_CONVERSATION} begins a new conversation; " if remembers else ""
    commands = f"{WHY} explains a reply; {begin}{EXIT[0]}, {EXIT[1]}, Ctrl-D or Ctrl-C exits."
    print(f"Talking to {name}. {commands}", file=sys.stderr)
    while True:
        try:
            question = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        if question.strip().lower() in EXIT:
            return
        if question.strip().lower() == WHY:
            print(*conversation.explanation(), sep="\n")
        elif remembers and question.strip().lower() == NEW_CONVERSATION:
            conversation.turns.clear()
        else:
            _answer(conversation, question)


def _answer(conversation: Conversation, question: str) -> None:
    """Print the reply as it is generated; or with --n-best, the best replies, each with its score on a line."""
    responder, turns = conversation.responder, list(conversation.turns)
    if responder.decoding.n_best > 1:
        replies = responder.n_best(question, turns)
        for number, (reply, score) in enumerate(replies, 1):
            print(f"{number}. {reply}  ({score:.2f})")
        conversation.remember(question, replies[0].text)
        return
    pieces: list[str] = []
    for piece in responder.stream(question, turns):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    conversation.remember(question, "".join(pieces))

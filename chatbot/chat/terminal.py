"""The chat in a terminal, and through a pipe: one reply line for each input line."""

import io
import signal
import sys
from typing import BinaryIO, TextIO

from chatbot.inference.responder import Responder


def chat(responder: Responder, name: str) -> int:
    """Talk until the input ends or Ctrl-C. Returns the exit code, always 0."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    if sys.stdin is None:
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.stdin.isatty():
            _converse(responder, name)
        else:
            answer_lines(responder, sys.stdin.buffer, sys.stdout)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return 0


def answer_lines(responder: Responder, questions: BinaryIO, replies: TextIO) -> None:
    """A reply line for each line; bytes that are not UTF-8 are read as unknown characters."""
    for line in questions:
        print(responder.reply(line.decode("utf-8", errors="replace")), file=replies, flush=True)


def _converse(responder: Responder, name: str) -> None:
    import readline  # noqa: F401  (line editing and history for input())

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    print(f"Talking to {name}. Ctrl-D or Ctrl-C leaves.", file=sys.stderr)
    while True:
        try:
            text = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        print(responder.reply(text))

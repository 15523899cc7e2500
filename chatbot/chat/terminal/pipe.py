"""The chat through a pipe: one reply line for each input line."""

import collections
from collections.abc import Callable, Iterable
from typing import TextIO

from chatbot.chat.visible import visible
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder


def answer_lines(
    responder: Callable[[], TextResponder], history: int, questions: Iterable[str], replies: TextIO
) -> None:
    """Write one reply line for each question, the best one, before the next question is read.

    A line without visible characters ends the conversation; the next line begins another.

    responder: returns the one that answers the next question. history: the maximum number of turns to remember.
    """
    turns: collections.deque[str] = collections.deque(maxlen=history)
    in_terminal = replies.isatty()
    for question in questions:
        reply = responder().reply(question, list(turns))
        print(visible(reply) if in_terminal else reply, file=replies, flush=True)
        if reply == EMPTY_QUESTION_REPLY:
            turns.clear()
        else:
            turns.extend((question, reply))

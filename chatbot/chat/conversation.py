"""A conversation with a model: its last turns, which the next reply may depend on."""

import collections

from chatbot.chat.why import NO_ATTENTION, NO_REPLY, table
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY, TextResponder


class Conversation:
    """The last turns of a chat, which the next reply depends on. history: the maximum number of turns."""

    def __init__(self, responder: TextResponder, history: int) -> None:
        self.responder = responder
        self.turns: collections.deque[str] = collections.deque(maxlen=history)
        self._last: tuple[str, str, list[str]] | None = None  # the last question, its reply, and the turns before

    def reply(self, text: str) -> str:
        """Return the reply, and remember both turns."""
        reply = self.responder.reply(text, list(self.turns))
        self.remember(text, reply)
        return reply

    def remember(self, text: str, reply: str) -> None:
        """Remember a question and its reply, unless the text had no visible characters."""
        if reply == EMPTY_QUESTION_REPLY:
            self._last = None
        else:
            self._last = text, reply, list(self.turns)
            self.turns.extend((text, reply))

    def explanation(self) -> list[str]:
        """Return the lines of /why about the last reply."""
        if self._last is None:
            return [NO_REPLY]
        attention = self.responder.attention(*self._last)
        return [NO_ATTENTION] if attention is None else table(attention)

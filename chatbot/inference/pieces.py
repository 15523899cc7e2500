"""The text of a reply in pieces, while its tokens are generated. It needs no TensorFlow."""

from collections.abc import Iterator, Sequence

from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.inference.stop_texts import before_stop, certain


class ReplyText:
    """The text of a reply in pieces, as soon as later ids cannot change them.

    Held back are the bytes of an incomplete character, spaces at the end, and what may begin a stop text.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._vocabulary, self._stops = vocabulary, stops
        self._text = self._given = ""
        self.is_stopped = False  # whether the text has a stop text

    def add(self, ids: list[int]) -> str:
        """Return the next piece; "" if there is none. ids: all of the reply so far."""
        self._text = self._vocabulary.text(_complete(ids, self._vocabulary))
        self.is_stopped = bool(self._stops) and before_stop(self._text, self._stops) != self._text
        ready = certain(self._text, self._stops)
        if self.is_stopped or len(ready) <= len(self._given):
            return ""
        piece, self._given = ready[len(self._given) :], ready
        return piece

    def rest(self) -> str:
        """Return the last piece of a reply that has ended; it may be ""."""
        return before_stop(self._text, self._stops)[len(self._given) :]


def pieces(prefixes: Iterator[list[int]], vocabulary: Vocabulary, stops: Sequence[str]) -> Iterator[str]:
    """Yield the text of a reply in pieces. prefixes: the ids of the reply after each token."""
    text = ReplyText(vocabulary, stops)
    for ids in prefixes:
        if piece := text.add(ids):
            yield piece
        if text.is_stopped:
            break
    if rest := text.rest():
        yield rest


def _complete(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Return the ids without the bytes of an incomplete character at the end."""
    tail = len(ids)
    while tail and ids[tail - 1] >= vocabulary.first_byte:
        tail -= 1
    try:
        bytes(i - vocabulary.first_byte for i in ids[tail:]).decode()
    except UnicodeDecodeError as error:
        return ids[: tail + error.start]
    return ids

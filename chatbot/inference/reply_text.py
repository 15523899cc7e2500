"""The text of a reply while its ids are generated, up to a stop text. It needs no TensorFlow."""

import codecs
import functools
import math
from collections.abc import Iterable, Sequence

from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import EOS, SPECIALS, Vocabulary


class ReplyText:
    """The text of a reply in pieces, as soon as later ids cannot change them.

    Held back are the bytes of an incomplete character, spaces at the end, and what may begin a stop text. For each id
    only the end of the text is searched for stop texts.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._vocabulary, self._stops = vocabulary, stops
        self._marks = range(vocabulary.first_mark, vocabulary.first_byte)
        self._longest, self._beginnings = max(map(len, stops), default=0), _beginnings(tuple(stops))
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._spaces = "", ""  # spaces: behind the text, a part of it if more follows
        self._given = 0  # characters that pieces have
        self._lengths: list[float] = []  # of the text after each id; inf within a character
        self.is_stopped = False  # whether the text has a stop text; then no further ids are read

    def add(self, ids: Iterable[int]) -> str:
        """Return the next piece; "" if there is none. ids: the next ones of the reply."""
        for i in ids:
            if self.is_stopped:
                break
            end = self._add_text(self._text_of(i).replace(SPACE, " "))
            ends_in_character = self._bytes.getstate()[0] != b""
            self._lengths.append(math.inf if ends_in_character else end)
        if self.is_stopped:
            return ""
        longest = min(self._longest - 1, len(self._text))
        held = next((n for n in range(longest, 0, -1) if self._text[-n:] in self._beginnings), 0)
        piece = self._text[self._given : len(self._text) - held].rstrip()
        self._given += len(piece)
        return piece

    def rest(self) -> str:
        """Return the last piece of a reply that has ended; it may be ""."""
        return self._text[self._given :]

    def ids_before_stop(self) -> int:
        """Return the number of ids whose text is in the reply: all of them without a stop text."""
        return max((n for n, after in enumerate(self._lengths, 1) if after <= len(self._text)), default=0)

    def _text_of(self, i: int) -> str:
        """Return the text that an id adds: for the last byte of a character the character."""
        if i >= self._vocabulary.first_byte:
            return self._bytes.decode(bytes([i - self._vocabulary.first_byte]))
        if i == EOS:
            return self._bytes.decode(b"", final=True)
        if i < len(SPECIALS) or i in self._marks:
            return ""
        return self._bytes.decode(b"", final=True) + self._vocabulary.tokens[i]

    def _add_text(self, added: str) -> int:
        """Add to the text, and return its length, with a stop text that it now has."""
        added = self._spaces + added if self._text else added.lstrip()
        visible = added.rstrip()
        self._spaces = added[len(visible) :]
        searched = max(0, len(self._text) - self._longest + 1)
        self._text += visible
        found = stop_in(self._text, self._stops, searched)
        self.is_stopped = found is not None
        if found is None:
            return len(self._text)
        start, end = found
        self._text = self._text[:start].rstrip()
        return end


def stop_in(text: str, stops: Iterable[str], first: int = 0) -> tuple[int, int] | None:
    """Return the start and the end of the stop text that is complete first, of several the longest; None without one.

    first: the first character that is searched.
    """
    found = [(start, start + len(stop)) for stop in stops if (start := text.find(stop, first)) >= 0]
    return min(found, key=lambda place: (place[1], place[0])) if found else None


def before_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the stop text that is complete first, without spaces at its end.

    The result for a longer text that begins with this one is the same, if there is a stop text in this one.
    """
    found = stop_in(text, stops)
    return text if found is None else text[: found[0]].rstrip()


@functools.lru_cache(maxsize=16)  # the replies to a question have the same stop texts
def _beginnings(stops: Sequence[str]) -> frozenset[str]:
    """Return all texts that begin a stop text, and are shorter."""
    return frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))

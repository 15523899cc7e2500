"""The text of a reply while its ids are generated, up to a stop text. It needs no TensorFlow."""

import codecs
import functools
import math
from collections.abc import Iterable, Sequence

from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import EOS, SPECIALS, Vocabulary


class ReplyText:
    """The text of a reply in pieces, as soon as later ids cannot change them.

    Held back are the bytes of an incomplete character, spaces at the end, and what may begin a stop text. The work for
    an id does not depend on the length of the reply.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._marks = range(vocabulary.first_mark, vocabulary.first_byte)
        self._stops, self._longest = tuple(stops), max(map(len, stops), default=1)
        self.is_stopped = False  # whether the text has a stop text; then no further ids are read
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces: list[str] = []  # at the end: those of the text if more follows
        self._held = ""  # of the text, but not given
        self._given = 0  # characters
        self._read = 0  # characters of the text so far
        self._end = ""  # of these, as many as the longest stop text has
        self._lengths: list[float] = []  # of the text after each id; inf within a character

    def add(self, ids: Iterable[int]) -> str:
        """Return the next piece; "" if there is none. ids: the next ones of the reply."""
        for i in ids:
            if self.is_stopped:
                break
            self._add_text(self._text_of(i))
            ends_in_character = self._bytes.getstate()[0] != b""
            self._lengths.append(math.inf if ends_in_character else self._read)
        if self.is_stopped:
            return ""
        beginnings, ends = _beginnings(self._stops), range(1, len(self._end) + 1)
        may_stop = max((length for length in ends if self._end[-length:] in beginnings), default=0)
        piece = self._held[: len(self._held) - may_stop].rstrip()
        self._held = self._held[len(piece) :]
        self._given += len(piece)
        return piece

    def rest(self) -> str:
        """Return the last piece of a reply that has ended; it may be ""."""
        return self._held

    def ids_before_stop(self) -> int:
        """Return the number of ids whose text is in the reply: all of them without a stop text."""
        length = self._given + len(self._held)
        return max((n for n, after in enumerate(self._lengths, 1) if after <= length), default=0)

    def _text_of(self, i: int) -> str:
        """Return the text that an id adds: for the last byte of a character the character."""
        if i >= self._vocabulary.first_byte:
            return self._bytes.decode(bytes([i - self._vocabulary.first_byte]))
        if i == EOS:
            return self._bytes.decode(b"", final=True)
        if i < len(SPECIALS) or i in self._marks:
            return ""
        return self._bytes.decode(b"", final=True) + self._vocabulary.tokens[i]

    def _add_text(self, added: str) -> None:
        added = added.replace(SPACE, " ")
        if not self._read:
            added = added.lstrip()
        visible = added.rstrip()
        if not visible:
            self._spaces += [added] if added else []
            return
        visible_with_spaces = "".join([*self._spaces, visible])
        self._spaces = [added[len(visible) :]]
        self._held += visible_with_spaces
        before, text = self._read - len(self._end), self._end + visible_with_spaces
        self._read, self._end = self._read + len(visible_with_spaces), text[-self._longest :]
        if (place := stop_place(text, self._stops)) is not None:
            self.is_stopped = True
            self._held = self._held[: before + place - self._given].rstrip()


def before_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the stop text that is complete first, without spaces at its end.

    The result for a longer text that begins with this one is the same, if there is a stop text in this one.
    """
    place = stop_place(text, stops)
    return text if place is None else text[:place].rstrip()


def stop_place(text: str, stops: Iterable[str]) -> int | None:
    """Return where the stop text begins that is complete first; None without one."""
    places = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return min(places)[1] if places else None


@functools.lru_cache(maxsize=16)  # the replies to a question have the same stop texts
def _beginnings(stops: Sequence[str]) -> frozenset[str]:
    """Return all texts that begin a stop text, and are shorter."""
    return frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))

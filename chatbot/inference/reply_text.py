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
        self._stops = StopMatcher(stops)
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces: list[str] = []  # at the end: those of the text if more follows
        self._held = ""  # of the text, but not given
        self._given = 0  # characters
        self._lengths: list[float] = []  # of the text after each id; inf within a character

    @property
    def is_stopped(self) -> bool:
        """Whether the text has a stop text; then no further ids are read."""
        return self._stops.start is not None

    def add(self, ids: Iterable[int]) -> str:
        """Return the next piece; "" if there is none. ids: the next ones of the reply."""
        for i in ids:
            if self.is_stopped:
                break
            self._add_text(self._text_of(i))
            ends_in_character = self._bytes.getstate()[0] != b""
            self._lengths.append(math.inf if ends_in_character else self._stops.read)
        if self.is_stopped:
            return ""
        piece = self._held[: len(self._held) - self._stops.held].rstrip()
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
        if not self._stops.read:
            added = added.lstrip()
        visible = added.rstrip()
        if not visible:
            self._spaces += [added] if added else []
            return
        visible_with_spaces = "".join([*self._spaces, visible])
        self._spaces = [added[len(visible) :]]
        self._held += visible_with_spaces
        if self._stops.add(visible_with_spaces):
            assert self._stops.start is not None
            self._held = self._held[: self._stops.start - self._given].rstrip()


def before_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the stop text that is complete first, without spaces at its end.

    The result for a longer text that begins with this one is the same, if there is a stop text in this one.
    """
    places = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)[1]].rstrip() if places else text


class StopMatcher:
    """Finds the stop text that is complete first in a text that arrives in parts (Knuth, Morris and Pratt, 1977).

    The work for a part depends on its length, on the number of stop texts and on their length, and not on the length of
    what came before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)  # characters at the end of the text that begin each stop text
        self.read = 0  # characters of the text
        self.start: int | None = None  # of the stop text that was found

    @property
    def held(self) -> int:
        """The number of characters at the end of the text that may be the beginning of a stop text."""
        return max(self._matched, default=0)

    def add(self, part: str) -> bool:
        """Read the next part of the text, up to a stop text. Return whether there is one."""
        if not self._stops:
            self.read += len(part)
        for character in part if self._stops else "":
            self.read += 1
            found = 0
            for number, (stop, borders) in enumerate(self._stops):
                matched = self._matched[number]
                while matched and stop[matched] != character:
                    matched = borders[matched - 1]
                matched += stop[matched] == character
                if matched == len(stop):
                    found, matched = max(found, matched), borders[-1]
                self._matched[number] = matched
            if found:
                self.start = self.read - found
                return True
        return False


@functools.lru_cache(maxsize=256)  # the replies to a question have the same stop texts
def _borders(text: str) -> tuple[int, ...]:
    """Return for each beginning of a text how many of its last characters are a shorter beginning of the text."""
    borders = [0]
    for character in text[1:]:
        length = borders[-1]
        while length and text[length] != character:
            length = borders[length - 1]
        borders.append(length + (text[length] == character))
    return tuple(borders)

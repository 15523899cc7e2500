"""The text of a reply in pieces, while its tokens are generated. It needs no TensorFlow."""

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence

from chatbot.corpus.encoding.vocabulary import EOS, SPECIALS, Vocabulary
from chatbot.corpus.text.tokenizer import SPACE
from chatbot.inference.stop_texts import StopMatcher


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


def pieces(ids: Iterator[int], vocabulary: Vocabulary, stops: Sequence[str]) -> Iterator[str]:
    """Yield the text of a reply in pieces. ids: of the reply, as they are found."""
    text = ReplyText(vocabulary, stops)
    for i in ids:
        if piece := text.add([i]):
            yield piece
        if text.is_stopped:
            break
    if rest := text.rest():
        yield rest

"""A reply, its text while its ids are generated, up to a stop text, and its attention word by word."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import SPECIALS, PieceVocabulary, Vocabulary

# Longer questions and replies are truncated before they are tokenised: the model reads only --max-length tokens.
MAX_CHARACTERS = 2000
# The label of the end symbol.
END = "<eos>"


class Origin(NamedTuple):
    """Where a reply comes from.

    question: of the pair that it was looked up in; "": the model has generated it. is_rated: whether that pair is a
    reply that was rated good, and its question, in place of a training pair.
    """

    question: str = ""
    is_rated: bool = False


class Reply(NamedTuple):
    """A reply that a search has found, and its score; larger is better.

    The score is the log-probability in nats; of several replies, with the penalties and the score of `--rerank`; of
    replies to training questions, see `RetrievedReplies`.
    """

    text: str
    score: float
    ids: Sequence[int] = ()  # without the end
    origin: Origin = Origin()


def good_enough(replies: Sequence[Reply], least: float | None, fallback: str) -> list[Reply]:
    """Return the replies with at least this score; where there is none, the fallback with the score of the first.

    least: None for all of them.
    """
    good = [reply for reply in replies if least is None or reply.score >= least]
    return good or [Reply(fallback, replies[0].score if replies else 0.0)]


class ReplyText:
    """The text of a reply in pieces, as soon as later ids cannot change them.

    Held back are an incomplete character, spaces at the end, and what may begin a stop text. ids: of the reply, without
    the end; who generates them appends to this list, and calls `read`. text: of the ids before a stop text.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], ids: list[int]) -> None:
        self.vocabulary = vocabulary
        self.stops = stops
        self.ids = ids
        self._longest, self._beginnings = max(map(len, stops), default=0), _beginnings(tuple(stops))
        self._given = 0  # characters that pieces have
        self.text = ""
        self.is_stopped = False  # whether the ids have a stop text

    def read(self, is_whole: bool) -> None:
        """Read the text of all ids. is_whole: whether the end follows; else the last character may be incomplete."""
        text = self.vocabulary.text(self.ids)
        vocabulary = self.vocabulary
        without_text = (*range(len(SPECIALS)), *range(vocabulary.first_mark, vocabulary.first_byte))
        last = next((i for i in reversed(self.ids) if i not in without_text), 0)
        if not is_whole and (last >= vocabulary.first_byte or isinstance(vocabulary, PieceVocabulary)):
            text = text.rstrip("\ufffd").rstrip()  # the character may be a space, and a reply has none at its end
        self.text = before_stop(text, self.stops)
        self.is_stopped = stop_in(text, self.stops) is not None

    def piece(self) -> str:
        """Return the next piece; "" if there is none."""
        longest = min(self._longest - 1, len(self.text))
        held = next((n for n in range(longest, 0, -1) if self.text[-n:] in self._beginnings), 0)
        piece = self.text[self._given : len(self.text) - held].rstrip()
        self._given += len(piece)
        return piece

    def rest(self) -> str:
        """Return the last piece of a reply that has ended; it may be ""."""
        return self.text[self._given :]

    def ids_before_stop(self) -> int:
        """Return the number of ids whose text is in the reply."""
        numbers = range(len(self.ids) + 1)
        return max(number for number in numbers if self.text.startswith(self.vocabulary.text(self.ids[:number])))


def stop_in(text: str, stops: Iterable[str]) -> tuple[int, int] | None:
    """Return the start and the end of the stop text that is complete first, the longest of several."""
    places = [(start, start + len(stop)) for stop in stops if (start := text.find(stop)) >= 0]
    return min(places, key=lambda place: (place[1], place[0])) if places else None


def before_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the stop text that is complete first, without spaces at its end.

    The result for a longer text that begins with this one is the same, if there is a stop text in this one.
    """
    place = stop_in(text, stops)
    return text if place is None else text[: place[0]].rstrip()


@functools.lru_cache(maxsize=16)  # the replies to a question have the same stop texts
def _beginnings(stops: Sequence[str]) -> frozenset[str]:
    """Return all texts that begin a stop text, and are shorter."""
    return frozenset(stop[:length] for stop in stops for length in range(1, len(stop)))


class WordAttention(NamedTuple):
    """The attention of a reply, word by word. A character that is spelled in bytes is one word."""

    question: list[str]
    reply: list[str]  # the last one is END
    weights: npt.NDArray[np.float32]  # [reply, question]; those of each word of the reply add up to 1


def by_word(
    vocabulary: Vocabulary, question: Sequence[int], reply: Sequence[int], weights: npt.NDArray[np.float32]
) -> WordAttention:
    """Return the attention of a reply, word by word.

    question, reply: ids. weights: of the question's ids at each id of the reply and at the end symbol,
    [reply + 1, question].
    """
    question_words = words(vocabulary, question)
    reply_words = words(vocabulary, reply)
    columns = _starts(question_words)
    of_words = np.add.reduceat(weights, columns, axis=1)  # a word has the sum of its ids
    rows = _starts([*reply_words, (END, 1)])
    sizes = np.diff([*rows, len(weights)])
    of_words = np.add.reduceat(of_words, rows, axis=0) / sizes[:, None]  # and looks where its ids do on average
    return WordAttention([w for w, _ in question_words], [*(w for w, _ in reply_words), END], of_words)


def words(vocabulary: Vocabulary, ids: Sequence[int]) -> list[tuple[str, int]]:
    """Return the words that ids stand for, each with the number of its ids.

    The bytes of a character are one word, and bytes that are no whole character are U+FFFD each.
    """
    words: list[tuple[str, int]] = []
    for are_bytes, run in itertools.groupby(ids, lambda i: i >= vocabulary.first_byte):
        if are_bytes:
            text = bytes(i - vocabulary.first_byte for i in run).decode(errors="surrogateescape")
            words += [("\ufffd", 1) if "\udc80" <= c <= "\udcff" else (c, len(c.encode())) for c in text]
        else:
            words += [(token, 1) for token in vocabulary.tokens_of(run)]
    return words


def _starts(labelled: Sequence[tuple[Any, int]]) -> list[int]:
    """Return the place of the first id of each word."""
    ends = np.cumsum([size for _, size in labelled])
    return [0, *ends[:-1].tolist()]

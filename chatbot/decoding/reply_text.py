"""Processes the text of replies: incremental decoding, stop texts, and attention weights by word."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import SPECIALS, PieceVocabulary, Vocabulary

# Longer texts are cut before tokenisation, which limits its time. The model reads less: --max-length tokens.
MAX_CHARACTERS = 2000
# The label of EOS in attention tables.
END = "<eos>"


class Origin(NamedTuple):
    """Where a reply came from.

    Attributes:
        question: The question of the pair from which the reply was retrieved, or an empty string if the model
            generated the reply.
        is_rated: Whether the pair is a reply that a user rated good, rather than a training pair.
    """

    question: str = ""
    is_rated: bool = False


class Reply(NamedTuple):
    """A reply and its score; higher scores are better.

    The score of a generated reply is its log-probability in nats. If a search compares several replies, the score
    includes penalties and --rerank. The scores of retrieved replies are computed by `RetrievedReplies`.
    """

    text: str
    score: float
    ids: Sequence[int] = ()  # token ids without EOS
    origin: Origin = Origin()


def filter_by_score(replies: Sequence[Reply], min_score: float | None, fallback: str) -> list[Reply]:
    """Return the replies with at least the minimum score, or the fallback if there are none.

    Args:
        replies: The replies, best first.
        min_score: The minimum score, or None to accept every reply.
        fallback: The text to return if no reply is accepted. It gets the score of the best reply.
    """
    accepted = [reply for reply in replies if min_score is None or reply.score >= min_score]
    return accepted or [Reply(fallback, replies[0].score if replies else 0.0)]


class ReplyText:
    """The text of a reply, which is decoded while tokens are added. It is sent in pieces.

    Text that later tokens could change is held back: incomplete characters, trailing spaces, and possible beginnings of
    a stop text.

    Args:
        vocabulary: The vocabulary of the reply.
        stops: The stop texts.
        ids: The token ids of the reply without EOS. The caller appends to this list and then calls `read`.

    Attributes:
        text: The text decoded so far, up to a stop text.
        is_stopped: Whether a stop text has occurred.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], ids: list[int]) -> None:
        self.vocabulary = vocabulary
        self.stops = stops
        self.ids = ids
        self._sent_length = 0  # number of characters already returned in pieces
        self.text = ""
        self.is_stopped = False

    def read(self, is_whole: bool) -> None:
        """Decode all ids. If `is_whole` is False, an incomplete character at the end is held back."""
        text = self.vocabulary.text(self.ids)
        vocabulary = self.vocabulary
        without_text = (*range(len(SPECIALS)), *range(vocabulary.first_mark, vocabulary.first_byte))
        last = next((i for i in reversed(self.ids) if i not in without_text), 0)
        if not is_whole and (last >= vocabulary.first_byte or isinstance(vocabulary, PieceVocabulary)):
            text = text.rstrip("\ufffd").rstrip()  # Trailing spaces must wait, because whole texts are stripped.
        self.text = cut_at_stop(text, self.stops)
        self.is_stopped = any(stop in text for stop in self.stops)

    def piece(self) -> str:
        """Return the text that was decoded since the previous piece and can no longer change."""
        beginnings = (stop[:length] for stop in self.stops for length in range(1, len(stop)))
        held = max((len(beginning) for beginning in beginnings if self.text.endswith(beginning)), default=0)
        piece = self.text[self._sent_length : len(self.text) - held].rstrip()
        self._sent_length += len(piece)
        return piece

    def rest(self) -> str:
        """Return the last piece of a finished reply, which can be empty."""
        return self.text[self._sent_length :]

    def ids_before_stop(self) -> int:
        """Return the number of ids that precede the stop text."""
        numbers = range(len(self.ids) + 1)
        return max(number for number in numbers if self.text.startswith(self.vocabulary.text(self.ids[:number])))


def cut_at_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the first stop text, without trailing spaces.

    The first stop text is the one that ends first. If several end at the same position, the longest one is used. This
    way, the result no longer changes when text is appended after a stop text.
    """
    matches = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return text[: min(matches)[1]].rstrip() if matches else text


class WordAttention(NamedTuple):
    """The attention weights between the words of a reply and a question.

    A character that is encoded as several byte tokens counts as one word.
    """

    question: list[str]  # words of the question
    reply: list[str]  # words of the reply, followed by END
    weights: npt.NDArray[np.float32]  # [reply, question], where each row sums to 1


def attention_by_word(
    vocabulary: Vocabulary, question: Sequence[int], reply: Sequence[int], weights: npt.NDArray[np.float32]
) -> WordAttention:
    """Aggregate attention weights from tokens to words.

    Args:
        vocabulary: The vocabulary of the question and the reply.
        question: The token ids of the question.
        reply: The token ids of the reply, without EOS.
        weights: Attention weights, with shape [reply + 1, question], whose last row belongs to EOS.
    """
    question_words = words(vocabulary, question)
    reply_words = words(vocabulary, reply)
    columns = _starts(question_words)
    by_word = np.add.reduceat(weights, columns, axis=1)  # Sum over the tokens of each question word.
    rows = _starts([*reply_words, (END, 1)])
    sizes = np.diff([*rows, len(weights)])
    by_word = np.add.reduceat(by_word, rows) / sizes[:, None]  # Average over the tokens of each reply word.
    return WordAttention([w for w, _ in question_words], [*(w for w, _ in reply_words), END], by_word)


def words(vocabulary: Vocabulary, ids: Sequence[int]) -> list[tuple[str, int]]:
    """Decode token ids to words, and return each word with its number of tokens.

    The byte tokens of a character form one word. Each byte that is not valid UTF-8 becomes the word U+FFFD.
    """
    words: list[tuple[str, int]] = []
    for are_bytes, run in itertools.groupby(ids, lambda i: i >= vocabulary.first_byte):
        if are_bytes:
            text = bytes(i - vocabulary.first_byte for i in run).decode(errors="surrogateescape")
            words += [("\ufffd", 1) if "\udc80" <= c <= "\udcff" else (c, len(c.encode())) for c in text]
        else:
            words += [(token, 1) for token in vocabulary.tokens_of(run)]
    return words


def _starts(sized_words: Sequence[tuple[Any, int]]) -> list[int]:
    """Return the index of the first token of each word. The arguments are pairs of a word and its number of tokens."""
    ends = np.cumsum([size for _, size in sized_words])
    return [0, *ends[:-1].tolist()]

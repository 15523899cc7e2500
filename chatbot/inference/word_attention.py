"""The attention of a reply, word by word. It needs no TensorFlow."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import Vocabulary

Weights = npt.NDArray[np.float32]

# The label of the end symbol.
END = "<eos>"


class WordAttention(NamedTuple):
    """The attention of a reply, word by word. A character that is spelled in bytes is one word."""

    question: list[str]
    reply: list[str]  # the last one is END
    weights: Weights  # [reply, question]; those of each word of the reply add up to 1


def by_word(vocabulary: Vocabulary, question: Sequence[int], reply: Sequence[int], weights: Weights) -> WordAttention:
    """Return the attention of a reply, word by word.

    question, reply: ids. weights: of the question's ids at each id of the reply and at the end symbol,
    [reply + 1, question].
    """
    question_words, reply_words = words(vocabulary, question), words(vocabulary, reply)
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
    found = []
    place = 0
    while place < len(ids):
        size = 1
        label = vocabulary.tokens_of(ids[place : place + 1])[0]
        if ids[place] >= vocabulary.first_byte:
            for length in (2, 3, 4):  # a character of one byte is not spelled further
                text = vocabulary.tokens_of(ids[place : place + length])
                if len(text) == 1 and text[0] != "\ufffd" and len(text[0].encode()) == length:
                    label, size = text[0], length
        found.append((label, size))
        place += size
    return found


def _starts(labelled: Sequence[tuple[Any, int]]) -> list[int]:
    """Return the place of the first id of each word."""
    ends = np.cumsum([size for _, size in labelled])
    return [0, *ends[:-1].tolist()]

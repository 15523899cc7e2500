"""Which words of a question each word of a reply looked at: the attention weights of a trained model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.batching.batches import pad
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import BOS, Vocabulary
from chatbot.model.seq2seq import Seq2Seq

Weights = npt.NDArray[np.float32]

# The label of the end symbol.
END = "<eos>"


class WordAttention(NamedTuple):
    """The attention of a reply, word by word. A character that is spelled in bytes is one word."""

    question: list[str]
    reply: list[str]  # the last one is END
    weights: Weights  # [reply, question]; those of each word of the reply add up to 1


def attention_weights(
    model: Seq2Seq, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[Weights]:
    """Return the weights of each question's ids at each id of its reply and at the end symbol: [reply + 1, question].

    The decoder reads the replies as in training (teacher forcing). questions, replies: ids, of at least one question;
    each question has at least one. The model must have attention.
    """
    sources = Ragged.from_rows(questions)
    targets = Ragged.from_rows([[BOS, *reply] for reply in replies])
    batch = (model.sequences(pad(rows, np.arange(len(rows)), int(rows.lengths.max()))) for rows in (sources, targets))
    weights = model.attention_weights(*batch).numpy().astype(np.float32)  # [rows, target, source]
    return [
        row[:target, :source] for row, source, target in zip(weights, sources.lengths, targets.lengths, strict=True)
    ]


def word_attention(
    model: Seq2Seq, vocabulary: Vocabulary, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[WordAttention]:
    """Return the attention of each reply, word by word; the arguments are those of `attention_weights`."""
    found = []
    for question, reply, weights in zip(questions, replies, attention_weights(model, questions, replies), strict=True):
        question_words, reply_words = words(vocabulary, question), words(vocabulary, reply)
        columns = _starts(question_words)
        of_words = np.add.reduceat(weights, columns, axis=1)  # a word has the sum of its ids
        rows = _starts([*reply_words, (END, 1)])
        sizes = np.diff([*rows, len(weights)])
        of_words = np.add.reduceat(of_words, rows, axis=0) / sizes[:, None]  # and looks where its ids do on average
        found.append(WordAttention([w for w, _ in question_words], [*(w for w, _ in reply_words), END], of_words))
    return found


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

"""Which words of a question each word of a reply looked at: the attention weights of a trained model."""

from collections.abc import Sequence

import numpy as np

from chatbot.corpus.batching.batches import pad
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import BOS, Vocabulary
from chatbot.inference.word_attention import Weights, WordAttention, by_word
from chatbot.model.seq2seq import Seq2Seq


def attention_weights(
    model: Seq2Seq, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[Weights]:
    """Return the weights of each question's ids at each id of its reply and at the end symbol: [reply + 1, question].

    The decoder reads the replies as in training (teacher forcing). questions, replies: ids, of at least one question;
    each question has at least one. The model must have attention.
    """
    sources = Ragged.from_rows(questions)
    targets = Ragged.from_rows([[BOS, *reply] for reply in replies])
    padded = (pad(rows, np.arange(len(rows)), int(rows.lengths.max())) for rows in (sources, targets))
    with model.placed():
        weights = model.attention_weights(*map(model.sequences, padded))  # [rows, target, source]
    weights = weights.numpy().astype(np.float32)
    return [
        row[:target, :source] for row, source, target in zip(weights, sources.lengths, targets.lengths, strict=True)
    ]


def word_attention(
    model: Seq2Seq, vocabulary: Vocabulary, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[WordAttention]:
    """Return the attention of each reply, word by word; the arguments are those of `attention_weights`."""
    weights = attention_weights(model, questions, replies)
    return [by_word(vocabulary, *row) for row in zip(questions, replies, weights, strict=True)]

"""Metrics of a set of replies: overlap with references, variety, repetition."""

from collections import Counter
from collections.abc import Sequence

import sacrebleu


def bleu(replies: Sequence[str], references: Sequence[str]) -> float:
    """Return corpus BLEU, 0 to 100, with sacrebleu's Chinese tokenisation (Post, 2018).

    Each Chinese character is a token.
    """
    return float(sacrebleu.corpus_bleu(list(replies), [list(references)], tokenize="zh").score)


def distinct(replies: Sequence[Sequence[str]], n: int) -> float:
    """Return the number of different n-grams over the number of n-grams in tokenised replies (Li et al., 2016).

    The value is 0 if there are no n-grams.
    """
    grams = Counter(tuple(reply[i : i + n]) for reply in replies for i in range(len(reply) - n + 1))
    return len(grams) / max(1, sum(grams.values()))


def top_reply_share(replies: Sequence[str]) -> float:
    """Return the share of the most frequent reply in all replies, 0 to 1: near 1 for a model that repeats one reply."""
    return max(Counter(replies).values(), default=0) / max(1, len(replies))

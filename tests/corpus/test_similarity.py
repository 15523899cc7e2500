"""Similarity of texts, against a slow twin."""

import itertools
import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus import similarity
from chatbot.corpus.similarity import character_index, similarities

# Few characters, so that texts share them, with a space, which does not count, and one outside the first plane.
TEXT = st.text("你好吗天 😀", max_size=8)
TEXTS = st.lists(TEXT, min_size=1, max_size=12)


def grams_of(text: str) -> list[str]:
    visible = text.replace(" ", "")
    return [*visible, *map("".join, itertools.pairwise(visible))]


def slow_bm25(texts: list[str], query: str) -> list[float]:
    """BM25 with k1 = 1.5 and b = 0.75 over single characters and pairs (Robertson and Zaragoza, 2009)."""
    documents = [grams_of(text) for text in texts]
    mean = max(1.0, float(np.mean([len(document) for document in documents])))
    scores = [0.0] * len(texts)
    for gram in grams_of(query):
        having = sum(gram in document for document in documents)
        weight = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for i, document in enumerate(documents):
            count = document.count(gram)
            scores[i] += weight * count / (count + 1.5 * (0.25 + 0.75 * len(document) / mean))
    return scores


def slow_dice(texts: list[str], query: str, text: str) -> float:
    """Twice the weight of the characters and pairs that both have, by that of both; rare ones weigh more."""

    def weight(grams: set[str]) -> float:
        having = [sum(gram in grams_of(text) for text in texts) for gram in grams]
        return sum(math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for n in having)

    both = set(grams_of(query)), set(grams_of(text))
    total = weight(both[0]) + weight(both[1])
    return 2 * weight(both[0] & both[1]) / total if total else 0.0


@given(TEXTS, TEXT, TEXTS)
def test_similarities_of_any_texts_are_those_of_a_slow_twin(texts: list[str], query: str, others: list[str]) -> None:
    index = character_index(texts)
    expected = [slow_dice(texts, query, other) for other in others]
    asked, *weighed = index.weighed([query, *others])
    assert similarities(asked, weighed).tolist() == pytest.approx(expected)


@given(TEXTS, TEXT, st.integers(1, 5))
def test_scores_of_any_texts_are_those_of_a_slow_twin(texts: list[str], query: str, block: int) -> None:
    """Also where the texts are counted in several blocks."""
    with patch.object(similarity, "BLOCK", block):
        index = character_index(texts)
    assert index.scores(query).tolist() == pytest.approx(slow_bm25(texts, query), rel=1e-5)


@given(TEXTS, TEXT, st.integers(1, 5), st.integers(1, 8))
def test_nearest_texts_are_those_of_the_best_scores(
    texts: list[str], query: str, number: int, occurrences: int
) -> None:
    """However few occurrences are read at first, a text with one of them has its whole score."""
    index = character_index(texts)
    scores = index.scores(query)
    expected = sorted(np.flatnonzero(scores), key=lambda i: (-scores[i], i))[:number]
    numbers, best = index.nearest(query, number)
    assert [scores[i] for i in numbers] == pytest.approx([scores[i] for i in expected])
    assert best.tolist() == pytest.approx([scores[i] for i in numbers])
    with patch.object(similarity, "OCCURRENCES", occurrences):
        some, best = index.nearest(query, number)
    assert best.tolist() == pytest.approx([scores[i] for i in some])
    assert best.tolist() == sorted(best, reverse=True)


def test_only_the_best_candidates_of_the_rarest_characters_are_scored_whole() -> None:
    texts = ["好" * 5 + c for c in "甲乙甲乙"] + ["好"] * 8
    with patch.multiple(similarity, OCCURRENCES=4, CANDIDATES=2):
        numbers, scores = character_index(texts).nearest("好甲", 2)
    assert numbers.tolist() == [0, 2]
    assert scores.tolist() == pytest.approx([slow_bm25(texts, "好甲")[0]] * 2, rel=1e-5)

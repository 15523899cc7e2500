"""An index of texts by their characters, which needs no trained model."""

import logging
from collections.abc import Sequence
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt

# bm25s logs each index that it builds, which is printed once TensorFlow has installed a handler.
logging.getLogger("bm25s").setLevel(logging.WARNING)

Scores = npt.NDArray[np.floating[Any]]


class CharacterIndex:
    """Scores texts by the characters and pairs of neighbouring characters that they share with a query.

    The score is BM25 (Robertson and Zaragoza, 2009), computed by bm25s.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """texts: at least one, each with a visible character."""
        self._size = len(texts)
        self._index = bm25s.BM25()
        self._index.index([_grams(text) for text in texts], show_progress=False)

    def scores(self, query: str) -> Scores:
        """Return the score of each text, [texts], at least 0; 0 for a text that shares no character with the query."""
        grams = _grams(query)
        return self._index.get_scores(grams) if grams else np.zeros(self._size, np.float32)


def _grams(text: str) -> list[str]:
    """Return the characters and the pairs of neighbouring characters of a text, without spaces."""
    visible = text.replace(" ", "")
    return [*visible, *(visible[i : i + 2] for i in range(len(visible) - 1))]

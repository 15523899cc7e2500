"""The file of n-grams, and what precedes each target. Their probabilities: tests/model/test_ngram_tables.py."""

from pathlib import Path

import numpy as np
import pytest

from chatbot.corpus.encoding.ngrams import histories_of, load_ngrams, ngrams_of
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import ASK, BOS, PAD


def test_histories_are_the_ids_before_each_target() -> None:
    """Both directions begin alike."""
    histories = histories_of(np.array([[BOS, 5, 6], [ASK, 7, PAD]]), 3)
    np.testing.assert_array_equal(histories[0], [[BOS, BOS], [BOS, 5], [5, 6]])
    np.testing.assert_array_equal(histories[1, :2], [[BOS, BOS], [BOS, 7]])
    assert histories_of(np.array([[BOS, 5]]), 2).tolist() == [[[BOS], [5]]]


def test_n_grams_are_read_as_they_were_written(tmp_path: Path) -> None:
    ngrams = ngrams_of([Ragged.from_rows([[5, 6, 7], [5, 6]])], 9, 3)
    path = tmp_path / "ngrams.npz"
    ngrams.save(path)
    again = load_ngrams(path)
    np.testing.assert_array_equal(again.unigrams, ngrams.unigrams)
    for order, expected in zip(again.orders, ngrams.orders, strict=True):
        for field, array in vars(expected).items():
            np.testing.assert_array_equal(getattr(order, field), array)
    assert [file.name for file in tmp_path.iterdir()] == ["ngrams.npz"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Exception, match="zip"):
        load_ngrams(path)

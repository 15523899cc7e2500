"""Counting n-grams in bounded memory, and their file. Their probabilities: tests/decoding/test_ngram_mixture.py."""

import dataclasses
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.pair_ids import Ragged
from chatbot.decoding import ngrams
from chatbot.decoding.ngrams import count_ngrams, load_ngrams
from chatbot.errors import UserError

VOCABULARY = 9
NGRAMS = count_ngrams([Ragged.from_rows([[5, 6, 7], [5, 6]])], VOCABULARY, 3)


def random_rows(rows: int, vocabulary: int) -> Ragged:
    random = np.random.default_rng(3)
    lengths = random.integers(0, 12, rows)
    return Ragged.from_lengths(random.integers(5, vocabulary, lengths.sum()), lengths)


def test_ranges_of_contexts_and_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(300, 12)
    whole = count_ngrams([rows], 12, 4).content()
    monkeypatch.setattr(ngrams, "ROW_CHUNK", 7)
    for grams in (1, 13, 400, 10_000):
        monkeypatch.setattr(ngrams, "GRAM_CHUNK", grams)
        assert count_ngrams([rows.select(range(100)), rows.select(range(100, 300))], 12, 4).content() == whole


def test_memory_for_a_token_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids before a token, itself and the number of its context are 20 bytes."""
    monkeypatch.setattr(ngrams, "GRAM_CHUNK", 4096)
    rows = random_rows(20_000, 300)
    tokens = len(rows) + int(rows.lengths.sum())
    tracemalloc.start()
    try:
        count_ngrams([rows], 300, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 70 * tokens, peak / tokens


def test_n_grams_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "ngrams.npz"
    path.write_bytes(NGRAMS.content())
    again = load_ngrams(path, VOCABULARY, 3)
    np.testing.assert_array_equal(again.unigrams, NGRAMS.unigrams)
    for order, expected in zip(again.orders, NGRAMS.orders, strict=True):
        for field, array in vars(expected).items():
            np.testing.assert_array_equal(getattr(order, field), array)
    for vocabulary, longest in ((VOCABULARY + 1, 3), (VOCABULARY, 4)):  # of another attempt
        with pytest.raises(UserError, match=r"ngrams\.npz: n-grams missing or damaged"):
            load_ngrams(path, vocabulary, longest)
    with pytest.raises(UserError, match="n-grams missing or damaged"):
        load_ngrams(tmp_path / "nothing.npz", VOCABULARY, 3)


ORDER = NGRAMS.orders[1]


@pytest.mark.parametrize(
    "changes",
    [
        *({name: getattr(ORDER, name).astype(np.int32)} for name in ("contexts", "starts", "ids")),
        *({name: array[:-1]} for name, array in vars(ORDER).items()),
        *({name: np.append(array, array[-1:])} for name, array in vars(ORDER).items()),
        {"starts": ORDER.starts - 1},
        {"starts": np.r_[1, ORDER.starts[1:]]},
        {"starts": np.r_[0, ORDER.starts[-2::-1]]},
        {"ids": np.r_[-1, ORDER.ids[1:]]},
        {"ids": np.r_[VOCABULARY, ORDER.ids[1:]]},
        {name: array[:0] for name, array in vars(ORDER).items()},
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path: Path, changes: dict[str, np.ndarray]) -> None:
    path = tmp_path / "ngrams.npz"
    orders = [NGRAMS.orders[0], dataclasses.replace(ORDER, **changes)]
    path.write_bytes(dataclasses.replace(NGRAMS, orders=orders).content())
    with pytest.raises(UserError, match="n-grams missing or damaged"):
        load_ngrams(path, VOCABULARY, 3)


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_whole(data: st.DataObject) -> None:
    """Truncated, or with some bytes changed."""
    content = bytearray(NGRAMS.content())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for place in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=3)) if content else []:
        content[place] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ngrams.npz"
        path.write_bytes(content)
        try:
            loaded = load_ngrams(path, VOCABULARY, 3)
        except UserError:
            return
        assert len(loaded.unigrams) == VOCABULARY
        assert all(0 <= order.ids.min() <= order.ids.max() < VOCABULARY for order in loaded.orders)

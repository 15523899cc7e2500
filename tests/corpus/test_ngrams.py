"""The file of n-grams, and what precedes each target. Their probabilities: tests/decoding/test_ngrams.py."""

import dataclasses
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus import ngrams
from chatbot.corpus.ngrams import context_numbers, histories_of, load_ngrams, ngrams_of
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import ASK, BOS, PAD
from chatbot.errors import UserError


def test_histories_are_the_ids_before_each_target() -> None:
    """Both directions begin alike."""
    histories = histories_of(np.array([[BOS, 5, 6], [ASK, 7, PAD]]), 3)
    np.testing.assert_array_equal(histories[0], [[BOS, BOS], [BOS, 5], [5, 6]])
    np.testing.assert_array_equal(histories[1, :2], [[BOS, BOS], [BOS, 7]])
    assert histories_of(np.array([[BOS, 5]]), 2).tolist() == [[[BOS], [5]]]


VOCABULARY = 9
NGRAMS = ngrams_of([Ragged.from_rows([[5, 6, 7], [5, 6]])], VOCABULARY, 3)


def test_orders_are_those_of_growing_contexts() -> None:
    """Each has the contexts of the corpus of its length."""
    histories = histories_of(np.array([[BOS, 5, 6, 7], [BOS, 5, 6, PAD]]), 3)
    histories = np.concatenate([histories[0], histories[1, :3]])
    for length, order in enumerate(NGRAMS.orders, 1):
        numbers = context_numbers(histories[:, -length:])
        np.testing.assert_array_equal(order.contexts, np.unique(numbers))


def random_rows(rows: int, vocabulary: int) -> Ragged:
    random = np.random.default_rng(3)
    lengths = random.integers(0, 12, rows)
    return Ragged.from_lengths(random.integers(5, vocabulary, lengths.sum()), lengths)


def test_ranges_of_contexts_and_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(300, 12)
    whole = ngrams_of([rows], 12, 4).content()
    monkeypatch.setattr(ngrams, "ROWS_AT_ONCE", 7)
    for grams in (1, 13, 400, 10_000):
        monkeypatch.setattr(ngrams, "GRAMS_AT_ONCE", grams)
        assert ngrams_of([rows.select(range(100)), rows.select(range(100, 300))], 12, 4).content() == whole


def test_memory_for_a_token_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids before a token, itself and the number of its context are 20 bytes."""
    monkeypatch.setattr(ngrams, "GRAMS_AT_ONCE", 4096)
    rows = random_rows(20_000, 300)
    tokens = len(rows) + int(rows.lengths.sum())
    tracemalloc.start()
    try:
        ngrams_of([rows], 300, 3)
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


@pytest.mark.parametrize(("vocabulary", "order"), [(VOCABULARY + 1, 3), (VOCABULARY, 4)])
def test_n_grams_of_another_attempt_are_refused(tmp_path: Path, vocabulary: int, order: int) -> None:
    path = tmp_path / "ngrams.npz"
    path.write_bytes(NGRAMS.content())
    with pytest.raises(UserError, match=r"ngrams\.npz: n-grams missing or damaged"):
        load_ngrams(path, vocabulary, order)
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
def test_arrays_that_do_not_fit_one_another_are_refused(tmp_path: Path, changes: dict[str, np.ndarray]) -> None:
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

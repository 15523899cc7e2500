"""Which pairs of the whole corpus stay, compared with what a loop over all of them would keep."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.encoding import selection
from chatbot.corpus.encoding.selection import Selection, occurrences, select

CHUNKS = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=20), max_size=5)


def slow(chunks: list[list[tuple[int, int]]], rules: Selection) -> list[list[bool]]:
    """Pair after pair, in Python."""
    seen: Counter[int] = Counter()
    answers: Counter[int] = Counter()
    kept: list[list[bool]] = []
    for chunk in chunks:
        kept.append([])
        for pair, answer in chunk:
            stays = pair not in rules.held_out
            if stays and rules.duplicates:
                stays = seen[pair] == 0
                seen[pair] += 1
            if stays and rules.max_reply_frequency:
                stays = answers[answer] < rules.max_reply_frequency
                answers[answer] += 1
            kept[-1].append(stays)
    return kept


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@given(CHUNKS, st.booleans(), st.none() | st.integers(1, 4), st.frozensets(st.integers(0, 9), max_size=3))
def test_the_same_pairs_stay_as_in_a_slow_loop(
    at_once: int, chunks: list, duplicates: bool, most: int | None, held_out: frozenset[int]
) -> None:
    rules = Selection(duplicates, most, held_out)
    pairs = [np.array([pair for pair, _ in chunk], np.uint64) for chunk in chunks]
    answers = [np.array([answer for _, answer in chunk], np.uint64) for chunk in chunks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "AT_ONCE", at_once)
        kept, dropped = select(lambda: pairs, lambda: answers, rules)
    assert [mask.tolist() for mask in kept] == slow(chunks, rules)
    for chunk, mask, reasons in zip(chunks, kept, dropped, strict=True):
        assert len(chunk) - mask.sum() == sum(reasons.values())


def test_occurrences_counts_equal_values_before() -> None:
    assert occurrences(np.array([3, 5, 3, 3, 5], np.uint64)).tolist() == [0, 0, 1, 2, 1]
    assert occurrences(np.array([], np.uint64)).tolist() == []

"""The selection of pairs from the whole corpus, against a slow loop."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.encoding import selection as selection_module
from chatbot.corpus.encoding.selection import DUPLICATE, HELD_OUT, Selection, occurrences_before, select

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60)


def slow_selection(pairs: list[tuple[int, int]], selection: Selection) -> list[str]:
    """The reason to drop each pair, or "" for a pair that is kept, one pair at a time."""
    seen: Counter[int] = Counter()
    answers: Counter[int] = Counter()
    reasons = []
    for pair, answer in pairs:
        reason = HELD_OUT if pair in selection.held_out else ""
        if not reason and selection.duplicates:
            reason = DUPLICATE if seen[pair] else ""
            seen[pair] += 1
        if not reason and selection.max_reply_frequency:
            reason = selection.too_frequent if answers[answer] >= selection.max_reply_frequency else ""
            answers[answer] += 1
        reasons.append(reason)
    return reasons


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@given(PAIRS, st.booleans(), st.none() | st.integers(1, 4), st.frozensets(st.integers(0, 9), max_size=3))
def test_selection_equals_slow_loop(
    at_once: int, pairs: list[tuple[int, int]], duplicates: bool, max_frequency: int | None, held_out: frozenset[int]
) -> None:
    selection = Selection(duplicates, max_frequency, held_out)
    pair_hashes, answer_hashes = (np.array([pair[side] for pair in pairs], np.uint64) for side in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_module, "AT_ONCE", at_once)
        kept, dropped = select(pair_hashes, answer_hashes, selection)
    reasons = slow_selection(pairs, selection)
    assert kept.tolist() == [not reason for reason in reasons]
    for reason, mask in dropped.items():
        assert mask.tolist() == [other == reason for other in reasons]
    assert set(reasons) - {""} <= dropped.keys()


def test_occurrences_before_counts_earlier_equal_values() -> None:
    assert occurrences_before(np.array([3, 5, 3, 3, 5], np.uint64)).tolist() == [0, 0, 1, 2, 1]
    assert occurrences_before(np.array([], np.uint64)).tolist() == []

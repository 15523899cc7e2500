"""The selection of pairs from the whole corpus, against a slow loop."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus import selection as selection_module
from chatbot.corpus.reading.sources import TRAINING, VALIDATION
from chatbot.corpus.selection import (
    DUPLICATE,
    EQUAL,
    HELD_OUT,
    IN_VALIDATION_FILE,
    PairHashes,
    Selection,
    held_out_limit,
    select,
)

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60)


def slow_selection(pairs: list[tuple[int, int]], selection: Selection) -> list[str]:
    """The reason to drop each pair, or "" for a pair that is kept, one pair at a time."""
    seen: Counter[int] = Counter()
    answers: Counter[int] = Counter()
    reasons = []
    for pair, answer in pairs:
        reason = EQUAL if selection.equal and pair == answer else ""
        if not reason:
            reason = IN_VALIDATION_FILE if pair in selection.held_out else ""
        if not reason and selection.duplicates:
            reason = DUPLICATE if seen[pair] else ""
            seen[pair] += 1
        if not reason and selection.max_reply_frequency:
            reason = (
                f"pairs beyond --max-reply-frequency {selection.max_reply_frequency}"
                if answers[answer] >= selection.max_reply_frequency
                else ""
            )
            answers[answer] += 1
        reasons.append(reason)
    return reasons


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@given(PAIRS, st.booleans(), st.booleans(), st.none() | st.integers(1, 4), st.frozensets(st.integers(0, 9), max_size=3))
def test_selection_equals_slow_loop(
    at_once: int,
    pairs: list[tuple[int, int]],
    equal: bool,
    duplicates: bool,
    max_frequency: int | None,
    held_out: frozenset[int],
) -> None:
    """The first number stands for the question and the pair, the second for the answer."""
    selection = Selection(equal, duplicates, max_frequency, held_out)
    pair_hashes, answer_hashes = (np.array([pair[side] for pair in pairs], np.uint64) for side in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_module, "AT_ONCE", at_once)
        hashes = PairHashes(pair_hashes, answer_hashes, pair_hashes, pair_hashes, pair_hashes)
        kept, dropped = select(hashes, selection)
    reasons = slow_selection(pairs, selection)
    assert kept.tolist() == [not reason for reason in reasons]
    for reason, mask in dropped.items():
        assert mask.tolist() == [other == reason for other in reasons]
    assert set(reasons) - {""} <= dropped.keys()


def split(questions: list[int]) -> tuple[list[int], list[int]]:
    """The questions of the training part and of the validation part of pairs with these questions' hashes."""
    hashes = np.array(questions, np.uint64)
    numbers = np.arange(len(hashes), dtype=np.uint64)
    masks = [
        select(PairHashes(numbers, numbers, numbers, hashes, numbers), Selection(part=part))[0]
        for part in (TRAINING, VALIDATION)
    ]
    assert (masks[0] ^ masks[1]).all(), "each pair is in one part"
    return hashes[masks[0]].tolist(), hashes[masks[1]].tolist()


def random_questions(number: int) -> list[int]:
    return np.random.default_rng(1).integers(0, 2**64, number, np.uint64).tolist()


@pytest.mark.parametrize(
    ("pairs", "least", "most"), [(1_999, 0, 0), (2_000, 60, 140), (20_000, 900, 1_100), (60_000, 1_990, 2_000)]
)
def test_five_percent_of_a_large_enough_corpus_are_held_out(pairs: int, least: int, most: int) -> None:
    assert least <= len(split(random_questions(pairs))[1]) <= most


@pytest.mark.parametrize(("before", "after"), [(1_000, 1_000), (3_000, 9_000), (30_000, 90_000)])
def test_no_question_is_in_both_parts_and_a_grown_file_does_not_hold_out_what_was_trained_on(
    before: int, after: int
) -> None:
    questions = random_questions(after)
    training, validation = split(questions[:before] * 3)[0], split(questions * 3)[1]
    assert len(validation) > 60
    assert not set(training) & set(validation)


def test_frequent_question_does_not_take_most_of_a_small_corpus() -> None:
    training, validation = split([5] * 1_500 + random_questions(1_000))
    assert len(validation) == 0
    assert len(training) == 2_500
    training, validation = split([2**59] * 1_500 + random_questions(1_000))  # behind others among the candidates
    assert 10 < len(validation) < 60


def test_held_out_pairs_are_counted_after_duplicates_and_before_frequent_replies() -> None:
    questions = np.array(random_questions(4_000), np.uint64)
    repeated = np.repeat(questions[:2_000], 2)
    hashes = PairHashes(np.arange(1, 4_001, dtype=np.uint64), np.zeros(4_000, np.uint64), repeated, repeated, repeated)
    limit = held_out_limit(questions[:2_000])
    kept, dropped = select(hashes, Selection(duplicates=True, max_reply_frequency=7, part=TRAINING))
    assert dropped[HELD_OUT].sum() == (questions[:2_000] < limit).sum() > 60
    assert kept.sum() == 7

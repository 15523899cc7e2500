"""Selection of pairs: rules that drop pairs, such as duplicates, and the split into training and validation pairs."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.pair_ids import Hashes, Mask
from chatbot.corpus.reading.sources import TRAINING
from chatbot.corpus.tokenizer import read_word_list

# Maximum number of hashes to sort at once, which limits memory use.
AT_ONCE = 4_000_000

# In corpora of at least MIN_PAIRS_TO_SPLIT pairs, --validation auto holds out this fraction of the questions, but at
# most MAX_HELD_OUT pairs. The questions with the smallest hashes are held out, so no question is in both sets. With
# history, whole conversations are held out, by the hash of their first turn.
HELD_OUT_SHARE = 0.05
MIN_PAIRS_TO_SPLIT = 2_000
MAX_HELD_OUT = 2_000

IN_VALIDATION_FILE = "pairs that are in the validation file too"
HELD_OUT = "pairs held out for validation"
DUPLICATE = "duplicate pairs"
EQUAL = "pairs whose answer equals the question"


def word_filter(settings: CorpusSettings) -> Callable[[str], bool] | None:
    """Return a function that tests whether a cleaned text contains a word in --block-list.

    Returns None if there is no block list. Raises UserError if the block list cannot be read.
    """
    if settings.block_list is None:
        return None
    text, _ = read_word_list(settings.block_list, "block list")
    return _word_filter(settings.clean, text)


@functools.lru_cache(1)  # all chunks of a corpus have the same block list
def _word_filter(rules: tuple[str, ...], block_list: str) -> Callable[[str], bool]:
    """Return a function that tests whether a text contains a blocked word, as it is in the list or after cleaning."""
    blocked = [line.strip() for line in block_list.splitlines()]
    words = {*blocked, *map(cleaner(rules), blocked)} - {""}
    lengths = sorted(set(map(len, words)))

    def is_blocked(text: str) -> bool:
        return any(text[start : start + n] in words for n in lengths for start in range(len(text) - n + 1))

    return is_blocked


class PairHashes(NamedTuple):
    """Hashes of pairs and their parts. Each array has shape [pairs]."""

    questions: Hashes
    answers: Hashes
    pairs: Hashes  # question and answer
    groups: Hashes  # hash of the question or, with history, the first turn; pairs of a group are held out together
    examples: Hashes  # hash of the pair or, with history, the pair and its previous turns


@dataclasses.dataclass(frozen=True)
class Selection:
    """Rules that select pairs. Texts are compared by their 64-bit hashes.

    In a corpus of ten million pairs, the probability that a hash collision drops a pair is 1 in 300,000.
    """

    equal: bool = False  # drop pairs whose answer equals the question; they remain in the history of later pairs
    duplicates: bool = False  # keep only the first of several equal pairs
    max_reply_frequency: int | None = None  # maximum number of pairs with the same answer; the first pairs are kept
    held_out: frozenset[int] = frozenset()  # hashes of pairs to exclude from training
    part: str | None = None  # TRAINING, VALIDATION, or None for all pairs

    @classmethod
    def from_settings(cls, settings: CorpusSettings) -> "Selection":
        """Create a selection from the settings of a corpus, without held-out pairs."""
        return cls("equal" in settings.clean, "duplicates" in settings.clean, settings.max_reply_frequency)


def select(hashes: PairHashes, selection: Selection) -> tuple[Mask, dict[str, Mask]]:
    """Return a mask of the selected pairs, and for each reason a mask of the dropped pairs, with shape [pairs].

    Rules are applied one after another, so each pair is dropped for one reason only. In a validation set, the training
    pairs are dropped without a reason.
    """
    selected = np.ones(len(hashes.pairs), np.bool_)
    dropped: dict[str, Mask] = {}

    def drop(reason: str, rows: Mask) -> None:
        dropped[reason] = selected & rows
        np.logical_and(selected, ~rows, out=selected)

    if selection.equal:
        drop(EQUAL, hashes.questions == hashes.answers)
    if selection.held_out:
        drop(IN_VALIDATION_FILE, np.isin(hashes.pairs, np.array(sorted(selection.held_out), np.uint64)))
    if selection.duplicates:
        drop(DUPLICATE, _find_repeated(hashes.examples, selected, 1))
    if selection.part is not None:
        is_held_out = hashes.groups < held_out_limit(hashes.groups[selected])
        if selection.part == TRAINING:
            drop(HELD_OUT, is_held_out)
        else:
            selected &= is_held_out
    if selection.max_reply_frequency is not None:
        reason = f"pairs beyond --max-reply-frequency {selection.max_reply_frequency}"
        drop(reason, _find_repeated(hashes.answers, selected, selection.max_reply_frequency))
    return selected, dropped


def held_out_limit(group_hashes: Hashes) -> np.uint64:
    """Return the limit below which the hash of a group must be to be held out. It is 0 if there are too few pairs.

    At most a tenth of the pairs is held out, because one very large group could contain most of a small corpus.

    Args:
        group_hashes: Hash of the group of each pair, [pairs].
    """
    pairs = len(group_hashes)
    limit: np.uint64 = np.uint64(0 if pairs < MIN_PAIRS_TO_SPLIT else HELD_OUT_SHARE * 2**64)
    candidates = np.sort(group_hashes[group_hashes < limit])
    max_held_out = min(MAX_HELD_OUT, pairs // 10)
    if len(candidates) > max_held_out:
        limit = candidates[max_held_out]
    return limit


def _find_repeated(hashes: Hashes, selected: Mask, limit: int) -> Mask:
    """Return a mask of pairs to drop, [pairs]. Of the pairs with equal hashes, the first `limit` pairs are kept."""
    repeated = np.zeros(len(hashes), np.bool_)
    parts = math.ceil(int(selected.sum()) / AT_ONCE)
    for part in range(parts):
        rows = np.flatnonzero(selected & (hashes % np.uint64(parts) == part))
        repeated[rows] = count_earlier(hashes[rows]) >= limit
    return repeated


def count_earlier(values: Hashes) -> npt.NDArray[np.int64]:
    """For each value, count the equal values before it, [values]."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    index = np.arange(len(values))
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    before = np.empty(len(values), np.int64)
    before[order] = index - np.maximum.accumulate(np.where(is_first, index, 0))
    return before

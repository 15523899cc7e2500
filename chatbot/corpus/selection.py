"""Which pairs are kept: rules about one pair, and rules about all pairs, such as duplicates and held-out pairs."""

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

# The maximum number of hashes sorted at once, which bounds the memory.
AT_ONCE = 4_000_000

# --validation auto holds out the pairs whose question has one of the smallest hashes: this share of all questions, of
# corpora with at least FEWEST_SPLIT pairs, and at most MOST_HELD_OUT pairs. So no question is in both parts, and a
# question that a file has been trained on remains in the training part when the file grows. With history, the hash of
# the conversation's first turn decides for all its pairs.
HELD_OUT_SHARE = 0.05
FEWEST_SPLIT = 2_000
MOST_HELD_OUT = 2_000

IN_VALIDATION_FILE = "pairs that are in the validation file too"
HELD_OUT = "pairs held out for validation"
DUPLICATE = "duplicate pairs"
EQUAL = "pairs whose answer equals the question"


def word_filter(settings: CorpusSettings) -> Callable[[str], bool] | None:
    """Return the function from a cleaned text to whether it contains a word of --block-list, None without one.

    Raises UserError when the list cannot be read.
    """
    if settings.block_list is None:
        return None
    text, _ = read_word_list(settings.block_list, "block list")
    return _word_filter(settings.clean, text)


@functools.lru_cache(1)  # chunks of a corpus have the same words
def _word_filter(rules: tuple[str, ...], block_list: str) -> Callable[[str], bool]:
    """Return the function from a text to whether it contains a blocked word, as written or as cleaned."""
    blocked = [line.strip() for line in block_list.splitlines()]
    words = {*blocked, *map(cleaner(rules), blocked)} - {""}
    lengths = sorted(set(map(len, words)))

    def is_blocked(text: str) -> bool:
        return any(text[start : start + n] in words for n in lengths for start in range(len(text) - n + 1))

    return is_blocked


class PairHashes(NamedTuple):
    """The hashes of pairs and of their sides, [pairs] each. Without history, pairs are the examples."""

    questions: Hashes
    answers: Hashes
    pairs: Hashes  # of question and answer
    groups: Hashes  # held out as a whole: of the question, with history of the first turn of the conversation
    examples: Hashes  # of source and answer: of the pair, with history also of the turns before it


@dataclasses.dataclass(frozen=True)
class Selection:
    """Rules about all pairs. Texts are compared by 64-bit hashes.

    For a corpus of ten million pairs, the probability of a collision, which loses a pair, is 1 in 300,000.
    """

    equal: bool = False  # pairs whose answer equals the question are dropped; history keeps their turns
    duplicates: bool = False  # only the first of equal pairs is kept
    max_reply_frequency: int | None = None  # the maximum number of pairs kept for each answer, the first ones
    held_out: frozenset[int] = frozenset()  # hashes of pairs that must not be trained on
    part: str | None = None  # TRAINING or VALIDATION; None for all pairs

    @classmethod
    def of(cls, settings: CorpusSettings) -> "Selection":
        """Return the selection by the settings of a corpus, without held-out pairs."""
        return cls("equal" in settings.clean, "duplicates" in settings.clean, settings.max_reply_frequency)


def select(hashes: PairHashes, selection: Selection) -> tuple[Mask, dict[str, Mask]]:
    """Return the mask of the kept pairs, [pairs], and by reason the mask of the pairs dropped for it, [pairs].

    Each rule is applied to the pairs that the previous rules kept. When the validation part is selected, pairs of the
    training part are dropped without a reason.
    """
    kept = np.ones(len(hashes.pairs), np.bool_)
    dropped: dict[str, Mask] = {}

    def drop(reason: str, rows: Mask) -> None:
        dropped[reason] = kept & rows
        np.logical_and(kept, ~rows, out=kept)

    if selection.equal:
        drop(EQUAL, hashes.questions == hashes.answers)
    if selection.held_out:
        drop(IN_VALIDATION_FILE, np.isin(hashes.pairs, np.array(sorted(selection.held_out), np.uint64)))
    if selection.duplicates:
        drop(DUPLICATE, _repeated(hashes.examples, kept, 1))
    if selection.part is not None:
        is_held_out = hashes.groups < held_out_limit(hashes.groups[kept])
        if selection.part == TRAINING:
            drop(HELD_OUT, is_held_out)
        else:
            kept &= is_held_out
    if selection.max_reply_frequency is not None:
        reason = f"pairs beyond --max-reply-frequency {selection.max_reply_frequency}"
        drop(reason, _repeated(hashes.answers, kept, selection.max_reply_frequency))
    return kept, dropped


def held_out_limit(group_hashes: Hashes) -> np.uint64:
    """Return the hash below which a group is held out; 0 if there are too few pairs to hold any out.

    group_hashes: [pairs]. A group of very many pairs could take the whole validation part, or most of a small corpus,
    so at most a tenth of the pairs is held out.
    """
    pairs = len(group_hashes)
    limit: np.uint64 = np.uint64(0 if pairs < FEWEST_SPLIT else HELD_OUT_SHARE * 2**64)
    candidates = np.sort(group_hashes[group_hashes < limit])
    most = min(MOST_HELD_OUT, pairs // 10)
    if len(candidates) > most:
        limit = candidates[most]
    return limit


def _repeated(hashes: Hashes, kept: Mask, most: int) -> Mask:
    """Return the mask, [pairs], of the kept pairs whose hash at least `most` earlier kept pairs have."""
    repeated = np.zeros(len(hashes), np.bool_)
    parts = math.ceil(int(kept.sum()) / AT_ONCE)
    for part in range(parts):
        rows = np.flatnonzero(kept & (hashes % np.uint64(parts) == part))
        repeated[rows] = occurrences_before(hashes[rows]) >= most
    return repeated


def occurrences_before(values: Hashes) -> npt.NDArray[np.int64]:
    """Return the number of earlier equal values for each value, [values]."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    index = np.arange(len(values))
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    before = np.empty(len(values), np.int64)
    before[order] = index - np.maximum.accumulate(np.where(is_first, index, 0))
    return before

"""Selection of pairs by filters that depend on the other pairs: duplicates, held-out pairs, generic utterances."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.encoding.chunks import Hashes, Mask

# The maximum number of hashes sorted at once, which bounds the memory.
AT_ONCE = 4_000_000

# --validation auto holds out the pairs whose question has one of the smallest hashes: this share of all questions, of
# corpora with at least FEWEST_SPLIT pairs, and at most MOST_HELD_OUT pairs. So no question is in both parts, and a
# question that a file has been trained on remains in the training part when the file grows. With history, the hash of
# the conversation's first turn decides for all its pairs.
HELD_OUT_SHARE, FEWEST_SPLIT, MOST_HELD_OUT = 0.05, 2_000, 2_000

TRAINING, VALIDATION = "training", "validation"  # the parts of a split

IN_VALIDATION_FILE = "pairs that are in the validation file too"
HELD_OUT = "pairs held out for validation"
DUPLICATE = "duplicate pairs"


class PairHashes(NamedTuple):
    """The hashes of pairs and of their sides."""

    pairs: Hashes  # [pairs] of question and answer
    groups: Hashes  # [pairs] held out as a whole: of the question, with history of the first turn of the conversation
    answers: Hashes  # [pairs]
    examples: Hashes  # [pairs] of source and answer: of the pair, with history also of the turns before it


@dataclasses.dataclass(frozen=True)
class Selection:
    """Filters over all pairs. Texts are compared by 64-bit hashes.

    For a corpus of ten million pairs, the probability of a collision, which loses a pair, is 1 in 300,000.
    """

    duplicates: bool = False  # only the first of equal pairs is kept
    max_reply_frequency: int | None = None  # the maximum number of pairs kept for each answer, the first ones
    held_out: frozenset[int] = frozenset()  # hashes of pairs that must not be trained on
    part: str | None = None  # TRAINING or VALIDATION; None for all pairs

    @classmethod
    def of(cls, settings: CorpusSettings) -> "Selection":
        """Return the selection by the settings of a corpus, without held-out pairs."""
        return cls(duplicates="duplicates" in settings.clean, max_reply_frequency=settings.max_reply_frequency)

    @property
    def too_frequent(self) -> str:
        """The reason why a pair with a frequent answer is dropped."""
        return f"pairs beyond --max-reply-frequency {self.max_reply_frequency}"


def select(hashes: PairHashes, selection: Selection, usable: Mask | None = None) -> tuple[Mask, dict[str, Mask]]:
    """Return the mask of the kept pairs, [pairs], and by reason the mask of the pairs dropped for it, [pairs].

    Each filter is applied to the pairs that the previous filters kept. A pair of the other part is dropped without a
    reason when the validation part is selected, and so is a pair that is not usable.
    usable: [pairs]; None: all are.
    """
    kept = np.ones(len(hashes.pairs), np.bool_) if usable is None else usable.copy()
    dropped: dict[str, Mask] = {}
    if selection.held_out:
        held_out = np.fromiter(selection.held_out, np.uint64, len(selection.held_out))
        dropped[IN_VALIDATION_FILE] = kept & np.isin(hashes.pairs, held_out)
        kept &= ~dropped[IN_VALIDATION_FILE]
    if selection.duplicates:
        dropped[DUPLICATE] = _repeated(hashes.examples, kept, 1)
        kept &= ~dropped[DUPLICATE]
    if selection.part is not None:
        is_held_out = hashes.groups < held_out_limit(hashes.groups[kept])
        if selection.part == TRAINING:
            dropped[HELD_OUT] = kept & is_held_out
        kept &= is_held_out if selection.part == VALIDATION else ~is_held_out
    if selection.max_reply_frequency is not None:
        dropped[selection.too_frequent] = _repeated(hashes.answers, kept, selection.max_reply_frequency)
        kept &= ~dropped[selection.too_frequent]
    return kept, dropped


def held_out_limit(group_hashes: Hashes) -> np.uint64:
    """Return the hash below which a group is held out; 0 if there are too few pairs to hold any out.

    group_hashes: [pairs]. A group of very many pairs could take the whole validation part, or most of a small corpus,
    so at most a tenth of the pairs is held out.
    """
    pairs = len(group_hashes)
    candidates = np.sort(group_hashes[group_hashes < np.uint64(HELD_OUT_SHARE * 2**64)])
    return limit_of_smallest(candidates[: MOST_HELD_OUT + 1], pairs)


def limit_of_smallest(smallest: Hashes, pairs: int) -> np.uint64:
    """Return the limit of `held_out_limit` from the sorted smallest hashes, at most MOST_HELD_OUT + 1, of all pairs."""
    if pairs < FEWEST_SPLIT:
        return np.uint64(0)
    most = min(MOST_HELD_OUT, pairs // 10)
    share = np.uint64(HELD_OUT_SHARE * 2**64)
    return min(share, smallest[most]) if len(smallest) > most else share


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
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(values)]
    index = np.arange(len(values))
    before = np.empty(len(values), np.int64)
    before[order] = index - np.maximum.accumulate(np.where(is_first, index, 0))
    return before

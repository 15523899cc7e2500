"""Selection of pairs by filters that depend on the other pairs: duplicates, frequent replies, held-out pairs."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Hashes, Mask

# The maximum number of hashes sorted at once, which bounds the memory.
AT_ONCE = 4_000_000

HELD_OUT = "pairs that are in the validation file too"
DUPLICATE = "duplicate pairs"


@dataclasses.dataclass(frozen=True)
class Selection:
    """Filters over all pairs. Texts are compared by 64-bit hashes.

    For a corpus of ten million pairs, the probability of a collision, which loses a pair, is 1 in 300,000.
    """

    duplicates: bool = False  # only the first of equal pairs is kept
    max_reply_frequency: int | None = None  # the maximum number of pairs kept for each answer, the first ones
    held_out: frozenset[int] = frozenset()  # hashes of pairs that must not be trained on

    @property
    def too_frequent(self) -> str:
        """The reason why a pair with a frequent answer is dropped."""
        return f"pairs beyond --max-reply-frequency {self.max_reply_frequency}"


def select(pair_hashes: Hashes, answer_hashes: Hashes, selection: Selection) -> tuple[Mask, dict[str, Mask]]:
    """Return the mask of the kept pairs, [pairs], and by reason the mask of the pairs dropped for it, [pairs].

    Each filter is applied to the pairs that the previous filters kept.
    """
    kept = np.ones(len(pair_hashes), np.bool_)
    dropped: dict[str, Mask] = {}
    if selection.held_out:
        held_out = np.fromiter(selection.held_out, np.uint64, len(selection.held_out))
        dropped[HELD_OUT] = np.isin(pair_hashes, held_out)
        kept &= ~dropped[HELD_OUT]
    if selection.duplicates:
        dropped[DUPLICATE] = _repeated(pair_hashes, kept, 1)
        kept &= ~dropped[DUPLICATE]
    if selection.max_reply_frequency is not None:
        dropped[selection.too_frequent] = _repeated(answer_hashes, kept, selection.max_reply_frequency)
        kept &= ~dropped[selection.too_frequent]
    return kept, dropped


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

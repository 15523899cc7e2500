"""Which pairs of a whole corpus stay: what a pair by itself cannot tell."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Hashes

Mask = npt.NDArray[np.bool_]

# Hashes that are sorted at once. A larger corpus is taken in parts, so that memory does not grow with it.
AT_ONCE = 4_000_000

HELD_OUT = "pairs that are in the validation file too"
DUPLICATE = "pairs that stood before"


@dataclasses.dataclass(frozen=True)
class Selection:
    """The rules. Texts are told apart by 64-bit hashes: of 300,000 corpora of ten million pairs, one loses a pair."""

    duplicates: bool = False  # of equal pairs only the first stays
    max_reply_frequency: int | None = None  # of the pairs with one answer the first so many stay
    held_out: frozenset[int] = frozenset()  # hashes of pairs that must not be trained on

    @property
    def beyond(self) -> str:
        """The reason why a pair with a frequent answer is dropped."""
        return f"pairs beyond --max-reply-frequency {self.max_reply_frequency}"


class Selected(NamedTuple):
    """What `select` found, a list item a chunk."""

    kept: list[Mask]
    dropped: list[dict[str, int]]  # pairs that do not stay, by reason


def select(
    pair_hashes: Callable[[], Iterable[Hashes]], answer_hashes: Callable[[], Iterable[Hashes]], rules: Selection
) -> Selected:
    """Apply the rules, each to what the ones before it left. "First" is in the order of the chunks.

    pair_hashes, answer_hashes: read the hashes of one chunk after the other.
    """
    kept = [np.ones(len(hashes), np.bool_) for hashes in pair_hashes()]
    dropped: list[dict[str, int]] = [{} for _ in kept]

    def keep_only(stay: list[Mask], reason: str) -> None:
        nonlocal kept
        for counts, before, after in zip(dropped, kept, stay, strict=True):
            if gone := int(before.sum() - after.sum()):
                counts[reason] = gone
        kept = stay

    if rules.held_out:
        held_out = np.fromiter(rules.held_out, np.uint64, len(rules.held_out))
        keep_only([~np.isin(hashes, held_out) for hashes in pair_hashes()], HELD_OUT)
    if rules.duplicates:
        keep_only(_first(pair_hashes, kept, 1), DUPLICATE)
    if rules.max_reply_frequency is not None:
        keep_only(_first(answer_hashes, kept, rules.max_reply_frequency), rules.beyond)
    return Selected(kept, dropped)


def _first(hashes_of_chunks: Callable[[], Iterable[Hashes]], kept: list[Mask], most: int) -> list[Mask]:
    """Of the kept pairs, the first `most` with each hash."""
    parts = math.ceil(sum(int(mask.sum()) for mask in kept) / AT_ONCE)
    stay = [mask.copy() for mask in kept]
    for part in range(parts):
        rows, values = [], []
        for hashes, mask in zip(hashes_of_chunks(), kept, strict=True):
            rows.append(np.nonzero(mask & (hashes % parts == part))[0])
            values.append(hashes[rows[-1]])
        beyond = occurrences(np.concatenate(values)) >= most
        ends = np.cumsum([len(some) for some in rows])
        for mask, some, gone in zip(stay, rows, np.split(beyond, ends[:-1]), strict=True):
            mask[some[gone]] = False
    return stay


def occurrences(values: Hashes) -> npt.NDArray[np.int64]:
    """[values] how many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(values)]
    index = np.arange(len(values))
    found = np.empty(len(values), np.int64)
    found[order] = index - np.maximum.accumulate(np.where(begins, index, 0))
    return found

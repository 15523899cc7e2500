"""Which pairs are kept: rules about one pair, and rules about all pairs, such as duplicates and held-out pairs."""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import PAIR_RULES, TEXT_RULES, CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.pair_ids import Hashes, Mask
from chatbot.corpus.reading.files.word_list import read_word_list
from chatbot.corpus.reading.pair import NEW, RESUMED, Pair
from chatbot.corpus.reading.report import Report

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


# The reason to drop a pair although the history may have its turns. All other reasons reject a turn.
EQUAL = "pairs whose answer equals the question"


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The settings for the preparation of a single pair. Hashable, and small enough to be sent with every chunk."""

    rules: tuple[str, ...]  # of TEXT_RULES and PAIR_RULES
    min_characters: int
    max_characters: int | None
    blocked: tuple[str, ...]
    tokenizer: str
    dictionary: str | None
    history: bool = False  # whether the turns of dropped pairs are kept for the history, and conversations go on


def preparation(settings: CorpusSettings, history: bool = False) -> Preparation:
    """Read the block list and return the preparation for these settings.

    history: whether sources have the turns before the question. Raises UserError when the block list cannot be read or
    the library of a cleaning rule is missing.
    """
    cleaner(settings.clean)
    return Preparation(
        tuple(rule for rule in (*TEXT_RULES, *PAIR_RULES) if rule in settings.clean),
        settings.min_characters,
        settings.max_characters,
        _read_block_list(settings.block_list) if settings.block_list else (),
        settings.tokenizer,
        settings.dictionary,
        history,
    )


def clean_pairs(
    pairs: Iterable[Pair], first: int, report: Report, preparation: Preparation
) -> Iterator[tuple[Pair, bool]]:
    """Yield the cleaned pairs, and whether each is kept. The report counts changed and dropped pairs.

    Dropped pairs are yielded only with history, and only for the reason EQUAL: their turns are in the history of
    the next pairs. The first pair, and without history the pair after one that is dropped, begins a new conversation.
    first: the number of the first pair in its file, from 1; the report names pairs by these numbers.
    """
    changed: Counter[str] = Counter()
    clean = cleaner(preparation.rules, changed)
    reason_to_drop = _filter(preparation)
    gap: int | None = NEW  # the link of a pair after missing ones; None: no pair is missing
    for number, pair in enumerate(pairs, start=first):
        question, answer, link = clean(pair[0]), clean(pair[1]), pair[2]
        reason = reason_to_drop(question, answer)
        if reason:
            report.drop(reason, f"{report.file}, pair {number:,}")
            if not preparation.history or reason != EQUAL:
                gap = RESUMED if preparation.history and NEW not in (gap, link) else NEW
                continue
        if gap is not None:
            link, gap = (NEW if link == NEW else gap), None
        yield (question, answer, link), not reason
    report.changed = dict(changed)


def _read_block_list(path: str) -> tuple[str, ...]:
    text, _ = read_word_list(path, "block list")
    return tuple(sorted({line.strip() for line in text.splitlines()} - {""}))


def _filter(preparation: Preparation) -> Callable[[str, str], str]:
    """Return the function from a cleaned pair to the reason to drop it, or to "" for a pair to keep."""
    least, most = preparation.min_characters, preparation.max_characters
    is_blocked = _blocker(preparation.rules, preparation.blocked) if preparation.blocked else None
    equal = "equal" in preparation.rules

    def reason_to_drop(question: str, answer: str) -> str:
        if not question or not answer:
            return "pairs with an empty side"
        if least > 1 and min(_visible(question), _visible(answer)) < least:
            return f"pairs with fewer than {least:,} characters on a side"
        if most is not None and max(_visible(question), _visible(answer)) > most:
            return f"pairs with more than {most:,} characters on a side"
        if is_blocked is not None and (is_blocked(question) or is_blocked(answer)):
            return "pairs with a blocked word"
        return EQUAL if equal and question == answer else ""

    return reason_to_drop


@functools.lru_cache(1)  # chunks of a corpus have the same words
def _blocker(rules: tuple[str, ...], blocked: tuple[str, ...]) -> Callable[[str], bool]:
    """Return the function from a text to whether it contains a blocked word, as written or as cleaned.

    Its time does not depend on the number of words, of which usual lists have 20,000.
    """
    words = frozenset((*blocked, *map(cleaner(rules), blocked))) - {""}
    characters = frozenset(word for word in words if len(word) == 1)
    lengths: dict[str, set[int]] = {}  # of the longer words, by their first two characters
    for word in words - characters:
        lengths.setdefault(word[:2], set()).add(len(word))

    def is_blocked(text: str) -> bool:
        if not characters.isdisjoint(text):
            return True
        for start in range(len(text) - 1):
            beginning = text[start : start + 2]
            if beginning in lengths and any(text[start : start + n] in words for n in lengths[beginning]):
                return True
        return False

    return is_blocked


def _visible(text: str) -> int:
    return len(text) - text.count(" ")

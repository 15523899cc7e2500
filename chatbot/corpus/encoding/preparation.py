"""Cleaning and filtering of single pairs, and the settings for it, tokenizer included."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from chatbot.config.corpus import PAIR_RULES, TEXT_RULES, CorpusSettings
from chatbot.corpus.reading.files.word_list import read_word_list
from chatbot.corpus.reading.pair import NEW, RESUMED, Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.text.cleaning import cleaner

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

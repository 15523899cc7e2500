"""Cleaning and filtering of single pairs, and the settings for it, tokenizer included."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from chatbot.config.corpus import PAIR_RULES, TEXT_RULES, CorpusSettings
from chatbot.corpus.reading.files.word_list import read_word_list
from chatbot.corpus.reading.pair import NEW, NEXT, OVERLAP, RESUMED, Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.text.cleaning import cleaner

NO_WEIGHT = "pairs of weight 0"


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The settings for the preparation of a single pair. Hashable, and small enough to be sent with every chunk."""

    rules: tuple[str, ...]  # of TEXT_RULES and PAIR_RULES
    min_characters: int
    max_characters: int | None
    blocked: tuple[str, ...]
    tokenizer: str
    dictionary: str | None
    history: bool = False  # whether a conversation goes on after a dropped pair; without history, nobody asks


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


def clean_pairs(pairs: Iterable[Pair], first: int, report: Report, preparation: Preparation) -> Iterator[Pair]:
    """Yield the cleaned pairs without those that the filters drop. The report counts changed and dropped pairs.

    The first pair, and without history the pair after one that is dropped, begins a new conversation.
    first: the number of the first pair in its file, from 1; the report names pairs by these numbers.
    """
    changed: Counter[str] = Counter()
    clean = cleaner(preparation.rules, changed)
    reason_to_drop = _filter(preparation)
    before: list[int] = [NEW]  # the links of the pairs that were dropped since the last kept one
    for number, pair in enumerate(pairs, start=first):
        question, answer, link = clean(pair[0]), clean(pair[1]), pair[2]
        if reason := (NO_WEIGHT if len(pair) == 4 and not pair[3] else reason_to_drop(question, answer)):
            report.drop(reason, f"{report.file}, pair {number:,}")
            before.append(link)
        else:
            link = _link_after(before, link, preparation.history) if before else link
            yield (question, answer, link, pair[3]) if len(pair) == 4 else (question, answer, link)
            before.clear()
    report.changed = dict(changed)


def _link_after(dropped: Sequence[int], link: int, history: bool) -> int:
    """Return the link of a pair after dropped ones. dropped: their links."""
    if not history or NEW in (*dropped, link):
        return NEW
    # Both turns of a single dropped pair are turns of the pairs beside it, too: only the pair itself is missing.
    return NEXT if [*dropped, link] == [OVERLAP, OVERLAP] else RESUMED


def _read_block_list(path: str) -> tuple[str, ...]:
    text, _ = read_word_list(path, "block list")
    return tuple(sorted({line.strip() for line in text.splitlines()} - {""}))


def _filter(preparation: Preparation) -> Callable[[str, str], str]:
    """Return the function from a cleaned pair to the reason to drop it, or to "" for a pair to keep."""
    least, most = preparation.min_characters, preparation.max_characters
    clean = cleaner(preparation.rules)
    blocked = {*preparation.blocked, *map(clean, preparation.blocked)} - {""}  # as written, and as cleaned
    pattern = re.compile("|".join(map(re.escape, sorted(blocked)))) if blocked else None
    equal = "equal" in preparation.rules

    def reason_to_drop(question: str, answer: str) -> str:
        if not question or not answer:
            return "pairs with an empty side"
        if least > 1 and min(_visible(question), _visible(answer)) < least:
            return f"pairs with fewer than {least:,} characters on a side"
        if most is not None and max(_visible(question), _visible(answer)) > most:
            return f"pairs with more than {most:,} characters on a side"
        if equal and question == answer:
            return "pairs whose answer equals the question"
        if pattern is not None and (pattern.search(question) or pattern.search(answer)):
            return "pairs with a blocked word"
        return ""

    return reason_to_drop


def _visible(text: str) -> int:
    return len(text) - text.count(" ")

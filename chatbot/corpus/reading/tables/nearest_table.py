"""What a text is like that is nearly a table: too irregular, or with a separator of several characters."""

import re
from collections.abc import Sequence

from chatbot.corpus.reading.tables.dialect import nearest

REGULAR = 0.9  # of the lines have the separator once
SINGLE = (":", "：", "=", "＝", "    ", " - ", " – ", " — ")
LEAST_LINES = 3
SEPARATORS = re.compile(
    r"\|\|\||\[SEP\]|<sep>|<SEP>|</s>|={1,3}>|-{1,2}>|→|@@@|###|\$\$\$|:{2,3}|\+\+\+\$\+\+\+|--|——>|~~|\\t"
)


def odd_separator(sample: Sequence[str]) -> str:
    """Return the text of several characters that separates two parts of each line, "" if there is none."""
    filled = [line for line in sample if line.strip()]
    found = [SEPARATORS.findall(line) for line in filled]
    separator = next((each[0] for each in found if each), "")
    once = sum(each == [separator] for each in found)
    if separator and len(filled) > 1 and once >= REGULAR * len(filled):
        return separator
    for mark in SINGLE:  # once in every line, and not after a name, which would be repeated
        lefts = {line.strip().partition(mark)[0] for line in filled if line.strip().count(mark) == 1}
        if len(lefts) >= max(LEAST_LINES, REGULAR * len(filled)):
            return mark
    return ""


def nearest_table(sample: Sequence[str]) -> str:
    """Return the nearest guess and what to do; "" without a guess. sample: the first lines."""
    filled = [line.strip() for line in sample if line.strip()]
    if any("\0" in line for line in filled):
        return ""
    with_tab = sum("\t" in line for line in filled)
    if with_tab:
        lines = f"{with_tab:,} of the first {len(filled):,} lines have a tab"
        return f"{lines}; if it separates question and answer, give --format tsv"
    if shape := nearest(sample):
        return (
            f"{shape.same:,} of the first {shape.total:,} lines have {shape.width} columns separated by "
            f"{shape.dialect.separator!r}, as prose may have; if it is a table, give --format csv"
        )
    return ""

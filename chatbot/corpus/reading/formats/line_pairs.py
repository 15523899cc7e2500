"""Two lines a pair: the question, the answer, and a blank line between pairs.

A text without any blank line is detected as no format, but `--format lines` reads it: each two lines are a pair.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.formats.dialect import TABLE_ENDINGS
from chatbot.corpus.reading.formats.doubts import doubt_of
from chatbot.corpus.reading.open.text_file import TextFile, is_rule, lines
from chatbot.corpus.reading.report import ReadOptions, Report

BLOCKS = 2  # at least
REGULAR = 0.95  # of the blocks have two lines
LONGEST = 60  # characters of most first lines; the lines of prose are longer
MARKED = 0.5  # of the first lines: more begin with a speaker, end with a time, or go on in the second line

# A speaker or another label, as in a chat or a recipe; a time first or last, as in a chat's header or in subtitles; an
# open clause.
_MARK = re.compile(
    r"[^\s:：,，。?？!！]{1,20}( [^\s:：]{1,20})?[:：]\s*(\D|$)"
    r"|\W?\d{1,2}:\d{2}(:\d{2})?( ?[AP]M)?\W"
    r"|.*\d{1,2}:\d{2}([:.,]\d{2,3})?\W*( ?[AP]M)?$"
    r"|.*[,，、;；]$",
    re.IGNORECASE,
)


def is_line_pairs(text: TextFile) -> bool | str:
    """Return whether nearly all blocks between blank lines have two short lines; if these may be no pairs, why."""
    blocks = _blocks_of(text.first_lines)
    pairs = [block for block in blocks if len(block) == 2]
    blocks = blocks if text.whole else blocks[:-1]  # the last one may be incomplete
    long = sum(len(block[0]) > LONGEST for block in blocks)
    marked = sum(is_marked(block[0]) for block in blocks)
    regular = len(blocks) >= BLOCKS and sum(len(block) == 2 for block in blocks) >= REGULAR * len(blocks)
    if not regular or long * 2 >= len(blocks) or marked > MARKED * len(blocks) or text.ending in TABLE_ENDINGS:
        return False
    return doubt_of(pairs, "line") or True


def _text_of(line: str) -> str:
    """Return the line without its end; "" for one that separates pairs."""
    return "" if is_rule(line) else line.strip()


def is_marked(line: str) -> bool:
    """Return whether a line begins with a speaker, ends with a time, or goes on in the next line."""
    return _MARK.match(line) is not None


def may_be_line_pairs(text: TextFile) -> str:
    """Return why these may be pairs: short lines without blank ones; "" for other lines."""
    lines = [*map(_text_of, text.first_lines)]
    plain = sum(len(line) <= LONGEST and not is_marked(line) for line in lines)
    fits = len(lines) >= 2 * BLOCKS and all(lines) and plain * 2 > len(lines)
    return "each two lines may be a pair" if fits else ""


def _blocks_of(sample: Sequence[str]) -> list[list[str]]:
    return [[*block] for filled, block in groupby(map(_text_of, sample), bool) if filled]


def read_line_pairs(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of all blocks of two lines, or of each two lines if the text begins without a blank line."""
    size = 2 if all(map(_text_of, text.first_lines)) else 3
    for filled, block in groupby(lines(text, report), lambda line: line[1] is None or _text_of(line[1]) != ""):
        while filled and (part := [*islice(block, size)]):
            first, second = part[0][1], part[-1][1]
            if len(part) == 2 and first is not None and second is not None:
                yield first, second, NEW
            elif all(line is not None for _, line in part):
                report.drop("blocks that do not have two lines", f"{text.place}, line {part[0][0]}")
            filled = size == 2  # the other lines of a long block are left out

"""The nearest guess for a text that is like a conversation, but too irregular to be taken for one."""

from collections.abc import Callable, Sequence
from itertools import groupby

from chatbot.corpus.reading.qq import is_header_of_qq
from chatbot.corpus.reading.question_lines import has_label
from chatbot.corpus.reading.subtitles import has_times
from chatbot.corpus.reading.whatsapp import is_header_of_whatsapp

LEAST = 2  # lines or blocks that fit
BLOCKS = 0.5  # of the blocks between blank lines have two lines

# By format: whether a line fits, and what such a line has.
LINES: dict[str, tuple[Callable[[str], bool], str]] = {
    "whatsapp": (is_header_of_whatsapp, "a date, a time and a name"),
    "qq": (is_header_of_qq, "a date, a time and a name"),
    "srt": (has_times, "two times with an arrow"),
    "qa": (has_label, "a label such as Q: or A:"),
}


def nearest_talk(sample: Sequence[str]) -> str:
    """Return the nearest guess and the flag that settles it; "" without a guess. sample: the first lines."""
    lines = [line.strip() for line in sample]
    for name, (fits, content) in LINES.items():
        found = sum(map(fits, lines))
        if found >= LEAST:
            return f"nearest is {name}: {found:,} of the first {len(lines):,} lines have {content}; --format {name}"
    blocks = [len([*block]) for filled, block in groupby(lines, bool) if filled]
    pairs = sum(size == 2 for size in blocks)
    if pairs >= LEAST and pairs >= BLOCKS * len(blocks):
        return f"nearest is lines: {pairs:,} of the first {len(blocks):,} blocks have two lines; --format lines"
    return ""

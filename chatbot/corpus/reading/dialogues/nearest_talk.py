"""The nearest guess for a text that is no corpus, or like a conversation, but too irregular to be taken for one."""

import re
from collections.abc import Callable, Sequence
from itertools import groupby

from chatbot.corpus.reading.dialogues.line_pairs import is_marked
from chatbot.corpus.reading.dialogues.qq import is_header_of_qq
from chatbot.corpus.reading.dialogues.question_lines import has_label
from chatbot.corpus.reading.dialogues.subtitles import has_times
from chatbot.corpus.reading.dialogues.whatsapp import is_header_of_whatsapp
from chatbot.corpus.reading.files.charset import CONTROL

LEAST = 2  # lines or blocks that fit
BLOCKS = 0.5  # of the blocks between blank lines have two lines: lines_mostly.txt
UNTYPICAL = frozenset(CONTROL.decode("latin-1") + "\ufffd")  # characters that are in no text
BINARY = 0.1  # of the characters are such

# By format: whether a line fits, and what such a line has.
LINES: dict[str, tuple[Callable[[str], bool], str]] = {
    "whatsapp": (is_header_of_whatsapp, "a date, a time and a name"),
    "qq": (is_header_of_qq, "a date, a time and a name"),
    "srt": (has_times, "two times with an arrow"),
    "qa": (has_label, "a label such as Q: or A:"),
}
# Files that are no corpus, by their beginning, and what to do instead.
OTHERS = (
    (r"<!doctype html|<html", "an HTML page: export the chat as text or JSON, or save its text"),
    (r"<\?xml", "an XML document: convert it to a table or to JSON"),
    (r"\{\\rtf", "a document of a word processor: save it as plain text"),
    (r"%pdf-", "a PDF document: save its text"),
    (r"sqlite format 3", "an SQLite database: export the table as CSV"),
    (
        r"(--|/\*|insert into|create table|drop table|set )(?s:.*)(create table|insert into|values)",
        "an SQL dump: export the table as CSV",
    ),
)
_OTHERS = [(re.compile(rf"\s*(?:{pattern})", re.IGNORECASE), advice) for pattern, advice in OTHERS]
# A statement of a programming language: its end, or its first word.
_CODE = re.compile(
    r".*(?:[;{}]|\):)$|(?:import|from|def|class|return|function|const|var|let|print|#include|public|private) ?[\w(<\"]"
)


def is_program(sample: Sequence[str]) -> bool:
    """Return whether most lines are statements of a programming language."""
    filled = [line.strip()[:1000] for line in sample if line.strip()]
    return sum(_CODE.match(line) is not None for line in filled) * 2 >= len(filled) > 0


def nearest_kind(sample: str) -> str:
    """Return what a file is that is no corpus, and the remedy; "" for any other text. sample: its beginning."""
    for pattern, advice in _OTHERS:
        if pattern.match(sample):
            return f"it looks like {advice}"
    head = sample[:1000]
    if sum(character in UNTYPICAL for character in head) > BINARY * len(head):
        return "it looks like binary data: give a text file"
    return ""


def nearest_talk(sample: Sequence[str]) -> str:
    """Return the nearest guess and the remedy; "" without a guess. sample: the first lines."""
    lines = [line.strip() for line in sample]
    for name, (fits, content) in LINES.items():
        found = sum(map(fits, lines))
        if found >= LEAST:
            return f"nearest is {name}: {found:,} of the first {len(lines):,} lines have {content}; --format {name}"
    blocks = [[*block] for filled_block, block in groupby(lines, bool) if filled_block]
    pairs = sum(len(block) == 2 and not is_marked(block[0]) for block in blocks)
    if pairs >= LEAST and pairs >= BLOCKS * len(blocks):
        return f"nearest is lines: {pairs:,} of the first {len(blocks):,} blocks have two lines; --format lines"
    return ""

"""The Douban Conversation Corpus (Wu et al., 2017) and the Ubuntu corpus V1: label, turns and response, with tabs.

The label says whether the response belongs to the turns. Each line is a conversation; a context with several true
responses stands on several lines, whose equal pairs the rule `duplicates` drops.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, OVERLAP, Pair
from chatbot.corpus.reading.report import Report

LABELS = ("0", "1")
FALSE_RESPONSES = "responses labelled as false"
LABELLED = 0.95  # of the lines


def is_douban(sample: Sequence[str]) -> bool:
    """Return whether nearly all lines have a label and two or more turns."""
    rows = [line.rstrip("\r\n").split("\t") for line in sample if line.strip()]
    labels = [row[0] for row in rows if len(row) > 2 and row[0] in LABELS]
    return "1" in labels and len(labels) >= LABELLED * len(rows)


def read_douban(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield adjacent turns of the lines whose response is true."""
    for number, line in lines(text, report):
        if not line or line.isspace():
            continue
        label, *turns = line.split("\t")
        turns = [turn for turn in turns if turn.strip()]
        if label == "0" and turns:
            report.drop(FALSE_RESPONSES, f"{text.place}, line {number}")
        elif label != "1" or len(turns) < 2:
            report.drop("lines without a label and two turns", f"{text.place}, line {number}")
        else:
            link = NEW
            for first, second in pairwise(turns):
                yield first, second, link
                link = OVERLAP

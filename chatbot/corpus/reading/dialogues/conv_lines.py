"""The conv format: "E" begins a conversation, "M text" is an utterance.

Several corpora in this format have slashes between words.
"""

import re
from collections.abc import Iterator

from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, OVERLAP, Pair
from chatbot.corpus.reading.report import Report

SLASHED_SHARE = 0.9  # of the longer utterances; others contain a slash by chance ("1/2", "http://")
LONGER = 3  # characters; shorter utterances are a single word


def read_conv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield adjacent utterances of each conversation, without the slashes between words."""
    slashed = is_slashed(text.sample)
    previous: str | None = None
    link = NEW
    count, start = 0, 1  # utterances and first line of the conversation
    for number, line in lines(text, report):
        if line is None:
            previous, link = None, NEW  # an utterance is missing, so the next one does not answer the previous one
        elif line[:2] == "M " or line == "M":
            utterance = line[2:].replace("/", "") if slashed else line[2:]
            if previous is not None:
                yield previous, utterance, link
                link = OVERLAP
            previous = utterance
            count += 1
        elif line.rstrip() == "E":
            if count == 1:
                report.drop("conversations of one utterance", f"{text.place}, line {start}")
            previous, link, count, start = None, NEW, 0, number
        elif line.strip():
            report.drop("lines that begin with neither E nor M", f"{text.place}, line {number}")
            previous, link = None, NEW
    if count == 1:
        report.drop("conversations of one utterance", f"{text.place}, line {start}")


def is_slashed(sample: str) -> bool:
    """Return whether slashes separate the words of the sample's utterances."""
    longer = [utterance for utterance in re.findall(r"^M (.*)$", sample, re.MULTILINE) if len(utterance) > LONGER]
    slashed = sum("/" in utterance and utterance.strip("/ ") != "" for utterance in longer)
    return bool(longer) and slashed >= SLASHED_SHARE * len(longer)

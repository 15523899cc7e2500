"""Conversations of lines: "E" begins one, "M text" is an utterance; in some files with a slash between words."""

import re
from collections.abc import Iterator

from chatbot.corpus.reading.lines import Pair, lines
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text import Text

SLASHED_SHARE = 0.9  # of the longer utterances; single ones have a slash anywhere ("1/2", "http://")
LONGER = 3  # characters; shorter ones are a single word


def read_conv(text: Text, columns: tuple[str, ...], report: Report) -> Iterator[Pair]:
    """Every adjacent two utterances of a conversation. Slashes between words are taken out."""
    slashed = is_slashed(text.sample)
    previous: str | None = None
    count, start = 0, 1  # of the conversation
    for number, line in lines(text, report):
        if line is None:
            previous = None  # what stood between is lost, so the next does not answer the last
        elif line[:2] == "M " or line == "M":
            utterance = line[2:].replace("/", "") if slashed else line[2:]
            if previous is not None:
                yield previous, utterance
            previous = utterance
            count += 1
        elif line.rstrip() == "E":
            if count == 1:
                report.drop("conversations of one utterance", f"{text.place}, line {start}")
            previous, count, start = None, 0, number
        elif line.strip():
            report.drop("lines that begin with neither E nor M", f"{text.place}, line {number}")
            previous = None
    if count == 1:
        report.drop("conversations of one utterance", f"{text.place}, line {start}")


def is_slashed(sample: str) -> bool:
    """Whether slashes stand between the words of this text's utterances."""
    longer = [utterance for utterance in re.findall(r"^M (.*)$", sample, re.MULTILINE) if len(utterance) > LONGER]
    slashed = sum("/" in utterance and utterance.strip("/ ") != "" for utterance in longer)
    return bool(longer) and slashed >= SLASHED_SHARE * len(longer)

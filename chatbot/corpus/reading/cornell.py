"""Cornell's movie dialogs: movie_lines.txt says each line by its id, movie_conversations.txt which ids follow."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from chatbot.corpus.reading.lines import Pair, lines
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import CORNELL_FILES
from chatbot.corpus.reading.text import Text, texts
from chatbot.errors import UserError

SEPARATOR = " +++$+++ "
MOST_CHARACTERS = 256 * 2**20  # of utterances held in memory; Cornell's have 17 million


def read_cornell(paths: tuple[Path, ...], name: str, report: Report) -> Iterator[Pair]:
    """The pairs of (movie_lines.txt, movie_conversations.txt), or of one zip file that holds both.

    Raises UserError when there is no line of Cornell's in one of them, or far too many.
    """
    said: dict[str, str] = {}
    for path in paths:
        for text in texts(path, name, report, wanted=CORNELL_FILES):
            if text.encoding not in report.encodings:
                report.encodings.append(text.encoding)
            if said:
                yield from _pairs(text, said, report)
            else:
                said = _said(text, report)


def _said(text: Text, report: Report) -> dict[str, str]:
    said: dict[str, str] = {}
    held = 0
    for number, line in lines(text, report):
        if not line:
            continue
        fields = line.split(SEPARATOR, 4)
        if len(fields) == 5:
            said[fields[0].strip()] = fields[4]
            held += len(fields[4])
        else:
            report.drop("rows with too few columns", f"{text.place} ({CORNELL_FILES[0]}), line {number}")
        if held > MOST_CHARACTERS:
            raise UserError(f"{text.place}: too large for Cornell's {CORNELL_FILES[0]}; give the pairs as TSV")
    if not said:
        raise UserError(f"{text.place}: no line of Cornell's in {CORNELL_FILES[0]}, such as L1{SEPARATOR}u0 ...")
    return said


def _pairs(text: Text, said: dict[str, str], report: Report) -> Iterator[Pair]:
    for number, line in lines(text, report):
        if not line:
            continue
        place = f"{text.place} ({CORNELL_FILES[1]}), line {number}"
        ids = re.findall(r"'([^']*)'", line.rpartition(SEPARATOR)[2])
        if len(ids) < 2:
            report.drop("conversations of one utterance" if ids else "lines without a list of ids", place)
        for first, second in pairwise(ids):
            if first in said and second in said:
                yield said[first], said[second]
        if missing := sum(found not in said for found in ids):
            report.drop("ids that are not in movie_lines.txt", place, missing)

"""The Cornell Movie-Dialogs Corpus (Danescu-Niculescu-Mizil and Lee, 2011).

movie_lines.txt has the utterances by id, movie_conversations.txt the ids of each conversation in order.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from chatbot.corpus.reading.files.containers import CORNELL_FILES, Source
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile, open_text_files
from chatbot.corpus.reading.pair import NEW, OVERLAP, Pair
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

SEPARATOR = " +++$+++ "
MAX_CHARACTERS = 256 * 2**20  # of the utterances, which are held in memory; the corpus has 17 million


def read_cornell(source: Source, report: Report, encoding: str | None = None) -> Iterator[Pair]:
    """Yield the pairs of movie_lines.txt and movie_conversations.txt, which may be members of an archive.

    Raises UserError if movie_lines.txt has no line of the expected format, or is too large.
    """
    utterances: dict[str, str] = {}
    for path, member in zip(source.paths, source.members or ("", ""), strict=True):
        for text in open_text_files(path, source.name, report, (member,) if member else (), encoding):
            if text.encoding not in report.encodings:
                report.encodings.append(text.encoding)
            if utterances:
                yield from _pairs(text, utterances, report)
            else:
                utterances = _utterances(text, report)


def _utterances(text: TextFile, report: Report) -> dict[str, str]:
    utterances: dict[str, str] = {}
    characters = 0
    for number, line in lines(text, report):
        if not line:
            continue
        fields = line.split(SEPARATOR, 4)
        if len(fields) == 5:
            utterances[fields[0].strip()] = fields[4]
            characters += len(fields[4])
        else:
            report.drop("rows with too few columns", f"{text.place} ({CORNELL_FILES[0]}), line {number}")
        if characters > MAX_CHARACTERS:
            raise UserError(f"{text.place}: too large to be Cornell's {CORNELL_FILES[0]}; give the pairs as TSV")
    if not utterances:
        raise UserError(
            f"{text.place}: no line of {CORNELL_FILES[0]} has Cornell's format, L1{SEPARATOR}u0 ...; "
            "download the corpus again"
        )
    return utterances


def _pairs(text: TextFile, utterances: dict[str, str], report: Report) -> Iterator[Pair]:
    for number, line in lines(text, report):
        if not line:
            continue
        place = f"{text.place} ({CORNELL_FILES[1]}), line {number}"
        ids = re.findall(r"'([^']*)'", line.rpartition(SEPARATOR)[2])
        if len(ids) < 2:
            report.drop("conversations of one utterance" if ids else "lines without a list of ids", place)
        link = NEW
        for first, second in pairwise(ids):
            if first in utterances and second in utterances:
                yield utterances[first], utterances[second], link
                link = OVERLAP
            else:
                link = NEW
        if missing := sum(line_id not in utterances for line_id in ids):
            report.drop("ids that are not in movie_lines.txt", place, missing)

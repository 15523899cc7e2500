"""From a source of any format to its pairs."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.detect import FORMATS, detect_format, refusal
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.formats.columnar import columnar_kind, read_columnar
from chatbot.corpus.reading.formats.columns import check_columns, header_row
from chatbot.corpus.reading.formats.corpora import read_cornell, read_parallel
from chatbot.corpus.reading.formats.fields import UnknownFieldsError
from chatbot.corpus.reading.formats.yaml_files import read_yaml
from chatbot.corpus.reading.open.file_kinds import is_no_data
from chatbot.corpus.reading.open.sources import Source
from chatbot.corpus.reading.open.text_file import TextFile, open_text_files
from chatbot.corpus.reading.open.workbooks import is_workbook
from chatbot.corpus.reading.report import DETECTED, UNUSED_FIELDS, ReadOptions, Report
from chatbot.errors import UserError

SHOWN, LONGEST = 3, 60  # pairs of a reading in doubt; characters of each question and answer
THOUGHTS = f"{UNUSED_FIELDS}: the reasoning before an answer"
_THOUGHTS = re.compile(  # its first mark may stand in the template of the question; its last, after the end of a text
    r"\s*<(think|thinking)>(?:.*?</\1>|.*)|[^<]*\n</think>\s*\n", re.DOTALL
)
NO_PAIRS = "sheets that are no pairs"
NO_FIELDS = "files without question and answer"
NO_DATA = "files that are not pairs by their names"
UNKNOWN = "files of unknown format"


def read(source: Source, report: Report, options: ReadOptions = DETECTED) -> Iterator[Pair]:
    """Yield the raw pairs of a source lazily and in order, and update the report.

    Raises UserError for columns that are not two different ones, for an unknown format and for data too damaged to be
    used. A source without pairs is not an error.
    """
    check_columns(options.columns)
    report.file = source.name
    try:
        for pair in _pairs(source, report, options):
            report.pairs += 1
            if "think>" in pair[1] and (thoughts := _THOUGHTS.match(pair[1])):
                report.drop(THOUGHTS, source.name)
                pair = (pair[0], pair[1][thoughts.end() :].strip(), pair[2])
            yield pair
    except OSError as error:
        raise UserError(f"{source.name}: cannot be read ({error.strerror or error}); check the file") from None


def _pairs(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    if source.kind == "parallel":
        return read_parallel(source.paths, source.name, report, options.charset)
    if source.kind == "cornell":
        return read_cornell(source, report, options.charset)
    if source.kind == "chatterbot":
        return _pairs_of_chatterbot(source, report)
    return _pairs_of_files(source, report, dataclasses.replace(options, part=source.part))


def _pairs_of_files(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    refused: list[UserError] = []  # about files that are left out; the first is raised if no file has pairs
    before = report.pairs
    for path in source.paths:
        name = source.name if len(source.paths) == 1 else one_line(str(path))
        if is_no_data(path.name) and len(source.paths) > 1:
            report.drop(NO_DATA, name)
            report.read_bytes += path.stat().st_size
        elif kind := columnar_kind(path):
            report.note(kind, "UTF-8")
            yield from _settled(read_columnar(path, kind, name, options, report), kind, name, "UTF-8", report)
        else:
            workbook = is_workbook(path)
            headed = _headed_sheets(path, source, options) if workbook and not options.columns else set()
            for text in open_text_files(path, name, report, source.members, options.charset):
                if text.whole and not text.sample.strip():
                    continue
                if headed and text.member not in headed:
                    report.drop(NO_PAIRS, text.place)
                    continue
                format_name = _format_of(text, options, report, refused)
                if not format_name:
                    continue
                report.note(format_name, text.charset)
                pairs = FORMATS[format_name].read(text, options, report)
                pairs = _settled(pairs, format_name, text.place, text.charset, report)
                try:  # one sheet or file of pairs is enough
                    first = list(itertools.islice(pairs, 1))
                except UserError as error:
                    if not workbook and not isinstance(error, UnknownFieldsError):
                        raise
                    report.drop(NO_PAIRS if workbook else NO_FIELDS, text.place)
                    refused.append(error)
                else:
                    yield from first
                    yield from pairs
    if refused and report.pairs == before:
        raise refused[0]


def _headed_sheets(path: Path, source: Source, options: ReadOptions) -> set[str]:
    """Return the sheets of a workbook whose header names the question and the answer."""
    texts = open_text_files(path, source.name, Report(), source.members, options.charset)
    return {text.member for text in texts if header_row([line.split("\t") for line in text.first_lines])[1]}


def _format_of(text: TextFile, options: ReadOptions, report: Report, refused: list[UserError]) -> str:
    """Return the name of the format; "" for a text that is left out, with an error about it in `refused`."""
    error = refusal(text)
    if text.member and is_no_data(text.member):
        reason = NO_DATA
    elif text.damage:
        reason = "damaged files, or files that are no text"
    elif options.format:
        return options.format
    else:
        reason = UNKNOWN
        try:
            name, doubt = detect_format(text, options)
            if name and not doubt:
                return name
            if doubt:  # raises an error with the first pairs, if there are any
                pairs = FORMATS[name].read(text, options, Report())
                list(_settled(pairs, name, text.place, text.charset, report, doubt))
        except UserError as doubtful:
            reason, error = "files whose format is in doubt", doubtful
    report.drop(reason, text.place)
    refused.append(error)
    return ""


def _settled(
    pairs: Iterator[Pair], format_name: str, place: str, charset: str, report: Report, doubt: str = ""
) -> Iterator[Pair]:
    """Yield the pairs of a file. Raises UserError, which shows the first ones, if their reading is in doubt."""
    before, report.doubt = report.columns, ""
    first = list(itertools.islice(pairs, SHOWN))
    question = f"{doubt}; if the pairs above are right, give --format {format_name}" if doubt and first else ""
    if doubt := report.doubt or question:
        columns = report.columns[-1:] if report.columns is not before else ()
        reading = ", ".join(filter(None, (f"format {format_name}", charset, *columns)))
        shown = [f"  {one_line(pair[0], LONGEST)}  ->  {one_line(pair[1], LONGEST)}" for pair in first]
        raise UserError(f"{place}: {doubt}", (f"{place}, read as {reading}:", *shown))
    yield from first
    yield from pairs


def _pairs_of_chatterbot(source: Source, report: Report) -> Iterator[Pair]:
    for path in source.paths:
        for text in open_text_files(path, path.name, report):
            report.note(source.kind, text.charset)
            yield from read_yaml(text, DETECTED, report)

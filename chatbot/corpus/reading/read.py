"""From a source of any format to its pairs."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from chatbot.corpus.reading.dialogues import chat_logs
from chatbot.corpus.reading.dialogues.conv_lines import read_conv
from chatbot.corpus.reading.dialogues.cornell import read_cornell
from chatbot.corpus.reading.dialogues.douban import read_douban
from chatbot.corpus.reading.dialogues.headings import read_headings
from chatbot.corpus.reading.dialogues.line_pairs import read_line_pairs
from chatbot.corpus.reading.dialogues.marked_turns import read_eou, read_template, read_ubuntu
from chatbot.corpus.reading.dialogues.message_rows import read_message_rows
from chatbot.corpus.reading.dialogues.nearest_talk import is_program, nearest_kind, nearest_talk
from chatbot.corpus.reading.dialogues.qq import read_qq
from chatbot.corpus.reading.dialogues.question_lines import read_question_lines
from chatbot.corpus.reading.dialogues.speakers import read_speakers
from chatbot.corpus.reading.dialogues.subtitles import read_ass, read_srt
from chatbot.corpus.reading.dialogues.telegram import read_telegram
from chatbot.corpus.reading.dialogues.whatsapp import read_whatsapp
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.files.file_names import is_no_data
from chatbot.corpus.reading.files.sources import Source
from chatbot.corpus.reading.files.text_file import TextFile, first_lines, open_text_files
from chatbot.corpus.reading.files.workbooks import is_workbook
from chatbot.corpus.reading.format_detection import detect_format
from chatbot.corpus.reading.options import DETECTED, ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import UNUSED_FIELDS, Report
from chatbot.corpus.reading.tables.columns import check_columns, header_row
from chatbot.corpus.reading.tables.csv_rows import read_csv
from chatbot.corpus.reading.tables.nearest_table import nearest_table, odd_separator
from chatbot.corpus.reading.tables.parallel import read_parallel
from chatbot.corpus.reading.tables.tsv import read_tsv
from chatbot.corpus.reading.values.columnar import columnar_kind, read_columnar
from chatbot.corpus.reading.values.json_document import read_json
from chatbot.corpus.reading.values.json_lines import read_json_lines
from chatbot.corpus.reading.values.walk import UnknownFieldsError
from chatbot.corpus.reading.values.yaml_document import read_yaml
from chatbot.errors import UserError

FORMATS: dict[str, Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "conv": read_conv,
    "jsonl": read_json_lines,
    "json": read_json,
    "yaml": read_yaml,
    "douban": read_douban,
    "qa": read_question_lines,
    "lines": read_line_pairs,
    "messages": read_message_rows,
    "whatsapp": read_whatsapp,
    "telegram": read_telegram,
    "qq": read_qq,
    **{name: chat_logs.reader_of(name) for name in chat_logs.FORMATS},
    "srt": read_srt,
    "ass": read_ass,
    "speakers": read_speakers,
    "headings": read_headings,
    "eou": read_eou,
    "ubuntu": read_ubuntu,
    "template": read_template,
}
SHOWN, LONGEST = 3, 60  # pairs of a reading in doubt; characters of each question and answer
THOUGHTS = f"{UNUSED_FIELDS}: the reasoning before an answer"
_THOUGHTS = re.compile(  # its first mark may stand in the template of the question; its last, after the end of a text
    r"\s*<(think|thinking)>(?:.*?</\1>|.*)|[^<]*\n</think>\s*\n", re.DOTALL
)
NO_PAIRS = "sheets that are no pairs"
NO_FIELDS = "files without question and answer"
NO_DATA = "files that are not pairs by their names"


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
    if source.kind == "file":
        return _pairs_of_file(source, report, options)
    report.formats.append(source.kind)
    if source.kind == "parallel":
        return read_parallel(source.paths, source.name, report, options.encoding)
    if source.kind == "cornell":
        return read_cornell(source, report, options.encoding)
    return _pairs_of_chatterbot(source, report)


def _pairs_of_file(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    options = dataclasses.replace(options, part=source.part)
    refused: list[UserError] = []  # raised if no file can be read
    errors: list[UserError] = []  # of the sheets of workbooks, and of files without question and answer
    before = report.pairs
    for path in source.paths:
        name = source.name if len(source.paths) == 1 else one_line(str(path))
        if is_no_data(path.name) and len(source.paths) > 1:
            report.drop(NO_DATA, name)
            report.read_bytes += path.stat().st_size
            continue
        if kind := columnar_kind(path):
            _note(report.formats, kind)
            _note(report.encodings, "UTF-8")
            yield from _settled(read_columnar(path, kind, name, options, report), kind, name, "UTF-8", report)
            continue
        workbook = is_workbook(path)
        headed = _headed_sheets(path, source, options) if workbook and not options.columns else set()
        for text in open_text_files(path, name, report, source.members, options.encoding):
            if text.whole and not text.sample.strip():
                continue
            if text.member and is_no_data(text.member):
                report.drop(NO_DATA, text.place)
                refused.append(_refusal(text))
                continue
            found = _detected(text, options, report)
            if isinstance(found, UserError):
                refused.append(found)
                continue
            if headed and found == "tsv" and text.member not in headed:  # such as a cover
                report.drop(NO_PAIRS, text.place)
                continue
            _note(report.formats, found)
            _note(report.encodings, text.encoding)
            pairs = FORMATS[found](text, options, report)
            pairs = _settled(pairs, found, text.place, text.encoding, report)
            try:  # one sheet or file of pairs is enough
                first = list(itertools.islice(pairs, 1))
            except UserError as error:
                if not workbook and not isinstance(error, UnknownFieldsError):
                    raise
                report.drop(NO_PAIRS if workbook else NO_FIELDS, text.place)
                errors.append(error)
                continue
            yield from first
            yield from pairs
    if errors and report.pairs == before:
        raise errors[0]
    if refused and not report.formats:
        raise refused[0]


def _headed_sheets(path: Path, source: Source, options: ReadOptions) -> set[str]:
    """Return the sheets of a workbook whose header names the question and the answer."""
    texts = open_text_files(path, source.name, Report(), source.members, options.encoding)
    return {text.member for text in texts if header_row([line.split("\t") for line in first_lines(text)])[1]}


def _detected(text: TextFile, options: ReadOptions, report: Report) -> str | UserError:
    """Return the name of the format, or the error about a file that is left out unless it is the only one."""
    if text.binary:
        report.drop("files that are no text", text.place)
        return _refusal(text)
    if text.damage:
        report.drop("damaged files", text.place)
        return UserError(f"{text.place}: {text.damage}")
    if options.format:
        return options.format
    try:
        detection = detect_format(text, options)
        if detection is None:
            report.drop("files of unknown format", text.place)
            return _refusal(text)
        if detection.doubt:
            pairs = FORMATS[detection.format](text, options, Report())
            if not list(_settled(pairs, detection.format, text.place, text.encoding, report, detection.doubt)):
                return _refusal(text)
        return detection.format
    except UserError as error:
        report.drop("files whose format is in doubt", text.place)
        return error


def _settled(
    pairs: Iterator[Pair], format_name: str, place: str, encoding: str, report: Report, doubt: str = ""
) -> Iterator[Pair]:
    """Yield the pairs of a file. Raises UserError, which shows the first ones, if their reading is in doubt."""
    before, report.doubt = report.columns, ""
    first = list(itertools.islice(pairs, SHOWN))
    asked = f"{doubt}; if the pairs above are right, give --format {format_name}" if doubt and first else ""
    if doubt := report.doubt or asked:
        columns = report.columns[-1:] if report.columns is not before else ()
        reading = ", ".join(filter(None, (f"format {format_name}", encoding, *columns)))
        shown = [f"  {one_line(pair[0], LONGEST)}  ->  {one_line(pair[1], LONGEST)}" for pair in first]
        raise UserError(f"{place}: {doubt}", (f"{place}, read as {reading}:", *shown))
    yield from first
    yield from pairs


def _refusal(text: TextFile) -> UserError:
    """Return the error about a file of unknown format, which names the one thing to do."""
    if text.binary:
        return UserError(f"{text.place}: {text.binary}")
    sample = first_lines(text)
    if separator := odd_separator(sample):
        guess = f"the lines have {separator!r} once; if it separates question and answer, replace it by a tab"
    elif not (guess := nearest_kind(text.sample)) and not is_program(sample):
        guess = nearest_talk(sample) or nearest_table(sample)
    begins = f"it begins with {one_line(text.sample.strip(), 30)!r}"
    unknown = f"unknown format, {begins}; write one pair on each line: question, tab, answer"
    return UserError(f"{text.place}: {guess or unknown}")


def _pairs_of_chatterbot(source: Source, report: Report) -> Iterator[Pair]:
    for path in source.paths:
        for text in open_text_files(path, path.name, report):
            _note(report.encodings, text.encoding)
            yield from read_yaml(text, DETECTED, report)


def _note(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)

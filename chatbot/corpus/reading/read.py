"""From a source of any format to its pairs."""

import dataclasses
from collections.abc import Callable, Iterator

from chatbot.corpus.reading.dialogues.conv_lines import read_conv
from chatbot.corpus.reading.dialogues.cornell import read_cornell
from chatbot.corpus.reading.dialogues.douban import read_douban
from chatbot.corpus.reading.dialogues.line_pairs import may_be_line_pairs, read_line_pairs
from chatbot.corpus.reading.dialogues.message_rows import read_message_rows
from chatbot.corpus.reading.dialogues.nearest_talk import nearest_kind, nearest_talk
from chatbot.corpus.reading.dialogues.qq import read_qq
from chatbot.corpus.reading.dialogues.question_lines import read_question_lines
from chatbot.corpus.reading.dialogues.subtitles import read_ass, read_srt
from chatbot.corpus.reading.dialogues.telegram import read_telegram
from chatbot.corpus.reading.dialogues.whatsapp import read_whatsapp
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.files.file_names import is_no_data
from chatbot.corpus.reading.files.sources import Source
from chatbot.corpus.reading.files.text_file import TextFile, first_lines, open_text_files
from chatbot.corpus.reading.format_detection import detect_format, nearest_format
from chatbot.corpus.reading.options import DETECTED, ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.tables.columns import check_columns
from chatbot.corpus.reading.tables.csv_rows import read_csv
from chatbot.corpus.reading.tables.parallel import read_parallel
from chatbot.corpus.reading.tables.tsv import read_tsv
from chatbot.corpus.reading.values.json_document import read_json
from chatbot.corpus.reading.values.json_lines import read_json_lines
from chatbot.corpus.reading.values.parquet import is_parquet, read_parquet
from chatbot.corpus.reading.values.yaml_document import read_yaml
from chatbot.corpus.reading.weights import REMEDY
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
    "srt": read_srt,
    "ass": read_ass,
}
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
            if options.weight_column is not None and len(pair) < 4:
                name = one_line(options.weight_column, 20)
                raise UserError(f"{source.name}, pair {report.pairs:,}: no field {name} with a weight; {REMEDY}")
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
    refused: list[TextFile] = []
    no_data: list[TextFile] = []
    for path in source.paths:
        name = source.name if len(source.paths) == 1 else one_line(str(path))
        if is_no_data(path.name) and len(source.paths) > 1:
            report.drop(NO_DATA, name)
            report.read_bytes += path.stat().st_size
            continue
        if is_parquet(path):
            _note(report.formats, "parquet")
            _note(report.encodings, "UTF-8")
            yield from read_parquet(path, name, options, report)
            continue
        for text in open_text_files(path, name, report, source.members, options.encoding):
            if text.whole and not text.sample.strip():
                continue
            if text.member and is_no_data(text.member):
                report.drop(NO_DATA, text.place)
                no_data.append(text)
                continue
            format_name = None if text.packed else options.format or detect_format(text, options)
            if format_name is None:
                report.drop(
                    f"{text.packed}s, which are not unpacked" if text.packed else "files of unknown format", text.place
                )
                refused.append(text)
                continue
            _note(report.formats, format_name)
            _note(report.encodings, text.encoding)
            yield from FORMATS[format_name](text, options, report)
    if (refused or no_data) and not report.formats:
        raise UserError(_refusal((refused + no_data)[0]))


def _refusal(text: TextFile) -> str:
    """Return the message about a file of unknown format, with the nearest guess."""
    if text.packed:
        return f"{text.place}: a {text.packed}, which is not unpacked here; unpack it and give what it contains"
    sample = first_lines(text)
    guess = nearest_kind(text.sample) or nearest_talk(sample) or nearest_format(text)
    alternating = not guess and may_be_line_pairs(sample)
    hint = "If each two lines are a question and its answer, give --format lines. " if alternating else ""
    return (
        f"{text.place}: unknown format, it begins with {one_line(text.sample, 40)!r}; "
        f"{guess + '; ' if guess else ''}known are {', '.join(FORMATS)}, which --format names; "
        f"if the text is misread as {text.encoding}, give --encoding. {hint}"
        "Simplest is one pair on each line: question, tab, answer; see docs/data.md"
    )


def _pairs_of_chatterbot(source: Source, report: Report) -> Iterator[Pair]:
    for path in source.paths:
        for text in open_text_files(path, path.name, report):
            _note(report.encodings, text.encoding)
            yield from read_yaml(text, DETECTED, report)


def _note(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)

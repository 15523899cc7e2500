"""From a source of any format to its pairs."""

from collections.abc import Callable, Iterator

from chatbot.corpus.reading.columns import check_columns
from chatbot.corpus.reading.conv_lines import read_conv
from chatbot.corpus.reading.cornell import read_cornell
from chatbot.corpus.reading.csv_rows import read_csv
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.format_detection import detect_format
from chatbot.corpus.reading.json_document import read_json
from chatbot.corpus.reading.json_lines import read_json_lines
from chatbot.corpus.reading.lines import Pair
from chatbot.corpus.reading.options import DETECTED, ReadOptions
from chatbot.corpus.reading.parallel import read_parallel
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import Source
from chatbot.corpus.reading.text_file import TextFile, open_text_files
from chatbot.corpus.reading.tsv import read_tsv
from chatbot.corpus.reading.yaml_document import read_yaml
from chatbot.errors import UserError

FORMATS: dict[str, Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "conv": read_conv,
    "jsonl": read_json_lines,
    "json": read_json,
    "yaml": read_yaml,
}


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
        return read_cornell(source.paths, source.name, report, options.encoding)
    return _pairs_of_chatterbot(source, report)


def _pairs_of_file(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    unknown: TextFile | None = None
    for text in open_text_files(source.paths[0], source.name, report, encoding=options.encoding):
        if text.whole and not text.sample.strip():
            continue
        format_name = options.format or detect_format(text)
        if format_name is None:
            report.drop("files of unknown format", text.place)
            unknown = unknown or text
            continue
        _note(report.formats, format_name)
        _note(report.encodings, text.encoding)
        yield from FORMATS[format_name](text, options, report)
    if unknown is not None and not report.formats:
        raise UserError(
            f"{unknown.place}: unknown format, it begins with {one_line(unknown.sample, 40)!r}; "
            f"known are {', '.join(FORMATS)}, which --format names; if the text is misread as {unknown.encoding}, give "
            "--encoding. Simplest is one pair on each line: question, tab, answer; see docs/data.md"
        )


def _pairs_of_chatterbot(source: Source, report: Report) -> Iterator[Pair]:
    for path in source.paths:
        for text in open_text_files(path, path.name, report):
            _note(report.encodings, text.encoding)
            yield from read_yaml(text, DETECTED, report)


def _note(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)

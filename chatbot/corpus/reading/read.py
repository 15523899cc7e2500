"""Reads the pairs of a source in any format.

The format of a text is detected from its content, because the file extension can be wrong. If no format or several
formats match, the user is asked. The modules that read a format are imported only if the text may have this format.
"""

import dataclasses
import functools
import importlib
import itertools
import re
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading.binary_tables import Table
from chatbot.corpus.reading.charset import detect_damage
from chatbot.corpus.reading.containers import OpenFile, Rows, open_contents
from chatbot.corpus.reading.report import DETECTED, UNUSED_FIELDS, LeftOutError, Location, ReadOptions, Report
from chatbot.corpus.reading.sources import Source, is_no_data
from chatbot.corpus.reading.tables import Division, check_columns, divide_text, find_header, pairs_of_table
from chatbot.corpus.reading.text_file import MARKUP, UNDECODABLE, TextFile, drop_lost_texts, open_text_files, text_of
from chatbot.corpus.reading.turns import NEW, NEXT, OVERLAP, Pair, unknown_person_error
from chatbot.display import one_line
from chatbot.errors import UserError

Read = Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]

BEGINNING = 50  # number of non-blank lines that are compared with `Format.line`


class Format(NamedTuple):
    """A text format, and the names of the functions that detect and read it."""

    line: str  # regular expression for the beginning of a typical line; "" if the format has no typical lines
    module: str  # module of the two functions, which is imported only if one of the first lines matches
    read: str
    fits: str = ""


# To add a text format, add a row here and its name to config/corpus.py.
FORMATS = {
    "ass": Format(r"(?i:\[script info\]|\[events\])", "subtitles", "read_subtitles", "is_ass"),
    "srt": Format(r"WEBVTT|.{0,40}-->|(?i:<sami>)|\{\d+\}\{", "subtitles", "read_subtitles", "is_srt"),
    "jsonl": Format(r"[\[{]", "values", "read_json_lines", "is_json_lines"),
    "json": Format(r"[\[{]", "values", "read_json", "is_json"),
    "yaml": Format(r"-(\s|$)|.{1,62}:(\s|$)", "values", "read_yaml", "is_yaml"),
    "heads": Format(r".{0,80}\d{1,2}[:.]\d{2}", "heads", "read_heads", "find_formats"),
    "conv": Format(r"[EM](?: |$)", "lines", "read_conv", "is_conv"),
    "template": Format(r"<|### |\[", "marked_text", "read_template", "is_template"),
    "parlai": Format(r"text:|1 ", "lines", "read_parlai", "is_parlai"),
    "douban": Format(r"[01]\t", "lines", "read_douban", "is_douban"),
    "qa": Format(r".{1,40}[:：．、.】\]]", "lines", "read_question_lines", "is_question_lines"),
    "eou": Format(r".*__eou__", "lines", "read_turns", "is_eou"),
    "tsv": Format("", "tables", "read_table"),
    "csv": Format("", "tables", "read_table"),
    "turns": Format("", "lines", "read_turns"),
    "lines": Format("", "lines", "read_lines"),
}
STRUCTURED = ("ass", "srt", "jsonl", "json", "yaml")  # If one of these formats matches, the others are not tried.
NO_HEADS = "--head, but JSON and tables have no heads; leave it out"
# Minimum fraction of rows with the usual number of columns, for files named as tables (NAMED) and for other files.
NAMED = 0.6
SAME_WIDTH = 0.95
# File extensions, and the error message if the content of a file does not match its extension.
PROMISES = {
    **dict.fromkeys(("json", "jsonl", "ndjson"), "not JSON"),
    **dict.fromkeys(("srt", "vtt", "ass", "ssa"), "without subtitle times"),
}

COMPARED_PAIRS = 100  # number of pairs at the beginning of a file that are checked for damage
SHOWN, MAX_SHOWN = 3, 60  # number of pairs shown to the user if the format is in doubt, and maximum length of a text
HAVE_FIELDS = ("tsv", "csv", "json", "jsonl", "yaml")  # formats that support --columns and --map
THOUGHTS = f"{UNUSED_FIELDS}: the reasoning before an answer"
_THOUGHTS = re.compile(  # Either tag may be missing.
    r"\s*<(think|thinking)>(?:.*?</\1>|.*)|.*?\n</think>\s*\n", re.DOTALL
)
NO_PAIRS = "sheets that contain no pairs"
NO_DATA = "files whose names mean that they are not data"


def read(source: Source, report: Report, options: ReadOptions = DETECTED) -> Generator[Pair, None, None]:
    """Yield the raw pairs of a source lazily and in order.

    Args:
        source: The files to read. If they contain no pairs, nothing is yielded.
        report: Report that is updated while the pairs are read.
        options: How to read the files. By default, everything is detected.

    Raises:
        UserError: If the options do not fit the files, too much of the data is damaged, or the format is unknown or
            uncertain. If the format is uncertain, the error shows the first pairs.
    """
    check_columns(options.columns)
    report.file = source.name
    try:
        for pair in _pairs(source, report, dataclasses.replace(options, part=source.part)):
            report.pairs += 1
            if "think>" in pair[1] and (thoughts := _THOUGHTS.match(pair[1])):
                report.drop(THOUGHTS, source.name)
                pair = (pair[0], pair[1][thoughts.end() :].strip(), pair[2])
            yield pair
    except OSError as error:
        raise UserError(f"{source.name}: cannot be read ({error.strerror or error}); check the file") from None


def _pairs(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    if source.kind == "parallel":
        from chatbot.corpus.reading.lines import read_parallel

        return _filter_by_me(read_parallel(source.paths, report, options.charset), options, report, source.name)
    if source.kind == "chatterbot":
        return _pairs_of_chatterbot(source, report)
    return _pairs_of_files(source, report, options)


def _pairs_of_files(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    refused: list[UserError] = []  # errors about skipped files; if no file contains pairs, the first one is raised
    before = report.pairs
    for path in source.paths:
        name = source.name if len(source.paths) == 1 else one_line(str(path))
        if is_no_data(path.name) and len(source.paths) > 1:
            report.drop(NO_DATA, name)
            report.read_bytes += path.stat().st_size
            continue
        for content in open_contents(path, name, report, source.members):
            if isinstance(content, OpenFile):
                text = text_of(content, path, report, options.charset)
                if not text.whole or text.sample.strip():
                    try:
                        yield from _pairs_of_text(text, options, report)
                    except LeftOutError as error:  # Skip this file, because other files may contain pairs.
                        report.drop(error.reason, text.place)
                        refused.append(error)
            elif options.head:
                raise UserError(f"{name}: {NO_HEADS}")
            elif isinstance(content, Rows):
                read_into = functools.partial(_pairs_of_rows, content, name, options)
                yield from _read_checked(read_into, options, (content.format, "UTF-8"), name, report)
            else:
                yield from _pairs_of_sheets(content.sheets, options, report, refused)
    if refused and report.pairs == before:
        raise refused[0]


def _pairs_of_rows(content: Rows, name: str, options: ReadOptions, report: Report) -> Iterator[Pair]:
    from chatbot.corpus.reading.values import pairs_of_values

    location = Location("row", name, report)

    def rows() -> Iterator[object]:
        for number, row in enumerate(content.rows, start=1):
            location.number = number
            yield row

    pairs = _check_damage(pairs_of_values(rows(), options, location), name)
    lost = functools.partial(location.drop, "pairs with lost characters")
    return drop_lost_texts(pairs, UNDECODABLE, lost)


def _pairs_of_text(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Return the pairs of a text.

    Raises:
        LeftOutError: If the text is damaged, or its format is unknown or uncertain.
    """
    found = None
    reason = "files of unknown format"
    if text.member and is_no_data(text.member):
        reason = NO_DATA
    elif text.damage:
        reason = "damaged files and files that are not text"
    else:
        found = detect(text, options)
    if found is None:
        begins = one_line(text.sample.strip(), 30)
        remedy = "write one pair on each line: question, tab, answer; or give --format or --head"
        problem = text.damage or f"unknown format, it begins with {begins!r}; {remedy}"
        raise LeftOutError(reason, f"{text.place}: {problem}", text.details)
    if found.name not in HAVE_FIELDS and (options.columns or options.map):
        flag = "--map" if options.map else "--columns"
        raise UserError(f"{text.place}: {flag}, but {found.name} has no columns or fields; leave it out")
    read_into = functools.partial(found.read, text, options)
    return _read_checked(read_into, options, (found.name, text.charset), text.place, report, found.doubt)


def _pairs_of_sheets(
    sheets: Iterator[Table], options: ReadOptions, report: Report, refused: list[UserError]
) -> Iterator[Pair]:
    """Yield the pairs of a workbook. If some sheets have a known header row, the other sheets are skipped."""
    book = [(sheet, find_header(sheet.sample)) for sheet in sheets if sheet.sample]
    is_given = bool(options.columns or options.map)
    are_headed = not is_given and any(header for _, header in book)
    before = len(refused)
    read_sheets = []
    for sheet, header in book:
        if are_headed and not header:
            report.drop(NO_PAIRS, sheet.place)
            continue
        try:
            read_into = functools.partial(pairs_of_table, sheet, header, options)
            pairs = _read_checked(read_into, options, (sheet.format, "UTF-8"), sheet.place, report)
            read_sheets.append(itertools.chain([*itertools.islice(pairs, 1)], pairs))
        except UserError as error:
            report.drop(NO_PAIRS, sheet.place)
            refused.append(error)
    # If nothing confirms how to read the sheets, and one of them cannot be read, no sheet is trusted.
    if are_headed or is_given or len(refused) == before:
        yield from itertools.chain.from_iterable(read_sheets)


def _read_checked(
    read_into: Callable[[Report], Iterator[Pair]],
    options: ReadOptions,
    reading: tuple[str, str],
    place: str,
    report: Report,
    doubt: str = "",
) -> Iterator[Pair]:
    """Return the pairs of a file. Raises UserError if its format is uncertain; the error shows the first pairs."""
    trial = Report() if doubt else report
    before = trial.columns
    trial.doubt = ""
    trial.has_names = False
    pairs = _check_damage(read_into(trial), place)
    first = list(itertools.islice(pairs, SHOWN))
    if doubt or trial.doubt:
        read_columns = trial.columns[-1:] if trial.columns is not before else []
        title = ", ".join([f"format {reading[0]}", reading[1], *read_columns])
        shown = [f"{place}, read as {title}:"]
        shown += (f"  {one_line(pair[0], MAX_SHOWN)}  ->  {one_line(pair[1], MAX_SHOWN)}" for pair in first)
        doubt = trial.doubt or doubt
        if not first:
            doubt = f"{doubt.partition('; ')[0]}, so it contains no pairs; use --map or --columns to select the data"
        raise LeftOutError("files whose format is in doubt", f"{place}: {doubt}", shown)
    if options.map and not first:
        raise UserError(
            f"{place}: --map {one_line(options.map, 60)} selects no pairs; run inspect without --map to see the data"
        )
    report.note(*reading)
    return _filter_by_me(itertools.chain(first, pairs), options, report, place)


def _check_damage(pairs: Iterator[Pair], place: str) -> Iterator[Pair]:
    """Return the pairs unchanged. Raises UserError if their texts contain mojibake from a wrong charset."""
    first = list(itertools.islice(pairs, COMPARED_PAIRS))
    if damage := detect_damage("\n".join(text for pair in first for text in pair[:2])):
        raise UserError(f"{place}: {damage}")
    return itertools.chain(first, pairs)


def _filter_by_me(pairs: Iterator[Pair], options: ReadOptions, report: Report, place: str) -> Iterator[Pair]:
    """Select the pairs answered by `options.me`. Raises UserError if it is a name, but the speakers are unnamed."""
    if options.me is None or report.has_names:
        return pairs
    if options.me.strip() not in ("1", "2"):
        raise unknown_person_error(options.me, (), place)
    return _answered_by(pairs, int(options.me))


def _pairs_of_chatterbot(source: Source, report: Report) -> Iterator[Pair]:
    for path in source.paths:
        for text in open_text_files(path, report):
            report.note(source.kind, text.charset)
            yield from find_reader("yaml")(text, DETECTED, report)


def _answered_by(pairs: Iterator[Pair], position: int) -> Iterator[Pair]:
    """Select the pairs answered by one of two unnamed speakers. Speaker 1 begins each conversation."""
    turn = 0  # zero-based position of the current answer in its conversation
    last_turn = -2
    for question, answer, link in pairs:
        turn = turn + 1 if link == OVERLAP else turn + 2 if link == NEXT else 1
        if link == NEW:
            last_turn = -2
        if turn % 2 == (position - 1) % 2:
            yield question, answer, NEXT if turn - last_turn == 2 else OVERLAP if turn - last_turn == 1 else NEW
            last_turn = turn


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"chatbot.corpus.reading.{module}"), name)


class DetectedFormat(NamedTuple):
    """The detected format of a text."""

    name: str
    read: Read
    doubt: str = ""  # why it may be another format, and the flag that confirms the format


def find_reader(name: str) -> Read:
    """Return the function that reads a format."""
    if name in FORMATS:
        read: Read = _load(FORMATS[name].module, FORMATS[name].read)
        return read
    from chatbot.corpus.reading import heads

    return functools.partial(heads.read_heads, layout=heads.declared_formats().get(name))


def detect(text: TextFile, options: ReadOptions) -> DetectedFormat | None:
    """Return the format of a text, or None if it is unknown. A format in the options takes precedence.

    Raises:
        UserError: If the content contradicts the file extension.
    """
    if options.format:
        return DetectedFormat(options.format, find_reader(options.format))
    filled = text.filled
    if sum("\0" in line for line in filled) * 2 >= len(filled):
        return None  # The file is blank or binary, such as a picture.
    found = _formats_with_signature(text, filled[:BEGINNING], STRUCTURED)
    if options.head:
        if {*found} & {"jsonl", "json"} or divide_text(text).header:
            raise UserError(f"{text.place}: {NO_HEADS}")
        return DetectedFormat("head", find_reader("head"))
    is_given = bool(options.columns or options.map)
    if not found and not is_given:
        found = _formats_with_signature(text, filled[:BEGINNING], FORMATS.keys() - STRUCTURED)
    if text.ending in PROMISES and not {*found} & {"jsonl", "json", "srt", "ass"}:
        raise UserError(
            f"{text.place}: named .{text.ending}, but {PROMISES[text.ending]}: it begins with "
            f"{one_line(filled[0].strip(), 30)!r}; give --format"
        )
    if found:
        doubt = f"it may be {' or '.join(found)}; give --format {found[0]}" if len(found) > 1 else ""
        return DetectedFormat(found[0], find_reader(found[0]), doubt)
    table = divide_text(text)
    is_sure = is_given or table.header is not None
    name, doubt = (table.format, "") if is_sure else _format_without_signature(text, table)
    return DetectedFormat(name, find_reader(name), doubt) if name else None


def _formats_with_signature(text: TextFile, beginning: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the formats in `names` whose typical lines and detection function match the text."""
    found: list[str] = []
    for name, (line, module, _, fits) in FORMATS.items():
        if name in names and line and any(map(re.compile(line).match, map(str.lstrip, beginning))):
            matches = _load(module, fits)(text)
            found += matches if name == "heads" else [name] * matches
    return found


def _format_without_signature(text: TextFile, table: Division) -> tuple[str, str]:
    """Detect formats that have no typical lines, such as tables.

    Returns:
        The format, and why it is uncertain. Both can be empty strings.
    """
    is_prose = text.ending in MARKUP and not any(line.startswith("|") for line in text.first_lines)
    is_named = text.ending in ("csv", "tsv", "tab") and table.evenness >= NAMED
    is_table = not is_prose and (table.dialect.separator == "\t" or is_named)
    if is_table and table.sample and not re.match(FORMATS["heads"].line, table.sample[0][0]):
        return table.format, ""
    from chatbot.corpus.reading import heads, lines

    remedy = "; if the pairs above are right, give"
    if (head := heads.find_usual_head(text)) and ("{name}" in head or not is_table):
        return "head", f"the lines begin with names or questions{remedy} --head {head!r}"
    if is_table:
        return table.format, ""
    turns = lines.detect_lines(text)
    if turns is True:
        return "lines", ""
    if not is_prose and table.evenness >= SAME_WIDTH:
        why = "nearly all lines have the same number of columns, so it may be a table or prose"
        return "csv", f"{why}{remedy} --format csv"
    return ("lines", f"{turns}{remedy} --format lines") if turns else ("", "")

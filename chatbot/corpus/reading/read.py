"""From a source of any format to its pairs."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterator

from chatbot.corpus.reading.charset import damage_of
from chatbot.corpus.reading.containers import OpenFile, Rows, open_contents
from chatbot.corpus.reading.conversation import Pair, nobody_is, of_position, without_lost
from chatbot.corpus.reading.detect import NO_HEADS, detect, reader_of, refusal
from chatbot.corpus.reading.report import DETECTED, UNUSED_FIELDS, Located, ReadOptions, Report, UnknownFieldsError
from chatbot.corpus.reading.rows import Table
from chatbot.corpus.reading.sources import Source, is_no_data
from chatbot.corpus.reading.tables import check_columns, of_header, pairs_of_table
from chatbot.corpus.reading.text_file import UNDECODABLE, TextFile, open_text_files, text_of
from chatbot.display import one_line
from chatbot.errors import UserError

COMPARED_PAIRS = 100  # of a file, that are looked at for damage
SHOWN, LONGEST = 3, 60  # pairs of a reading in doubt; characters of each question and answer
HAVE_FIELDS = ("tsv", "csv", "json", "jsonl", "yaml")  # formats that --columns and --map are for
THOUGHTS = f"{UNUSED_FIELDS}: the reasoning before an answer"
_THOUGHTS = re.compile(  # its first mark may stand in the template of the question; its last, after the end of a text
    r"\s*<(think|thinking)>(?:.*?</\1>|.*)|.*?\n</think>\s*\n", re.DOTALL
)
NO_PAIRS = "sheets that are no pairs"
NO_FIELDS = "files without question and answer"
NO_DATA = "files that are not pairs by their names"
UNKNOWN = "files of unknown format"


def read(source: Source, report: Report, options: ReadOptions = DETECTED) -> Generator[Pair, None, None]:
    """Yield the raw pairs of a source lazily and in order, and update the report.

    Raises UserError for columns that are not two different ones, for an unknown format, for one that is in doubt, which
    shows the first pairs, and for data too damaged to be used. A source without pairs is not an error.
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

        return _chosen(read_parallel(source.paths, report, options.charset), options, report, source.name)
    if source.kind == "chatterbot":
        return _pairs_of_chatterbot(source, report)
    return _pairs_of_files(source, report, options)


def _pairs_of_files(source: Source, report: Report, options: ReadOptions) -> Iterator[Pair]:
    refused: list[UserError] = []  # about files that are left out; the first is raised if no file has pairs
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
                    yield from _pairs_of_text(text, options, report, refused)
            elif options.head:
                raise UserError(f"{name}: {NO_HEADS}")
            elif isinstance(content, Rows):
                read_into = functools.partial(_pairs_of_rows, content, name, options)
                yield from _settled(read_into, options, (content.format, "UTF-8"), name, report)
            else:
                tables = (Table(*sheet, unit="row") for sheet in content.sheets)
                yield from _pairs_of_sheets(tables, options, report, refused)
    if refused and report.pairs == before:
        raise refused[0]


def _pairs_of_rows(content: Rows, name: str, options: ReadOptions, report: Report) -> Iterator[Pair]:
    from chatbot.corpus.reading.values import pairs_of_values

    located = Located("row", name, report)

    def rows() -> Iterator[object]:
        for number, row in enumerate(content.rows, start=1):
            located.number = number
            yield row

    pairs = _undamaged(pairs_of_values(rows(), options, located), name)
    lost = functools.partial(located.drop, "pairs with characters that were lost before")
    return without_lost(pairs, UNDECODABLE, lost)


def _pairs_of_text(text: TextFile, options: ReadOptions, report: Report, refused: list[UserError]) -> Iterator[Pair]:
    error: UserError | None = None
    reason = UNKNOWN
    if text.member and is_no_data(text.member):
        reason = NO_DATA
    elif text.damage:
        reason = "damaged files, or files that are no text"
    else:
        try:
            if found := detect(text, options):
                if found.name not in HAVE_FIELDS and (options.columns or options.map):
                    flag = "--map" if options.map else "--columns"
                    raise UserError(f"{text.place}: {flag}, but {found.name} has no columns or fields; leave it out")
                read_into = functools.partial(found.read, text, options)
                yield from _settled(read_into, options, (found.name, text.charset), text.place, report, found.doubt)
                return
        except UnknownFieldsError as unknown:  # one file of pairs is enough
            reason = NO_FIELDS
            error = unknown
        except _DoubtError as doubtful:
            reason = "files whose format is in doubt"
            error = doubtful
    report.drop(reason, text.place)
    refused.append(error or refusal(text))


def _pairs_of_sheets(
    opened: Iterator[Table], options: ReadOptions, report: Report, refused: list[UserError]
) -> Iterator[Pair]:
    """Yield the pairs of the sheets whose header is known; without any, of all if each has two columns."""
    book = [(sheet, of_header(sheet.sample)) for sheet in opened if sheet.sample]
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
            pairs = _settled(read_into, options, (sheet.format, "UTF-8"), sheet.place, report)
            read_sheets.append(itertools.chain([*itertools.islice(pairs, 1)], pairs))
        except UserError as error:
            report.drop(NO_PAIRS, sheet.place)
            refused.append(error)
    if are_headed or is_given or len(refused) == before:  # else nothing says that only these sheets are pairs
        yield from itertools.chain.from_iterable(read_sheets)


class _DoubtError(UserError):
    """The reading of a text is in doubt."""


def _settled(
    read_into: Callable[[Report], Iterator[Pair]],
    options: ReadOptions,
    reading: tuple[str, str],
    place: str,
    report: Report,
    doubt: str = "",
) -> Iterator[Pair]:
    """Return the pairs of a file. Raises UserError, which shows the first ones, if their reading is in doubt.

    reading: the name of the format, and of the charset.
    """
    trial = Report() if doubt else report
    before = trial.columns
    trial.doubt = ""
    trial.has_names = False
    pairs = _undamaged(read_into(trial), place)
    first = list(itertools.islice(pairs, SHOWN))
    if doubt or trial.doubt:
        read_columns = trial.columns[-1:] if trial.columns is not before else []
        title = ", ".join([f"format {reading[0]}", reading[1], *read_columns])
        shown = [f"  {one_line(pair[0], LONGEST)}  ->  {one_line(pair[1], LONGEST)}" for pair in first]
        doubt = trial.doubt or doubt
        if not first:
            doubt = f"{doubt.partition('; ')[0]}, and so it has no pairs; say what to read with --map or --columns"
        raise _DoubtError(f"{place}: {doubt}", (f"{place}, read as {title}:", *shown))
    if options.map and not first:
        raise UserError(
            f"{place}: --map {one_line(options.map, 60)} selects no pair; run inspect without it to see what is there"
        )
    report.note(*reading)
    return _chosen(itertools.chain(first, pairs), options, report, place)


def _undamaged(pairs: Iterator[Pair], place: str) -> Iterator[Pair]:
    """Return the pairs. Raises UserError if their texts were saved in a wrong charset before, as in escapes of JSON."""
    first = list(itertools.islice(pairs, COMPARED_PAIRS))
    if damage := damage_of("\n".join(text for pair in first for text in pair[:2])):
        raise UserError(f"{place}: {damage}")
    return itertools.chain(first, pairs)


def _chosen(pairs: Iterator[Pair], options: ReadOptions, report: Report, place: str) -> Iterator[Pair]:
    """Yield the pairs that `options.me` answers. Raises UserError for a name where nothing has one."""
    if options.me is None or report.has_names:
        return pairs
    if options.me.strip() not in ("1", "2"):
        raise nobody_is(options.me, (), place)
    return of_position(pairs, int(options.me))


def _pairs_of_chatterbot(source: Source, report: Report) -> Iterator[Pair]:
    for path in source.paths:
        for text in open_text_files(path, report):
            report.note(source.kind, text.charset)
            yield from reader_of("yaml")(text, DETECTED, report)

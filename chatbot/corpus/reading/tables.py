"""Reader for tables of pairs or messages.

The names in the header row determine whether the rows are pairs or messages. A table of two columns needs no header
row. If the columns of a table are unknown, the user is shown the first rows and asked. Messages are read from
dictionaries, keyed by column names or numbers.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.binary_tables import Table
from chatbot.corpus.reading.doubts import find_doubt, has_column_without_text, has_running_numbers, is_header
from chatbot.corpus.reading.layouts import PAIRS, Layout, compile_map, find_declared, flag
from chatbot.corpus.reading.places import Suggestion, suggest_by_names, suggest_by_values
from chatbot.corpus.reading.records import pairs_by_layout
from chatbot.corpus.reading.report import Location, ReadOptions, Report
from chatbot.corpus.reading.rows import PREAMBLE, Dialect, find_dialects, find_usual_width, rows_of_text, sample_rows
from chatbot.corpus.reading.text_file import TextFile
from chatbot.corpus.reading.turns import NEW, Pair
from chatbot.display import SHOWN_NAME, listing, number_names, one_line, pluralize
from chatbot.errors import UserError

MAX_NAME = 20  # maximum characters of a column name
CONTRAST = 3.0  # A cell is a possible column name if the cells below are this many times as long.
_NUMBERED = re.compile(r':\s*"\d+"')  # Matches a column number in a map.
_SENTENCE = re.compile(r"[，。,.!?！？…~～;；]|\w(?:\s\S+){3}")  # Matches punctuation and four words in a row.
_WORD = re.compile(r"[A-Za-z]\w{0,19}( \w{1,19})?")
# Matches snake_case, camelCase and numbered names.
_IDENTIFIER = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)+|[A-Za-z]+[0-9]{1,2}|[a-z]{2,}[A-Z][A-Za-z]*")


class Reading(NamedTuple):
    """How to read the rows of a table. Either two columns are read as pairs, or rows become dictionaries."""

    width: int  # number of columns
    skip: int = 0  # number of rows up to and including the header row; 0 without a header row
    doubt: str = ""  # why the table may be read wrongly, and the flag that confirms the columns
    sides: tuple[int, ...] = ()  # indices of the question and answer columns, and of columns appended to the question
    layout: Layout | None = None  # how to read rows as dictionaries; used if `sides` is empty
    names: Sequence[str] = ()  # column names, or column numbers from 1 if there is no header row


class Division(NamedTuple):
    """A way to split the lines of a text into cells, and properties of the resulting table."""

    dialect: Dialect
    sample: list[list[str]]  # first rows
    header: Reading | None  # how to read the table; None if no known header row was found
    evenness: float  # fraction of rows with the most frequent number of columns; 0 if that number is 1

    @property
    def format(self) -> str:
        """The name of the format, "tsv" or "csv"."""
        return "tsv" if self.dialect.separator == "\t" else "csv"


def divide_text(text: TextFile, has_tabs: bool = False) -> Division:
    """Split a text into rows with the most suitable separator.

    A separator that produces a known header row is preferred, and then the one for which most rows have the same number
    of columns. If `has_tabs` is true, tabs are always the separator.
    """
    divisions = []
    for dialect in find_dialects(text, has_tabs) or [Dialect(",")]:
        sample = sample_rows(text, dialect)
        width, share = find_usual_width(sample)
        divisions.append(Division(dialect, sample, find_header(sample), share if width > 1 else 0.0))
    return max(divisions, key=lambda division: (division.header is not None, division.evenness * len(division.sample)))


def read_table(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a table in a text."""
    table = divide_text(text, options.format == "tsv")
    if not table.sample:
        return iter(())
    rows = rows_of_text(text, table.dialect, report)
    return pairs_of_table(Table(text.place, table.format, table.sample, rows), table.header, options, report)


def pairs_of_table(table: Table, header: Reading | None, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Return the pairs of a table.

    Args:
        table: The table.
        header: How to read the table, as returned by `find_header`. --columns and --map in the options take precedence.
        options: Read options.
        report: Report that is updated.

    Raises:
        UserError: If the question and answer columns are unknown. The error shows the first rows.
    """
    sample = table.sample
    if options.map:
        reading: Reading | None = _reading_by_map(sample, header, options.map)
    elif options.columns:
        reading = _reading_by_columns(sample, header, options.columns)
    else:
        reading = header or _reading_of_two_columns(sample) or _guess_reading(sample)
    if reading is None:
        problem = _describe_problem(table, options.columns)
        raise UserError(problem, [one_line(" | ".join(row), 120) for row in sample[:3]])
    report.doubt = reading.doubt
    location = Location(table.unit, table.place, report)
    rows = _rows(table, reading, location)
    if reading.layout is None:
        _note_columns(reading, sample, report)
        return _pairs(rows, reading)
    if "chat" in reading.layout.map.names:  # Rows have a chat id, so a repeated header row does not end a chat.
        rows = filter(None, rows)
    objects = (row and dict(zip(reading.names, row, strict=False)) for row in rows)
    return pairs_by_layout(objects, reading.layout, options, location, are_items=reading.layout.map.path == ())


def _note_columns(reading: Reading, sample: Sequence[Sequence[str]], report: Report) -> None:
    """Add a description of the question and answer columns to the report."""
    header = sample[reading.skip - 1] if reading.skip else ()
    columns = " and ".join(
        f"{side} from column {place + 1}" + (f" {one_line(header[place], SHOWN_NAME)!r}" if header else "")
        for side, place in zip(("question", "answer"), reading.sides, strict=False)
    )
    columns += f", first row as {'header' if header else 'pair'}"
    report.columns = [*(other for other in report.columns if other != columns), columns]


def _rows(table: Table, reading: Reading, location: Location) -> Iterator[Sequence[str] | None]:
    """Yield the rows below the header row. Rows with too few or too many columns are dropped.

    If the header row is repeated, None is yielded, because a new conversation begins.
    """
    width = reading.width
    skip = reading.skip
    header = table.sample[skip - 1] if skip else ()
    # In Markdown tables, a row of dashes follows the header row.
    if 0 < skip < len(table.sample) and not any(cell.strip("-: ") for cell in table.sample[skip]):
        skip += 1
    minimum = max(reading.sides[:2], default=1) + 1
    # Surplus cells come from unquoted separators in the last column. They are harmless if this column is not read.
    is_open = not reading.sides or (reading.skip > 0 and max(reading.sides) < width - 1)
    for location.number, row in islice(table.rows, skip, None):
        if names.repeats_header(row, header):
            location.drop("repeated headers")
            yield None
            continue
        if len(row) != width:
            while len(row) > width and not row[-1]:
                row.pop()
            is_longer = len(row) > width and not is_open
            if is_longer or len(row) < minimum:
                reason = "rows with too many columns" if is_longer else "rows with too few columns"
                reason = "lines without a tab" if table.format == "tsv" and len(row) == 1 else reason
                location.drop(reason)
                continue
        yield row


def _pairs(rows: Iterable[Sequence[str] | None], reading: Reading) -> Iterator[Pair]:
    """Yield the question and answer cells of each row as a pair."""
    question, answer, *inputs = reading.sides
    for row in rows:
        if row and inputs:
            input_cells = [row[place] for place in inputs if place < len(row) and row[place].strip()]
            yield "\n".join([row[question], *input_cells]), row[answer], NEW
        elif row:
            yield row[question], row[answer], NEW


def find_header(sample: Sequence[Sequence[str]]) -> Reading | None:
    """Return how to read a table, judging by its header row, or None if no row contains known column names.

    The header row can be below other rows, such as a title.
    """
    beginning = sample[: PREAMBLE + 1]
    for start, header in enumerate(beginning):
        layouts = find_declared(_objects(header, sample[start + 1 : start + 2])) if len({*header}) > 2 else []
        if len(layouts) == 1:
            return Reading(len(header), start + 1, "", (), layouts[0], header)
    for start, header in enumerate(beginning):
        if names.has_known_names(header) or sum(map(bool, header)) > 1:
            return _read_header_names(sample, start)
    return None


def _objects(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """Convert rows to dictionaries keyed by column name. If a name is repeated, only its first column is used."""
    columns = _column_names(header)
    return [{name: cell for name, cell in zip(columns, row, strict=False) if name in header} for row in rows]


def _read_header_names(sample: Sequence[Sequence[str]], start: int) -> Reading | None:
    """Return how to read a table whose header is row `start`, or None if the column names are not known."""
    header = sample[start]
    rows = [row for row in sample[start + 1 :] if len(row) >= len(header)]
    suggestion = suggest_by_names(_objects(header, rows or [["text"] * len(header)]), "column")
    if suggestion is None:
        return None
    is_pair = suggestion.layout.map.kind is PAIRS
    if not names.has_known_names(header) if is_pair else start or not rows:
        return None
    return _as_suggested(suggestion, _column_names(header), start + 1, by_number=True)


def _reading_by_map(sample: Sequence[Sequence[str]], known: Reading | None, expression: str) -> Reading:
    """Return how to read a table with --map. The map can refer to columns by name or number."""
    skip = known.skip if known else 1
    columns = _column_names(sample[skip - 1])
    if known is None and _NUMBERED.search(expression):
        columns = _numbers(max(map(len, sample)))
        skip = int(sample[0] == columns)
    return Reading(len(columns), skip, "", (), Layout(compile_map(expression)), columns)


def _column_names(header: Sequence[str]) -> list[str]:
    """Return distinct column names. Missing and repeated names in the header row are replaced."""
    return [name if name and name not in header[:n] else f"column {n + 1}" for n, name in enumerate(header)]


def _numbers(width: int) -> list[str]:
    return [str(number + 1) for number in range(width)]


def check_columns(columns: Sequence[str]) -> None:
    """Check the value of --columns. Raises UserError unless it is empty or names two different columns."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")


def _reading_by_columns(rows: Sequence[Sequence[str]], known: Reading | None, columns: Sequence[str]) -> Reading | None:
    """Return how to read the columns specified with --columns, or None if they do not exist."""
    if not all(map(str.isdecimal, columns)):
        column_keys = [*map(names.key_of, columns)]
        for start, header in enumerate(rows[: PREAMBLE + 1]):
            keys = [names.key_of(name) for name in header]
            if all(name in keys for name in column_keys):
                return Reading(len(header), start + 1, "", tuple(map(keys.index, column_keys)))
        return None
    sides = tuple(int(column) - 1 for column in columns)
    width = known.width if known else find_usual_width(row for row in rows if len(row) > 1)[0]
    return Reading(width, known.skip if known else 0, "", sides) if max(sides) < width else None


def _reading_of_two_columns(rows: Sequence[Sequence[str]]) -> Reading | None:
    """Return how to read a table of two columns, or None for other tables. A column of row numbers is ignored."""
    width = find_usual_width(row for row in rows if len(row) > 1)[0]
    complete = [row for row in rows if len(row) >= width]
    is_counted = width > 2 and has_running_numbers(complete)
    places = [i for i in range(is_counted, width) if width == 2 or any(row[i].strip() for row in complete)]
    if len(places) != 2:
        return None
    cells = [[row[place].strip() for place in places] for row in complete]
    first, *below = cells
    question, answer = places
    has_header = is_counted and not complete[0][0].strip().isdecimal()
    chosen_columns = f"{question + 1} {answer + 1}"
    chat = f'--map \'{{speaker: "{question + 1}", text: "{answer + 1}"}}\''
    if names.has_known_names(first) and below:
        doubt = "the header names no question and answer"
        has_header = True
        chosen_columns = shlex.join(first)
    elif doubt := find_doubt(cells[int(has_header) :], chat=chat) or find_doubt(below, chat=chat):
        pass
    elif not has_header and _may_be_header(first, below):
        doubt = f"if the first row is a header, give --columns {shlex.join(first)}"
    doubt = doubt and f"{doubt}; if these are pairs, give --columns {chosen_columns}"
    return Reading(width, rows.index(complete[0]) + 1 if has_header else 0, doubt, (question, answer))


def _guess_reading(rows: Sequence[Sequence[str]]) -> Reading | None:
    """Guess from the cells how to read a table whose column names are unknown. Returns None if this is not possible."""
    rows = [row for row in rows if len(row) == len(rows[0])]
    first, *below = rows
    is_named = names.has_known_names(first, 1) or is_header(first, below)
    has_header = len({*first}) == len(first) and is_named
    columns = first if has_header else _numbers(len(first))
    suggestion = suggest_by_values(_objects(columns, ([cell.strip() for cell in row] for row in below)))
    if suggestion is None:
        return None
    doubt = "the names in the header row are unknown" if has_header else "the table has no header row"
    return _as_suggested(suggestion._replace(doubt=doubt), columns, int(has_header))


def _as_suggested(suggestion: Suggestion, columns: Sequence[str], skip: int, by_number: bool = False) -> Reading:
    """Convert a suggested layout to a reading. With `by_number`, the flag in the doubt refers to column numbers."""
    layout = suggestion.layout
    fields = dict(layout.map.fields)
    sides = tuple(columns.index(fields[side]) for side in ("question", "answer", "input") if side in fields)
    remedy = flag(layout.map.expression)
    if sides:
        chosen_columns = [str(place + 1) if by_number else columns[place] for place in sides[:2]]
        remedy = f"--columns {shlex.join(chosen_columns)}"
    doubt = suggestion.doubt and f"{suggestion.doubt}; if the pairs above are right, give {remedy}"
    return Reading(len(columns), skip, doubt, sides, None if sides else layout, columns)


def _may_be_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row of a two-column table may be a header, because it differs from the rows below."""
    if not below or not all(0 < len(cell) <= MAX_NAME and not _SENTENCE.search(cell) for cell in first):
        return False
    if all(map(_IDENTIFIER.fullmatch, first)):
        return True
    if all(map(_WORD.fullmatch, first)) and not any(_WORD.fullmatch(cell) for row in below for cell in row):
        return True
    if len(below) > 1 and all(row[0].endswith(("?", "？")) for row in below):
        return not first[0].endswith(("?", "？"))
    lengths = [median(len(row[column]) for row in below) for column in range(2)]
    return len(below) > 1 and all(n >= CONTRAST * len(cell) for n, cell in zip(lengths, first, strict=True))


def _describe_problem(table: Table, columns: tuple[str, ...]) -> str:
    """Return the error message for a table whose question and answer columns are unknown."""
    rows = table.sample
    place = table.place
    width = max(len(rows[0]), find_usual_width(row for row in rows if len(row) > 1)[0])
    if columns:
        problem = f"no columns {one_line(' and '.join(columns), 40)}"
    elif width < 2:
        return f"{place}: only one column; write question, tab, answer on each line"
    else:
        problem = f"{pluralize(width, 'column')}, and no header names the question and the answer"
        if table.format == "tsv" and not has_column_without_text([row for row in rows if len(row) == width]):
            return f"{place}: {problem}; if each line is a conversation with tabs between turns, give --format turns"
    return listing(f"{place}: {problem}; give --columns and two of: ", number_names(rows[0]))

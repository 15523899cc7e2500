"""Tables: rows of text files and of sheets, which are objects with the names of the header, or of numbers without one.

The header says what the rows have: a question and an answer, or the layout of messages. A table of two columns needs no
header. Anything else is shown and asked about.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.doubts import doubt_of, has_no_texts, holds_running_numbers, is_header
from chatbot.corpus.reading.layouts import Layout, Suggestion, by_names, by_values, declared
from chatbot.corpus.reading.mapping import PAIRS, compiled, flag
from chatbot.corpus.reading.records import pairs_of_entries
from chatbot.corpus.reading.report import Located, ReadOptions, Report
from chatbot.corpus.reading.rows import PREAMBLE, Table, usual_width
from chatbot.display import SHOWN_NAME, counted, listing, numbered, one_line
from chatbot.errors import UserError

LONGEST = 20  # characters of the name of a column
CONTRAST = 3.0  # the cells below an unknown header are so many times as long
_NUMBERED = re.compile(r':\s*"\d+"')  # the number of a column in a map
_SENTENCE = re.compile(r"[，。,.!?！？…~～;；]|\w(?:\s\S+){3}")  # in no name of a column
_WORD = re.compile(r"[A-Za-z]\w{0,19}( \w{1,19})?")
_IDENTIFIER = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)+|[A-Za-z]+[0-9]{1,2}|[a-z]{2,}[A-Z][A-Za-z]*")  # as programs name


class Reading(NamedTuple):
    """How the rows of a table are read: by two of their columns, or by a layout of objects."""

    width: int  # number of columns
    skip: int = 0  # rows up to the header, 0 without one
    doubt: str = ""  # why it may be wrong, and the flag that settles it
    sides: tuple[int, ...] = ()  # columns of the question, the answer, and what else belongs to the question
    layout: Layout | None = None  # of the objects that the rows are, where sides is empty
    names: Sequence[str] = ()  # of their fields: those of the header, or the numbers of the columns from 1


def pairs_of_table(table: Table, header: Reading | None, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Return the pairs of a table. header: how it is read by its known header, as `of_header` returns it.

    Raises UserError, which shows the first rows, where nothing says which columns are the question and the answer.
    """
    sample = table.sample
    if options.map:
        found: Reading | None = _mapped(sample, header, options.map)
    elif options.columns:
        found = _given(sample, header, options.columns)
    else:
        found = header or _unnamed(sample) or _suggested(sample)
    if found is None:
        problem = _problem(table, options.columns)
        raise UserError(problem, [one_line(" | ".join(row), 120) for row in sample[:3]])
    report.doubt = found.doubt
    located = Located(table.unit, table.place, report)
    rows = _rows(table, found, located)
    if found.layout is None:
        _note(found, sample, report)
        return _pairs(rows, found)
    return pairs_of_entries(_entries(rows, found, found.layout, located.drop), found.layout, options, located)


def _note(found: Reading, sample: Sequence[Sequence[str]], report: Report) -> None:
    """Report the columns that are read, as the last of those of the source."""
    header = sample[found.skip - 1] if found.skip else ()
    columns = " and ".join(
        f"{side} from column {place + 1}" + (f" {one_line(header[place], SHOWN_NAME)!r}" if header else "")
        for side, place in zip(("question", "answer"), found.sides, strict=False)
    )
    columns += f", first row as {'header' if header else 'pair'}"
    report.columns = [*(other for other in report.columns if other != columns), columns]


def _rows(table: Table, found: Reading, located: Located) -> Iterator[Sequence[str] | None]:
    """Yield the rows below the header that have the columns, and None where a header comes again."""
    width = found.width
    skip = found.skip
    header = table.sample[skip - 1] if skip else ()
    below = table.sample[skip] if len(table.sample) > skip > 0 else ["text"]
    if any(below) and not any(cell.strip("-: ") for cell in below):  # the line below the header of Markdown's tables
        skip += 1
    least = max(found.sides[:2], default=1) + 1
    # Cells beyond the header belong to its last column, as what follows a comma in a text does.
    is_open = not found.sides or (found.skip > 0 and max(found.sides) < width - 1)
    for located.number, row in islice(table.rows, skip, None):
        if names.are_same(row, header):
            located.drop("repeated headers")
            yield None
            continue
        if len(row) != width:
            while len(row) > width and not row[-1]:
                row.pop()
            is_longer = len(row) > width and not is_open
            if is_longer or len(row) < least:
                reason = "rows with too many columns" if is_longer else "rows with too few columns"
                reason = "lines without a tab" if table.format == "tsv" and len(row) == 1 else reason
                located.drop(reason)
                continue
        yield row


def _pairs(rows: Iterable[Sequence[str] | None], found: Reading) -> Iterator[Pair]:
    """Yield a pair for each row, of the cells as they are."""
    question, answer, *inputs = found.sides
    for row in rows:
        if row and inputs:
            added = [row[place] for place in inputs if place < len(row) and row[place].strip()]
            yield "\n".join([row[question], *added]), row[answer], NEW
        elif row:
            yield row[question], row[answer], NEW


def _entries(
    rows: Iterable[Sequence[str] | None], found: Reading, layout: Layout, drop: Callable[[str], None]
) -> Iterator[object]:
    """Yield what the map of a layout gives for each row, and None where another table begins."""
    for row in rows:
        if row is None:
            yield from () if "chat" in layout.map.names else (None,)
            continue
        results = layout.map.results(dict(zip(found.names, row, strict=False)))
        if not results:
            drop(layout.rejected)
        yield from results


def of_header(sample: Sequence[Sequence[str]]) -> Reading | None:
    """Return how a table is read that has a known header, which may stand below rows of a title; None for others."""
    beginning = sample[: PREAMBLE + 1]
    if not any(len(row) > 2 or names.are_known(row, 1) for row in beginning):
        return None
    for start, header in enumerate(beginning):
        layouts = declared(_objects(header, sample[start + 1 : start + 2])) if len({*header}) > 2 else []
        if len(layouts) == 1:
            return Reading(len(header), start + 1, "", (), layouts[0], header)
    for start, header in enumerate(beginning):
        if names.are_known(header) or sum(map(bool, header)) > 1:
            return _named(sample, start)
    return None


def _objects(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """Return rows as objects with the names of a header; of equal names, the first counts."""
    columns = _names_of(header)
    return [{name: cell for name, cell in zip(columns, row, strict=False) if name in header} for row in rows]


def _named(sample: Sequence[Sequence[str]], start: int) -> Reading | None:
    """Return what the names of the header at this place suggest."""
    header = sample[start]
    rows = [row for row in sample[start + 1 :] if len(row) >= len(header)]
    suggestion = by_names(_objects(header, rows or [["text"] * len(header)]), "column")
    if suggestion is None:
        return None
    is_pair = suggestion.layout.map.kind is PAIRS
    if not names.are_known(header) if is_pair else start or not rows:
        return None
    return _of_suggestion(suggestion, _names_of(header), start + 1, by_number=True)


def _mapped(sample: Sequence[Sequence[str]], known: Reading | None, expression: str) -> Reading:
    """Return how a table is read by a map, which may name columns by the header or by numbers."""
    layout = Layout(compiled(expression))
    if known is None and _NUMBERED.search(expression):
        columns = _numbers(max(map(len, sample)))
        return Reading(len(columns), int(sample[0] == columns), "", (), layout, columns)
    skip = known.skip if known else 1
    return Reading(len(sample[skip - 1]), skip, "", (), layout, _names_of(sample[skip - 1]))


def _names_of(header: Sequence[str]) -> list[str]:
    """Return names by which columns differ, also where the header leaves one out or repeats one."""
    return [name if name and name not in header[:n] else f"column {n + 1}" for n, name in enumerate(header)]


def _numbers(width: int) -> list[str]:
    return [str(number + 1) for number in range(width)]


def check_columns(columns: Sequence[str]) -> None:
    """Raise UserError unless there are none or two different columns, by name or by number from 1."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")


def _given(rows: Sequence[Sequence[str]], known: Reading | None, given: Sequence[str]) -> Reading | None:
    """Return the columns that the user gave, None if they do not exist."""
    if not all(map(str.isdecimal, given)):
        wanted = [*map(names.key_of, given)]
        for start, header in enumerate(rows[: PREAMBLE + 1]):
            keys = [names.key_of(name) for name in header]
            if all(name in keys for name in wanted):
                return Reading(len(header), start + 1, "", tuple(map(keys.index, wanted)))
        return None
    sides = tuple(int(column) - 1 for column in given)
    width = known.width if known else usual_width(row for row in rows if len(row) > 1)[0]
    return Reading(width, known.skip if known else 0, "", sides) if max(sides) < width else None


def _unnamed(rows: Sequence[Sequence[str]]) -> Reading | None:
    """Return the two columns of a table whose header, if there is one, has no known names; None unless it has two.

    A first column of running numbers, as pandas writes it, is not counted, and neither are columns without text, as
    before and after the bars of Markdown.
    """
    width = usual_width(row for row in rows if len(row) > 1)[0]
    complete = [row for row in rows if len(row) >= width]
    is_counted = width > 2 and holds_running_numbers(complete)
    places = [i for i in range(is_counted, width) if width == 2 or any(row[i].strip() for row in complete)]
    if len(places) != 2:
        return None
    two = [[row[place].strip() for place in places] for row in complete]
    first = two[0]
    below = two[1:]
    question, answer = places
    has_header = is_counted and not complete[0][0].strip().isdecimal()
    settled = f"{question + 1} {answer + 1}"
    chat = f'--map \'{{speaker: "{question + 1}", text: "{answer + 1}"}}\''
    if names.are_known(first) and first[0] != first[1] and below:
        doubt = "the header names no question and answer"
        has_header = True
        settled = shlex.join(first)
    elif doubt := doubt_of(two[int(has_header) :], chat=chat) or doubt_of(below, chat=chat):  # below unknown names
        pass
    elif not has_header and _may_be_header(first, below):
        doubt = f"if the first row is a header, give --columns {shlex.join(first)}"
    doubt = doubt and f"{doubt}; if these are pairs, give --columns {settled}"
    return Reading(width, rows.index(complete[0]) + 1 if has_header else 0, doubt, (question, answer))


def _suggested(rows: Sequence[Sequence[str]]) -> Reading | None:
    """Return what the columns of a table without known names may be, by their cells."""
    rows = [row for row in rows if len(row) == len(rows[0])]
    first, *below = rows
    is_named = names.are_known(first, 1) or is_header(first, below)
    has_header = len({*first}) == len(first) and is_named
    columns = first if has_header else _numbers(len(first))
    suggestion = by_values(_objects(columns, ([cell.strip() for cell in row] for row in below)))
    if suggestion is None:
        return None
    doubt = "this header is not known" if has_header else "no header names the columns"
    return _of_suggestion(suggestion._replace(doubt=doubt), columns, int(has_header))


def _of_suggestion(found: Suggestion, columns: Sequence[str], skip: int, by_number: bool = False) -> Reading:
    """Return how a table of these columns is read as suggested. by_number: whether the flag has no names of columns."""
    layout = found.layout
    fields = dict(layout.map.fields if layout.map.kind is PAIRS else ())
    sides = tuple(columns.index(fields[side]) for side in ("question", "answer", "input") if side in fields)
    settled = flag(layout.map.expression)
    if sides:
        named = [str(place + 1) if by_number else columns[place] for place in sides[:2]]
        settled = f"--columns {shlex.join(named)}"
    doubt = found.doubt and f"{found.doubt}; if the pairs above are right, give {settled}"
    return Reading(len(columns), skip, doubt, sides, None if sides else layout, columns)


def _may_be_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether the first of these rows of two columns differs from the others as a header with unknown names."""
    if not below or not all(0 < len(cell) <= LONGEST and not _SENTENCE.search(cell) for cell in first):
        return False
    if all(map(_IDENTIFIER.fullmatch, first)):
        return True
    if all(map(_WORD.fullmatch, first)) and not any(_WORD.fullmatch(cell) for row in below for cell in row):
        return True
    if len(below) > 1 and all(row[0].endswith(("?", "？")) for row in below):
        return not first[0].endswith(("?", "？"))
    lengths = [median(len(row[column]) for row in below) for column in range(2)]
    return len(below) > 1 and all(n >= CONTRAST * len(cell) for n, cell in zip(lengths, first, strict=True))


def _problem(table: Table, given: tuple[str, ...]) -> str:
    """Return why a table has no columns of question and answer, and the remedy."""
    rows = table.sample
    place = table.place
    width = max(len(rows[0]), usual_width(row for row in rows if len(row) > 1)[0])
    if given:
        problem = f"no columns {one_line(' and '.join(given), 40)}"
    elif width < 2:
        return f"{place}: only one column; write question, tab, answer on each line"
    else:
        problem = f"{counted(width, 'column')}, and no header names the question and the answer"
        if table.format == "tsv" and not has_no_texts([row for row in rows if len(row) == width]):
            return f"{place}: {problem}; if each line is a conversation with tabs between turns, give --format turns"
    return listing(f"{place}: {problem}; give --columns and two of: ", numbered(rows[0]))

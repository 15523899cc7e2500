"""Tables: rows of text files and of sheets, with a pair or a message on each.

The header says what a table has: a question and an answer, or the layout of messages. A table of two columns needs no
header. Anything else is shown and asked about.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.doubts import (
    doubt_of,
    has_no_texts,
    holds_running_numbers,
    is_header,
    suggested,
)
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.rows import PREAMBLE, Table, usual_width
from chatbot.display import SHOWN_NAME, counted, listing, numbered, one_line
from chatbot.errors import UserError

if TYPE_CHECKING:
    from chatbot.corpus.reading.records import Layout

FIRST = 200  # rows below a header, from which the layout of messages is detected
LONGEST = 20  # characters of the name of a column
CONTRAST = 3.0  # the cells below an unknown header are so many times as long
_NUMBERED = re.compile(r':\s*"\d+"')  # the number of a column in a map
_SENTENCE = re.compile(r"[，。,.!?！？…~～;；]|\w(?:\s\S+){3}")  # in no name of a column
_WORD = re.compile(r"[A-Za-z]\w{0,19}( \w{1,19})?")
_IDENTIFIER = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)+|[A-Za-z]+[0-9]{1,2}|[a-z]{2,}[A-Z][A-Za-z]*")  # as programs name


@dataclass(frozen=True)
class Columns:
    """Where a table has the question and the answer."""

    question: int
    answer: int
    width: int  # number of columns
    skip: int  # rows before the first pair
    inputs: tuple[int, ...] = ()  # columns with text that belongs to the question, such as Alpaca's "input"
    header: tuple[str, ...] = ()  # the row that names the columns, if there is one
    doubt: str = ""  # why the columns may be no pairs, or the header a pair, and the flag that settles it

    def note(self, report: Report) -> None:
        """Report the columns that are read, as the last of those of the source."""
        columns = " and ".join(
            f"{side} from column {index + 1}"
            + (f" {one_line(self.header[index], SHOWN_NAME)!r}" if self.header else "")
            for side, index in (("question", self.question), ("answer", self.answer))
        )
        columns += f", first row as {'header' if self.header else 'pair'}"
        report.columns = [*(other for other in report.columns if other != columns), columns]


class Objects(NamedTuple):
    """A table whose rows are objects with the names of the header, or with the numbers of the columns from 1."""

    header: Sequence[str]
    layout: "Layout"
    doubt: str = ""
    is_numbered: bool = False


def pairs_of_table(table: Table, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Return the pairs of a table.

    Raises UserError, which shows the first rows, where nothing says which columns are the question and the answer.
    """
    sample = table.sample
    if options.map:
        found: Columns | Objects | None = _mapped(sample, options.map)
    elif options.columns:
        found = _given(sample, options.columns)
    else:
        found = of_header(sample) or _unnamed(sample) or _suggested(sample)
    if found is None:
        problem = _problem(table, options.columns)
        raise UserError(problem, [one_line(" | ".join(row), 120) for row in sample[:3]])
    report.doubt = found.doubt
    if isinstance(found, Objects):
        return _pairs_of_objects(table, found, options, report)
    below = sample[found.skip] if len(sample) > found.skip > 0 else ["text"]
    if any(below) and not any(cell.strip("-: ") for cell in below):  # the line below the header of Markdown's tables
        found = replace(found, skip=found.skip + 1)
    found.note(report)
    return _pairs(table, found, report)


def of_header(sample: Sequence[Sequence[str]]) -> Columns | Objects | None:
    """Return how a table is read that has a known header, which may stand below rows of a title; None for others."""
    beginning = sample[: PREAMBLE + 1]
    if not any(len(row) > 2 or names.are_known(row, 1) for row in beginning):
        return None
    from chatbot.corpus.reading.layouts import declared

    for start, header in enumerate(beginning):
        layouts = declared(_below(sample, start, 1)) if len({*header}) > 2 else []
        if len(layouts) == 1:
            return Objects(header, layouts[0])
    for start, header in enumerate(beginning):
        if names.are_known(header):
            return _named(sample, start)
        if sum(map(bool, header)) > 1:
            return _proposed(sample, start)
    return None


def _below(sample: Sequence[Sequence[str]], start: int, count: int) -> list[dict[str, str]]:
    """Return the first rows below the header at this place, as objects."""
    return [dict(zip(sample[start], row, strict=False)) for row in sample[start + 1 : start + 1 + count]]


def _named(sample: Sequence[Sequence[str]], start: int) -> Columns | Objects | None:
    """Return the question and the answer that the header at this place names, or what its names suggest."""
    from chatbot.corpus.reading.proposals import doubt_of_record, record

    header = sample[start]
    keys = [names.key_of(name) for name in header]
    rows = [row for row in sample[start + 1 :] if len(row) >= len(keys)]
    below = [dict(zip(keys, row, strict=False)) for row in rows] or [dict.fromkeys(keys, "text")]
    found = record(below, {key: key for key in reversed(keys)})
    if found is None:
        return _proposed(sample, start)
    question = keys.index(found.fields["question"])
    answer = keys.index(found.fields["answer"])
    inputs = tuple(keys.index(name) for name in [found.fields.get("input")] if name)
    doubt = doubt_of_record(found, below, "column")
    doubt = doubt and f"{doubt}; if these are pairs, give --columns {question + 1} {answer + 1}"
    return Columns(question, answer, len(header), start + 1, inputs, (*header,), doubt)


def _proposed(sample: Sequence[Sequence[str]], start: int) -> Objects | None:
    """Return the messages or conversations that the header in the first row suggests."""
    from chatbot.corpus.reading.mapping import flag
    from chatbot.corpus.reading.proposals import marked, message

    below = _below(sample, start, FIRST)
    fields = {names.key_of(name): name for name in reversed(sample[start])}
    proposal = message(below, fields) or marked(below, fields) if below and not start else None
    if proposal is None:
        return None
    expression, doubt = proposal
    doubt = doubt and f"{doubt}; if the pairs above are right, give {flag(expression)}"
    return _mapped(sample[start:], expression, doubt)


def _mapped(sample: Sequence[Sequence[str]], expression: str, doubt: str = "") -> Objects:
    """Return how a table is read by a map, which may name columns by the header in the first row or by numbers."""
    from chatbot.corpus.reading.mapping import compiled
    from chatbot.corpus.reading.records import Layout

    is_numbered = _NUMBERED.search(expression) is not None and of_header(sample) is None
    header = [str(number + 1) for number in range(max(map(len, sample)))] if is_numbered else sample[0]
    return Objects(header, Layout(compiled(expression)), doubt, is_numbered)


def _pairs_of_objects(table: Table, found: Objects, options: ReadOptions, report: Report) -> Iterator[Pair]:
    from chatbot.corpus.reading.records import pairs_of_entries

    header, layout, _, is_below = found
    place = table.place

    def drop(reason: str) -> None:
        report.drop(reason, place)

    def entries() -> Iterator[object]:
        nonlocal place, is_below
        for number, row in table.rows:
            place = f"{table.place}, {table.unit} {number}"
            if names.are_same(row, header) and is_below:
                drop("repeated headers")
                if "chat" not in layout.map.names:
                    yield None  # another table begins
            elif row == header:
                is_below = True
            elif is_below and len(row) < 2:
                drop("rows with too few columns")
            elif is_below:
                results = layout.map.results(dict(zip(header, row, strict=False)))
                if not results:
                    drop(layout.rejected)
                yield from results

    return pairs_of_entries(entries(), layout, options, report, table.place, drop)


def _pairs(table: Table, columns: Columns, report: Report) -> Iterator[Pair]:
    width = columns.width
    question = columns.question
    answer = columns.answer
    inputs = columns.inputs
    # Cells beyond the header belong to its last column, as what follows a comma in a text does.
    last = max(question, answer, *inputs) if columns.header else width - 1
    for number, row in islice(table.rows, columns.skip, None):
        if names.are_same(row, columns.header):
            report.drop("repeated headers", f"{table.place}, {table.unit} {number}")
            continue
        if len(row) != width:
            while len(row) > width and not row[-1]:
                row.pop()
            is_longer = len(row) > width and last == width - 1
            if is_longer or len(row) <= max(question, answer):
                reason = "rows with too many columns" if is_longer else "rows with too few columns"
                reason = "lines without a tab" if table.format == "tsv" and len(row) == 1 else reason
                report.drop(reason, f"{table.place}, {table.unit} {number}")
                continue
        if inputs:
            added = [row[index] for index in inputs if index < len(row) and row[index].strip()]
            yield "\n".join([row[question], *added]), row[answer], NEW
        else:
            yield row[question], row[answer], NEW


def check_columns(columns: Sequence[str]) -> None:
    """Raise UserError unless there are none or two different columns, by name or by number from 1."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")


def _given(rows: Sequence[Sequence[str]], given: Sequence[str]) -> Columns | None:
    """Return the columns that the user gave, None if they do not exist."""
    if not all(map(str.isdecimal, given)):
        wanted = [*map(names.key_of, given)]
        for start, header in enumerate(rows[: PREAMBLE + 1]):
            keys = [names.key_of(name) for name in header]
            if all(name in keys for name in wanted):
                question, answer = map(keys.index, wanted)
                return Columns(question, answer, len(header), start + 1, header=(*header,))
        return None
    question, answer = (int(column) - 1 for column in given)
    known = of_header(rows)
    header = (*known.header,) if known else ()
    skip = rows.index([*header]) + 1 if header else 0
    width = len(header) or usual_width(row for row in rows if len(row) > 1)[0]
    return Columns(question, answer, width, skip, header=header) if max(question, answer) < width else None


def _unnamed(rows: Sequence[Sequence[str]]) -> Columns | None:
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
    header = is_counted and not complete[0][0].strip().isdecimal()
    flag = f"{question + 1} {answer + 1}"
    chat = f'--map \'{{speaker: "{question + 1}", text: "{answer + 1}"}}\''
    if names.are_known(first) and first[0] != first[1] and below:
        doubt = "the header names no question and answer"
        header = True
        flag = shlex.join(first)
    elif doubt := doubt_of(two[int(header) :], chat=chat) or doubt_of(below, chat=chat):  # below unknown names
        pass
    elif not header and _may_be_header(first, below):
        doubt = f"if the first row is a header, give --columns {shlex.join(first)}"
    doubt = doubt and f"{doubt}; if these are pairs, give --columns {flag}"
    return Columns(question, answer, width, int(header), header=(*complete[0],) if header else (), doubt=doubt)


def _suggested(rows: Sequence[Sequence[str]]) -> Columns | Objects | None:
    """Return what the columns of a table without known names may be, by their cells."""
    from chatbot.corpus.reading.mapping import flag, written

    rows = [row for row in rows if len(row) == len(rows[0])]
    first, *below = rows
    found = suggested({str(i): [row[i].strip() for row in below if row[i].strip()] for i in range(len(first))})
    if not found:
        return None
    is_named = names.are_known(first, 1) or is_header(first, below)
    header = first if len({*first}) == len(first) and is_named else []
    doubt = (
        f"{'this header is not known' if header else 'no header names the columns'}; if the pairs above are right, give"
    )
    if "question" not in found:
        given = {name: header[int(i)] if header else str(int(i) + 1) for name, i in found.items() if i}
        chat = next((name for name in header if names.key_of(name) in names.CHATS), "") if "speaker" in found else ""
        expression = written({**given, "chat": chat})
        return _mapped(rows, expression, f"{doubt} {flag(expression)}")
    question = int(found["question"])
    answer = int(found["answer"])
    columns = (header[question], header[answer]) if header else (str(question + 1), str(answer + 1))
    doubt += f" --columns {shlex.join(columns)}"
    return Columns(question, answer, len(first), int(bool(header)), header=(*header,), doubt=doubt)


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

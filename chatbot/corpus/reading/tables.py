"""Tables: rows of text files and of sheets, with a pair or a message on each.

The header says what a table has: a question and an answer, or the layout of messages. A table of two columns needs no
header. Anything else is shown and asked about.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from chatbot.corpus.reading import names
from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.doubts import are_choices, doubt_of, holds_running_numbers
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.rows import PREAMBLE, Table, usual_width
from chatbot.display import SHOWN_NAME, counted, listing, numbered, one_line
from chatbot.errors import UserError

LONGEST = 20  # characters of the name of a column
CONTRAST = 3.0  # the cells below an unknown header are so many times as long
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
        """Report the columns that are read, as the last of those of the source, and the doubt."""
        columns = " and ".join(
            f"{side} from column {index + 1}"
            + (f" {one_line(self.header[index], SHOWN_NAME)!r}" if self.header else "")
            for side, index in (("question", self.question), ("answer", self.answer))
        )
        columns += f", first row as {'header' if self.header else 'pair'}"
        report.columns = [*(other for other in report.columns if other != columns), columns]
        report.doubt = self.doubt


def pairs_of_table(table: Table, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a table.

    Raises UserError, which shows the first rows, where nothing says which columns are the question and the answer.
    """
    if options.map or (not options.columns and _may_be_messages(table.sample)):
        from chatbot.corpus.reading import message_tables

        if pairs := message_tables.pairs_of_messages(table, options, report):
            return pairs
    columns = columns_of(table.sample, options.columns, table.place)
    columns.note(report)
    return _pairs(table, columns, report)


def has_known_header(sample: Sequence[Sequence[str]]) -> bool:
    """Return whether a header names the question and the answer, or the parts of messages."""
    if _named(sample) is not None:
        return True
    if not _may_be_messages(sample):
        return False
    from chatbot.corpus.reading import message_tables

    return message_tables.layout_of_messages(sample) is not None


def _may_be_messages(sample: Sequence[Sequence[str]]) -> bool:
    """Return whether a table has more than two columns, or two with known names."""
    return any(len(row) > 2 for row in sample[: PREAMBLE + 1]) or names.are_known(sample[0] if sample else (), 1)


def _pairs(table: Table, columns: Columns, report: Report) -> Iterator[Pair]:
    width, question, answer, inputs = columns.width, columns.question, columns.answer, columns.inputs
    header = [*columns.header]
    for number, row in islice(table.rows, columns.skip, None):
        if row == header:
            report.drop("repeated headers", f"{table.place}, {table.unit} {number}")
            continue
        if len(row) != width:
            while len(row) > width and not row[-1]:
                row.pop()
            if len(row) > width or len(row) <= max(question, answer):
                reason = "rows with too many columns" if len(row) > width else "rows with too few columns"
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


def columns_of(rows: Sequence[Sequence[str]], given: tuple[str, ...], place: str) -> Columns:
    """Return the columns of question and answer of a table that begins with these rows.

    Raises UserError, which shows the first rows, when a given column does not exist, or when none is given and no
    header names the question and the answer among more than two.
    """
    found = _given(rows, given) if given else _named(rows) or _unnamed(rows)
    if found is None:
        raise UserError(_problem(rows, given, place), [one_line(" | ".join(row), 120) for row in rows[:3]])
    below = rows[found.skip] if len(rows) > found.skip > 0 else ["text"]
    if any(below) and not any(cell.strip("-: ") for cell in below):  # the line below the header of Markdown's tables
        return Columns(**{**found.__dict__, "skip": found.skip + 1})
    return found


def _named(rows: Sequence[Sequence[str]], given: tuple[str, ...] = ()) -> Columns | None:
    """Return the columns that a header names, below rows of a title, with text in one column."""
    for start, header in enumerate(rows[: PREAMBLE + 1]):
        if not given and not names.are_known(header):
            if sum(map(bool, header)) > 1:
                return None
            continue
        from chatbot.corpus.reading.proposals import record

        keys = [names.key_of(name) for name in header]
        fields = {key: key for key in reversed(keys)}
        below = [dict(zip(keys, row, strict=False)) for row in rows[start + 1 :] if len(row) >= len(keys)]
        if given:
            wanted = [name.casefold() for name in given]
            if all(name in fields for name in wanted):
                question, answer = map(keys.index, wanted)
                return Columns(question, answer, len(header), start + 1, header=(*header,))
        elif found := record(below or [dict.fromkeys(keys, "")], fields):
            question, answer = keys.index(found.fields["question"]), keys.index(found.fields["answer"])
            inputs = tuple(keys.index(name) for name in [found.fields.get("input")] if name)
            pairs = [(row[question], row[answer]) for row in rows[start + 1 :] if len(row) > max(question, answer)]
            doubt = found.doubt
            if len(header) > 2 and not doubt:
                are_letters = are_choices([pair[1] for pair in pairs])
                doubt = "the answers are letters of choices" if are_letters else doubt_of(pairs)
            doubt = doubt and f"{doubt}; if these are pairs, give --columns {question + 1} {answer + 1}"
            return Columns(question, answer, len(header), start + 1, inputs, (*header,), doubt)
        if sum(map(bool, header)) > 1:
            return None
    return None


def _given(rows: Sequence[Sequence[str]], given: tuple[str, ...]) -> Columns | None:
    """Return the columns that the user gave, None if they do not exist."""
    if not all(column.isdecimal() for column in given):
        return _named(rows, given)
    question, answer = (int(column) - 1 for column in given)
    header = _named(rows)
    width = header.width if header else usual_width(row for row in rows if len(row) > 1)[0]
    if max(question, answer) >= width:
        return None
    return Columns(question, answer, width, header.skip if header else 0, header=header.header if header else ())


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
    first, below = two[0], two[1:]
    question, answer = places
    header = is_counted and not complete[0][0].strip().isdecimal()
    flag = f"{question + 1} {answer + 1}"
    if names.are_known(first) and first[0] != first[1] and below:
        doubt, header, flag = "the header names no question and answer", True, shlex.join(first)
    elif doubt := doubt_of(two[int(header) :]) or doubt_of(below):  # below a header with unknown names
        pass
    elif not header and _may_be_header(first, below):
        doubt = "the first row may be a header; if it is, delete it or give the two names with --columns"
    doubt = doubt and f"{doubt}; if these are pairs, give --columns {flag}"
    return Columns(question, answer, width, int(header), header=(*complete[0],) if header else (), doubt=doubt)


def _may_be_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether the first of these rows of two columns differs from the others as a header with unknown names."""
    if not below or not all(0 < len(cell) <= LONGEST and not _SENTENCE.search(cell) for cell in first):
        return False
    for pattern in (_IDENTIFIER, _WORD):
        if all(map(pattern.fullmatch, first)) and not any(pattern.fullmatch(cell) for row in below for cell in row):
            return True
    if len(below) > 1 and all(row[0].endswith(("?", "？")) for row in below):
        return not first[0].endswith(("?", "？"))
    lengths = [median(len(row[column]) for row in below) for column in range(2)]
    return len(below) > 1 and all(n >= CONTRAST * len(cell) for n, cell in zip(lengths, first, strict=True))


def _problem(rows: Sequence[Sequence[str]], given: tuple[str, ...], place: str) -> str:
    """Return why a table has no columns of question and answer, and the remedy."""
    width = max(len(rows[0]), usual_width(row for row in rows if len(row) > 1)[0])
    if given:
        problem = f"no columns {one_line(' and '.join(given), 40)}"
    elif width < 2:
        return f"{place}: only one column; write question, tab, answer on each line"
    else:
        problem = f"{counted(width, 'column')}, and no header names the question and the answer"
    return listing(f"{place}: {problem}; give --columns and two of: ", numbered(rows[0]))

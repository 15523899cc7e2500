"""Tables with a pair on each row, or a message: tab-separated values, and CSV in its dialects.

Programs write two kinds of tab-separated values. Most write the text as it is, so that a quotation mark is a part of
the text. Spreadsheets and pandas enclose cells in quotes, which may then contain doubled quotes, tabs and line ends.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.formats.columns import key_of, layout_of, misfit, usual_width
from chatbot.corpus.reading.formats.dialect import (
    COMMAS,
    TABLE_ENDINGS,
    TABS,
    Dialect,
    dialect_of,
    rows_of,
    rows_of_text,
)
from chatbot.corpus.reading.formats.fields import Ahead, Walk
from chatbot.corpus.reading.formats.messages import fields_of_row, pairs_of_people
from chatbot.corpus.reading.open.text_file import TextFile, decoded, lines
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

# The least share of the rows with the same number of columns, by the name of a table and without it.
NAMED, SAME_WIDTH = 0.6, 0.95
EXCEL = "UTF-16 LE"  # the charset of its "Unicode text", whose quotes enclose cells


def is_tsv(text: TextFile) -> bool:
    """Return whether half of the lines have a tab after other characters."""
    filled = [line for line in text.first_lines if line.strip()]
    return sum("\t" in line.lstrip() for line in filled) * 2 >= len(filled)


def is_csv(text: TextFile) -> bool:
    """Return whether a header or the name of the file says that it is a table, in a dialect of CSV."""
    return dialect_of(text.first_lines, NAMED if text.ending in TABLE_ENDINGS else 2) is not None


def may_be_csv(text: TextFile) -> str:
    """Return why these lines may be a table; "" for other lines. Prose has commas, too."""
    table = dialect_of(text.first_lines, SAME_WIDTH)
    return "nearly all lines have the same number of columns, as a table or prose may have" if table else ""


def read_csv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a CSV file, from its two columns or those named by its header or `options.columns`."""
    return _pairs_of_rows(text, dialect_of(text.first_lines, 0) or COMMAS, options, report)


def read_tsv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a TSV file."""
    sample = text.first_lines
    from_excel = text.charset == EXCEL and all(_is_regular(row, raw) for _, row, raw in rows_of(sample, TABS))
    return _pairs_of_rows(text, TABS if from_excel or is_quoted(sample) else None, options, report)


def _pairs_of_rows(text: TextFile, dialect: Dialect | None, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a table. dialect: None for tabs between cells that are written as they are."""
    sample = [row for _, row, _ in rows_of(text.first_lines, dialect)] if dialect else map(_cells, text.first_lines)
    layout = layout_of([row for row in sample if any(row)] or [[""]], options.columns, text.place)
    layout.note(report)
    width, question, answer, header = layout.width, layout.question, layout.answer, [*layout.header]
    for number, row in islice(_rows(text, dialect, (question, answer), report), layout.skip, None):
        if row == header:
            report.drop("repeated headers", f"{text.place}, line {number}")
        elif len(row) == width:
            yield layout.pair_of(row) if layout.inputs else (row[question], row[answer], NEW)
        elif dialect in (None, TABS) and len(row) == 1:
            report.drop("lines without a tab", f"{text.place}, line {number}")
        elif problem := misfit(row, layout):
            report.drop(problem, f"{text.place}, line {number}")
        else:
            yield layout.pair_of(row)


def _rows(
    text: TextFile, dialect: Dialect | None, columns: tuple[int, int], report: Report
) -> Iterator[tuple[int, list[str]]]:
    if dialect is None:
        return ((number, line.split("\t")) for number, line in lines(text, report) if line and not line.isspace())
    return ((number, row) for number, row, _ in rows_of_text(text, report, dialect, columns) if any(row))


def _cells(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t") if line.strip() else []


def is_quoted(sample: Sequence[str]) -> bool:
    """Return whether the program that wrote these lines encloses cells in quotes.

    It does if this reading explains more lines than the other. As text: lines of the usual number of columns. As
    quoted: rows of the usual number in which quotes stand only where a program writes them. If both explain the same
    lines, cells on a single line decide, such as "say ""hi"" first".
    """
    if not any('"' in line for line in sample):
        return False
    plain = [*map(_cells, sample)]
    usual = usual_width(plain)
    as_text = sum(len(row) == usual > 1 and not any(map(_is_doubled, row)) for row in plain)
    rows = [(row, raw) for _, row, raw in rows_of(sample, TABS) if row]
    usual = usual_width([row for row, _ in rows])
    written = [raw for row, raw in rows if len(row) == usual > 1 and _is_written(row, raw)]
    as_quoted = sum(not line.isspace() for raw in written for line in raw)
    return as_quoted > as_text or (as_quoted == as_text and any(len(raw) == 1 and '"' in raw[0] for raw in written))


def _is_regular(row: Sequence[str], raw: Sequence[str]) -> bool:
    """Return whether quotes stand around whole cells only, and doubled within them."""
    return "".join(raw).count('"') >= sum(2 * cell.count('"') + 2 * ('"' in cell) for cell in row)


def _is_doubled(cell: str) -> bool:
    inner = cell[1:-1]
    return len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")


# Which cells a program encloses in quotes: those where it must, for Excel also those with a comma; texts; all.
_QUOTED: tuple[Callable[[str], bool], ...] = (
    lambda cell: any(character in cell for character in '"\t\r\n'),
    lambda cell: any(character in cell for character in '"\t\r\n,'),
    lambda cell: cell.strip("0123456789.-+") != "",
    lambda cell: True,
)


def _is_written(row: Sequence[str], raw: Sequence[str]) -> bool:
    """Return whether a program that encloses cells in quotes writes a row as these lines."""
    text = "".join(raw).rstrip("\r\n")
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in row]
    return any(text == "\t".join(both[fits(both[0])] for both in zip(row, quoted, strict=True)) for fits in _QUOTED)


# Tables with one message on each row, such as WeChat's: who sent it, its text, often its time, kind and chat.

_DOUBTFUL = frozenset(  # columns that other tables have, too
    {"value", "sentence", "parts", "turn", "transcript", "文本", "role", "角色", "agent", "creator", "participant"}
)


def is_messages(text: TextFile) -> bool:
    """Return whether the text is a table with a header of messages."""
    return _dialect_of_messages(text.first_lines) is not None


def _dialect_of_messages(sample: Sequence[str]) -> Dialect | None:
    """Return the dialect of a table of messages: a comma, a semicolon or a tab; None for any other text."""
    for dialect in map(Dialect, ",;\t"):
        row = next((row for _, row, _ in rows_of(sample[:20], dialect) if row), [])
        fields = fields_of_row(tuple(map(key_of, row)))
        if len(row) > 1 and fields and not _DOUBTFUL.intersection((fields.text, fields.speaker)):
            return dialect
    return None


def read_message_rows(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of all chats. Raises UserError if `options.me` wrote no message."""
    dialect = _dialect_of_messages(text.first_lines)
    if dialect is None:
        raise UserError(
            f"{text.place}, line 1: no header names the text of messages and who sent them; add a first line such as "
            "time,sender,content"
        )

    def rows() -> Iterator[tuple[int, int, object]]:
        header: tuple[str, ...] = ()
        for number, row, _ in rows_of_text(text, report, dialect):
            if not header:
                header = tuple(map(key_of, row))
                fields = fields_of_row(header)
                needed = [header.index(name) for name in fields[:5] if name] if fields else []
            elif len(row) <= max(needed):
                report.drop("rows with too few columns", f"{text.place}, line {number}")
            else:
                yield number, 0, dict(zip(header, row, strict=False))

    values = Ahead(rows())
    walk = Walk(options, report, text.place, lambda: f"{text.place}, line {values.number}")
    yield from decoded(pairs_of_people(values, walk), text, report, walk.drop)

"""Tables with quotes as in RFC 4180: doubled quotes, separators and line ends inside quotes; CSV in its dialects."""

from collections.abc import Iterator

from chatbot.corpus.reading.files.lines import UNDECODABLE, raw_lines, refuse_if_mostly_bad
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.tables.columns import TOO_MANY, layout_of, misfit, without_prose
from chatbot.corpus.reading.tables.dialect import Dialect, dialect_of, rows_of


def read_csv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a CSV file, from its two columns or those named by its header or `options.columns`."""
    dialect = dialect_of(first_lines(text), sure=True) or Dialect(",")
    return read_table(text, dialect, options, report)


def read_table(text: TextFile, dialect: Dialect, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a table in this dialect."""
    rows = [row for _, row, _ in rows_of(first_lines(text), dialect, lambda number: None) if row]
    layout = layout_of(rows or [[""]], options.columns, text.place)
    layout.note(report)
    header = [*layout.header]
    question, answer, skip = layout.question, layout.answer, layout.skip
    bad = count = 0

    def broken(line: int) -> None:
        report.drop("rows with a stray or unclosed quote", f"{text.place}, line {line}")

    for number, row, raw in rows_of(raw_lines(text, report), dialect, broken):
        if not row:
            continue
        count += 1
        if skip:
            skip -= 1
        elif row == header:
            report.drop("repeated headers", f"{text.place}, line {number}")
        elif not any(row):
            continue
        elif len(row) != layout.width and (problem := misfit(row, layout)):
            cells = without_prose("".join(raw), dialect.separator, layout) if problem == TOO_MANY else None
            if cells:
                yield layout.pair_of(cells)
            else:
                report.drop(problem, f"{text.place}, line {number}")
        elif UNDECODABLE in row[question] or UNDECODABLE in row[answer]:
            bad += 1
            report.drop(f"rows not {text.encoding}", f"{text.place}, line {number}")
        else:
            yield layout.pair_of(row)
    refuse_if_mostly_bad(text, report, bad, count)

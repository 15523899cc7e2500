"""Tab-separated values: one pair on each line, as question, tab, answer, or in two of several columns."""

from collections.abc import Iterator

from chatbot.corpus.reading.columns import layout_of, misfit
from chatbot.corpus.reading.lines import Pair, lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import TextFile, first_lines


def read_tsv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a TSV file. A tab always separates; there is no quoting."""
    rows = [line.rstrip("\r\n").split("\t") for line in first_lines(text) if line.strip()]
    layout = layout_of(rows, options.columns, text.place)
    width, question, answer, skip = layout.width, layout.question, layout.answer, layout.skip
    for number, line in lines(text, report):
        if not line:
            continue
        row = line.split("\t")
        if skip and line.strip():
            skip -= 1
        elif len(row) == width:
            yield row[question], row[answer]
        elif len(row) == 1:
            if line.strip():
                report.drop("lines without a tab", f"{text.place}, line {number}")
        elif problem := misfit(row, layout):
            report.drop(problem, f"{text.place}, line {number}")
        else:
            yield row[question], row[answer]

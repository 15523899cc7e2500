"""Tables with a message on each row, whose layout the header tells, and tables that a map reads."""

from collections.abc import Iterator, Sequence

from chatbot.corpus.reading import names
from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.layouts import declared
from chatbot.corpus.reading.mapping import compiled, flag
from chatbot.corpus.reading.proposals import marked, message, record
from chatbot.corpus.reading.records import Layout, pairs_of_entries
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.rows import PREAMBLE, Table

FIRST = 200  # rows below a header, from which its layout is detected


def pairs_of_messages(table: Table, options: ReadOptions, report: Report) -> Iterator[Pair] | None:
    """Return the pairs of a table of messages, or of one that `options.map` reads; None for any other table."""
    found = (0, Layout(compiled(options.map)), "") if options.map else layout_of_messages(table.sample)
    if found is None:
        return None
    start, layout, report.doubt = found
    header, place = table.sample[start], table.place

    def drop(reason: str) -> None:
        report.drop(reason, place)

    def entries() -> Iterator[object]:
        nonlocal place
        is_below = False
        for number, row in table.rows:
            place = f"{table.place}, {table.unit} {number}"
            if row == header and is_below:
                drop("repeated headers")
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


def layout_of_messages(sample: Sequence[Sequence[str]]) -> tuple[int, Layout, str] | None:
    """Return the row with the header of a table of messages, its layout, and the doubt; None for another table."""
    for start, header in enumerate(sample[: PREAMBLE + 1]):
        if len({*header}) < 2:
            continue
        below = [dict(zip(header, row, strict=False)) for row in sample[start + 1 : start + 1 + FIRST]]
        fields = {names.key_of(name): name for name in reversed(header)}
        layouts = declared(below[:1]) if len(header) > 2 else []
        if len(layouts) == 1:
            return start, layouts[0], ""
        if not below or start or record(below, fields):
            continue
        if proposal := message(below, fields) or marked(below, fields):
            expression, doubt = proposal
            doubt = doubt and f"{doubt}; if the pairs above are right, give {flag(expression)}"
            return start, Layout(compiled(expression)), doubt
    return None

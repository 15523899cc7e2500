"""Turns between marks: DailyDialog's __eou__, the tables of the Ubuntu corpus V2, the templates of language models.

In the tables, the context has the turns before the utterance; a label says whether that belongs to them.
"""

from collections.abc import Iterator, Sequence

from chatbot.corpus.reading.files.lines import UNDECODABLE, decoded, lines, raw_lines
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.tables.dialect import Dialect, rows_of
from chatbot.corpus.reading.values.marked_text import pairs_of_turns, pairs_of_utterances, separated, turns_of
from chatbot.errors import UserError

END = "__eou__"
TEMPLATES = ("<|", "### ", "[INST]", "<s>", "<start_of_turn>", "[Human]")  # the beginnings of models' templates
MAX_CHARACTERS = 64 * 2**20  # of a text of templates, which is held in memory
MARKED = 0.5  # of the lines
UTTERANCES = ("ground truth utterance", "utterance")
TRUE = ("1", "1.0")
BROKEN = "rows with a stray or unclosed quote"
FALSE_RESPONSES = "responses labelled as false"


def is_eou(sample: Sequence[str]) -> bool:
    """Return whether the lines are conversations whose turns end in __eou__."""
    filled = [line for line in sample if line.strip()]
    return sum(END in line for line in filled) >= MARKED * len(filled)


def _column_of_eou(sample: Sequence[str]) -> int | None:
    """Return the column with the conversations of a CSV table; None for lines that are no table."""
    broken: list[int] = []
    rows = [row for _, row, _ in rows_of(sample, Dialect(","), broken.append) if row]
    columns = {index for row in rows for index, cell in enumerate(row) if END in cell}
    quoted = any(line.startswith('"') or ',"' in line for line in sample)
    is_table = quoted and not broken and len(columns) == 1 and len({*map(len, rows)}) == 1
    return columns.pop() if is_table else None


def _cells(text: TextFile, column: int, report: Report) -> Iterator[tuple[int, str]]:
    def broken(line: int) -> None:
        report.drop(BROKEN, f"{text.place}, line {line}")

    for number, row, _ in rows_of(raw_lines(text, report), Dialect(","), broken):
        if len(row) > column and UNDECODABLE in row[column]:
            report.drop(f"rows not {text.encoding}", f"{text.place}, line {number}")
        elif len(row) > column and (number > 1 or END in row[column]):  # not of the header
            yield number, row[column]


def read_eou(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the adjacent turns of each line, or of each row of a table."""
    column = _column_of_eou(first_lines(text))
    if column is not None:
        for number, cell in _cells(text, column, report):
            if turns := separated(cell):
                yield from pairs_of_utterances(turns)
            else:
                report.drop("lines without two turns", f"{text.place}, line {number}")
        return
    for number, line in lines(text, report):
        if line and (turns := separated(line)):
            yield from pairs_of_utterances(turns)
        elif line and line.strip():
            report.drop("lines without two turns", f"{text.place}, line {number}")


def is_template(sample: str) -> bool:
    """Return whether a text that begins like this has the marks of a language model's template around its turns."""
    return sample.lstrip().startswith(TEMPLATES) and bool(pairs_of_turns(turns_of(sample) or []))


def read_template(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of users and assistants. Raises UserError for a text that is too large."""
    content = text.stream.read(MAX_CHARACTERS + 1)
    if len(content) > MAX_CHARACTERS:
        raise UserError(f"{text.place}: more than {MAX_CHARACTERS // 2**20} MiB of templates; give JSON Lines or TSV")

    def drop(reason: str) -> None:
        report.drop(reason, text.place)

    yield from decoded(pairs_of_turns(turns_of(content) or []), text, report, drop)


def is_ubuntu(sample: Sequence[str]) -> bool:
    """Return whether the lines are a table of the Ubuntu corpus V2."""
    return any("__eo" in line for line in sample) and _columns(_first(sample)) is not None


def _first(sample: Sequence[str]) -> list[str]:
    return next((row for _, row, _ in rows_of(sample[:2], Dialect(","), lambda number: None)), [])


def _columns(header: Sequence[str]) -> tuple[int, int, int | None] | None:
    """Return the columns of context, utterance and label; None for another header."""
    names = [name.strip().casefold() for name in header]
    utterance = next((names.index(name) for name in UTTERANCES if name in names), None)
    if "context" not in names or utterance is None:
        return None
    return names.index("context"), utterance, names.index("label") if "label" in names else None


def read_ubuntu(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the adjacent turns of the rows whose utterance belongs to the context."""
    columns: tuple[int, int, int | None] | None = None

    def broken(line: int) -> None:
        report.drop(BROKEN, f"{text.place}, line {line}")

    for number, row, _ in rows_of(raw_lines(text, report), Dialect(","), broken):
        place = f"{text.place}, line {number}"
        if not row:
            continue
        if columns is None:
            columns = _columns(row) or (0, 1, 2)
            if _columns(row):
                continue
        context, utterance, label = columns
        if len(row) <= max(context, utterance, label or 0):
            report.drop("rows with too few columns", place)
        elif UNDECODABLE in row[context] or UNDECODABLE in row[utterance]:
            report.drop(f"rows not {text.encoding}", place)
        elif label is not None and row[label].strip() not in TRUE:
            report.drop(FALSE_RESPONSES, place)
        else:
            yield from pairs_of_utterances(separated(f"{row[context]} __eot__ {row[utterance]}") or [])

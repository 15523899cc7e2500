"""Selection of the question and answer columns of a table, or fields of a record."""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chatbot.corpus.reading.display import counted, one_line
from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.corpus.reading.tables.header import (
    holds_dates,
    holds_few_values,
    holds_running_numbers,
    holds_words,
    is_header,
)
from chatbot.corpus.reading.weights import weight_column_of, weighted_row
from chatbot.errors import UserError

# In order of preference: "title" is the question only without a better name.
QUESTIONS = (
    *("question", "instruction", "query", "prompt", "input", "source", "src", "ask", "post", "title", "q"),
    *("questions", "input_text", "source_text", "utterance", "context", "human", "user"),
    *("问题", "提问", "问", "問題", "提問", "問", "问句", "上句", "输入", "用户"),
    *("上联", "上聯", "上文", "前句", "質問"),
)
ANSWERS = (
    *("answer", "output", "response", "completion", "reply", "target", "tgt", "a"),
    *("answers", "responses", "replies", "output_text", "target_text", "assistant", "bot", "chosen", "moss"),
    *("答案", "回答", "答", "回复", "答复", "回覆", "答覆", "答句", "下句", "输出", "机器人"),
    *("下联", "下聯", "下文", "后句", "回應"),
)
INPUTS = ("input", "context")  # text that belongs to the question, beside a column or a field with another name
# In a table of two columns, the question if the other column is named as an answer.
TEXTS = frozenset(("text", "message", "content", "body", "sentence", "内容", "消息", "文本", "句子", "review", "评论"))
# Neither question nor answer.
OTHERS = frozenset(
    (
        *("id", "index", "no", "number", "label", "class", "category", "score", "sentiment", "intent", "tag", "date"),
        *("time", "timestamp", "datetime", "sender", "speaker", "author", "name", "role", "from"),
        *("编号", "序号", "标签", "类别", "分类", "时间", "日期", "发送者", "发言人", "昵称"),
    )
)
NAMES = TEXTS.union(OTHERS, QUESTIONS, ANSWERS)


@dataclass(frozen=True)
class Layout:
    """The column indices of a table."""

    question: int
    answer: int
    width: int  # number of columns
    skip: int  # rows before the first pair
    inputs: tuple[int, ...] = ()  # columns with text that belongs to the question, such as Alpaca's "input"
    weight: int | None = None  # the column with the weights of the pairs

    def question_of(self, row: Sequence[str]) -> str:
        """Return the question of a row: its column, and the inputs that are not empty, each on a line of its own."""
        inputs = (row[index] for index in self.inputs if index < len(row))
        return "\n".join([row[self.question], *(text for text in inputs if text.strip())])

    def with_weights(self, rows: Sequence[Sequence[str]], name: str, place: str) -> "Layout":
        """Return the layout of a table that begins with these rows, with the column of the weights.

        name: of the column, or its number from 1. Raises UserError if the table has no such column.
        """
        header = int(is_separator_line(rows[0]) and len(rows) > 1)
        column = weight_column_of(rows[header], name, place)
        has_header = rows[header][column].strip().casefold() == name.casefold()
        return replace(self, weight=column, skip=max(self.skip, header + has_header))

    def pair_of(self, row: Sequence[str], place: str) -> Pair:
        """Return the pair of a row. Raises UserError for a weight that cannot be used. place: of the row."""
        question = self.question_of(row) if self.inputs else row[self.question]
        if self.weight is None:
            return question, row[self.answer], NEW
        return weighted_row(question, row[self.answer], row, self.weight, place)


def check_columns(columns: Sequence[str]) -> None:
    """Raise UserError unless there are none or two different columns, by name or by number from 1."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")


@functools.lru_cache(maxsize=16)  # the records of a file have the same fields
def named(names: tuple[str, ...], columns: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Return the indices of question and answer among the names: of the given columns, or of well-known names."""
    places = {name.strip().casefold(): index for index, name in reversed(list(enumerate(names)))}
    wanted: list[tuple[str, ...]] = [(column.casefold(),) for column in columns] or [QUESTIONS, ANSWERS]
    question, answer = (next((places[name] for name in choice if name in places), None) for choice in wanted)
    return None if question is None or answer is None else (question, answer)


def layout_of(rows: Sequence[Sequence[str]], columns: tuple[str, ...], place: str) -> Layout:
    """Return the layout of a table that begins with these rows.

    Raises UserError when a given column does not exist, or when none is given and the question and the answer cannot
    be distinguished from the other columns.
    """
    skip = int(is_separator_line(rows[0]))
    rows = rows[skip:]
    first = tuple(rows[0]) if rows else ()
    known = named(first) if not columns or all(column.isdecimal() for column in columns) else named(first, columns)
    width = len(first) if known or not all(column.isdecimal() for column in columns) else _usual_width(rows)
    if columns:
        layout = _given(rows, columns, width, known)
    elif known:
        inputs = tuple(i for i, name in enumerate(first) if name.strip().casefold() in INPUTS and i != known[0])
        layout = Layout(*known, width, 1, inputs)
    else:
        layout = _unnamed(rows, width, place)
    if layout is None:
        if not columns and width > 2 and holds_dates([row[0] for row in rows if len(row) > 2]):
            raise UserError(
                f"{place}: the first of {width} columns has numbers, dates or times; for a chat, add a first line that "
                f"names the columns, such as time, sender and content; for other tables, {_advice(first)}"
            )
        problem = (
            f"no columns {' and '.join(columns)}"
            if columns
            else f"{counted(width, 'column')}, and no header names the question and the answer"
        )
        raise UserError(f"{place}: {problem}; {_advice(first)}")
    below = rows[layout.skip] if len(rows) > layout.skip > 0 else ["text"]
    # The line below the header of Markdown's tables.
    ruled = any(below) and not any(cell.strip("-: ") for cell in below)
    return replace(layout, skip=skip + layout.skip + ruled)


def is_separator_line(row: Sequence[str]) -> bool:
    """Return whether this is Excel's first line, which names the separator: "sep=;"."""
    return row[0].casefold().startswith("sep=") and len(row[0]) <= 5


def _given(
    rows: Sequence[Sequence[str]], columns: tuple[str, ...], width: int, known: tuple[int, int] | None
) -> Layout | None:
    """Return the layout with the columns that the user gave, None if they do not exist."""
    by_number = all(column.isdecimal() for column in columns)
    places = (int(columns[0]) - 1, int(columns[1]) - 1) if by_number else known
    skip = int(known is not None or (by_number and is_header(rows, NAMES)))
    if width == 2 and (places is None or max(places) >= width):  # one of several files, which has only the two
        places = named(tuple(rows[0])) or (0, 1)
        skip = int(named(tuple(rows[0])) is not None)
    return None if places is None or max(places) >= width else Layout(*places, width, skip)


def _unnamed(rows: Sequence[Sequence[str]], width: int, place: str) -> Layout | None:
    """Return the layout of a table whose header, if there is one, does not name the question and the answer.

    A first column of running numbers, as pandas writes it, is not counted. Raises UserError for two columns that are
    not a question and its answer.
    """
    complete = [row for row in rows if len(row) >= width]
    start = int(width > 2 and holds_running_numbers(complete))
    if width - start != 2:
        return None
    two = [row[start : start + 2] for row in complete]
    header = is_header(two, NAMES) or (start == 1 and not complete[0][0].strip().isdecimal())
    names = [name.strip().casefold() for name in two[0]] if header else []
    answer_first = bool(names) and names[0] in ANSWERS
    if problem := _problem(names, two[int(header) :]):
        raise UserError(f"{place}: {problem}; if there is a question and its answer, {_advice(rows[0])}")
    question, answer = (start + 1, start) if answer_first else (start, start + 1)
    return Layout(question, answer, width, int(header))


def _problem(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return why two columns are not a question and its answer, "" if they may be. names: of the header, if any."""
    if OTHERS.intersection(names) or (TEXTS.intersection(names) and not set(names).intersection(ANSWERS)):
        return "the header names no question and answer"
    firsts, seconds = [row[0] for row in rows], [row[1] for row in rows]
    if holds_dates(firsts) and not holds_dates(seconds):
        return "the first column has numbers, dates or times"
    if holds_few_values(firsts, seconds):
        return f"the first column has {len(set(firsts))} different values, as names or labels do"
    if holds_dates(seconds) and (holds_few_values(seconds, firsts) or holds_words(firsts)):
        return "the second column has numbers, as labels and counts are"
    return ""


def _advice(first: Sequence[str]) -> str:
    found = ", ".join(f"{number} {one_line(name, 20)!r}" for number, name in enumerate(first[:12], start=1))
    return f"give --columns and two of: {found}"


def misfit(row: list[str], layout: Layout) -> str | None:
    """Remove empty columns at the end of a row; return the reason if it still does not fit, else None."""
    while len(row) > layout.width and not row[-1]:
        row.pop()
    if len(row) > layout.width:
        return "rows with too many columns"
    if len(row) <= max(layout.question, layout.answer):
        return "rows with too few columns"
    return None


def widths(rows: Iterable[Sequence[str]]) -> Counter[int]:
    """Count the rows by their number of columns, without empty columns at the end; the first two always count."""
    found: Counter[int] = Counter()
    for row in rows:
        width = len(row)
        while width > 2 and not row[width - 1]:
            width -= 1
        found[width] += 1
    return found


def _usual_width(rows: Sequence[Sequence[str]]) -> int:
    found = widths(row for row in rows if len(row) > 1)
    return found.most_common(1)[0][0] if found else 0

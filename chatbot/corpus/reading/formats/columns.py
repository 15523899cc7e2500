"""Selection of the question and answer columns of a table, or fields of a record."""

import functools
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.display import SHOWN_NAME, counted, listing, numbered, one_line
from chatbot.corpus.reading.formats.doubts import are_choices, doubt_of, holds_running_numbers
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

# Names as programs give them: column_a, text1, questionText, Unnamed: 0.
IDENTIFIER = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)+|[A-Za-z]+[0-9]{1,2}|[a-z]+[A-Z][A-Za-z]*|Unnamed: \d+")
# Words of longer names, such as "Customer Message" and 标准回答, of the side that asks and of the side that answers.
_ASKING = re.compile(
    r"\b(?:question|query|prompt|customer|user|client|human|visitor|patient|buyer|asker)s?\b"
    r"|问题|問題|提问|提問|询问|问句|^问$|客户|客戶|顾客|顧客|用户|用戶|买家|買家|患者|病人|访客|咨询|家长|学生",
    re.IGNORECASE,
)
_ANSWERING = re.compile(
    r"\b(?:answer|reply|response|agent|assistant|bot|chatbot|doctor|seller|support|solution)s?\b"
    r"|答案|回答|答复|答覆|回复|回覆|^答$|客服|坐席|卖家|賣家|医生|醫生|机器人|機器人|助手|解答|老师|商家",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[，。,.!?！？…~～;；]|\w(?:\s\S+){3}")  # in no name of a column
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060\ufeff]")
_GREETINGS = frozenset(
    {
        *("hello", "hi", "hey", "yo", "hallo", "hola", "bonjour", "ciao", "привет", "test", "こんにちは"),
        *("你好", "您好", "你好呀", "你好啊", "嗨", "在吗", "在么", "在", "早", "早安", "早上好", "晚上好", "晚安"),
        *("哈喽", "喂", "안녕", "안녕하세요"),
    }
)
_QUESTION_MARKS = ("?", "？")
_WORD = re.compile(r"[a-z][a-z_]{1,19}")
LONGEST = 20  # characters of the name of a column
CONTRAST = 3.0  # the cells below an unknown header are so many times as long: header_unknown.csv, greeting_first.csv


def key_of(name: str) -> str:
    """Return the name of a column as it is compared: in small letters, without characters that cannot be seen."""
    return _INVISIBLE.sub("", name).strip().casefold()


def is_header(rows: Sequence[Sequence[str]], names: Container[str]) -> bool:
    """Return whether the first of these rows of two columns is a header. names: well-known names of columns.

    A pair must not be taken for a header: both cells are different well-known names, or both are different identifiers
    and no cell below them is.
    """
    first = [cell.strip() for cell in rows[0][:2]]
    if len(first) < 2 or len(rows) < 2 or first[0].casefold() == first[1].casefold():
        return False
    if all(cell.casefold() in names for cell in first):
        return True
    if not all(IDENTIFIER.fullmatch(cell) for cell in first):
        return False
    return not any(IDENTIFIER.fullmatch(cell.strip()) for row in rows[1:] for cell in row[:2])


def sides_of(rows: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Return the places of question and answer, if words of the first row alone say which cell asks and which answers.

    rows: of two columns.
    """
    sides = _sides(rows[0])
    return sides if len(rows) > 1 and not any(map(_sides, rows[1:])) else None


def _sides(first: Sequence[str]) -> tuple[int, int] | None:
    if len(first) != 2 or not all(map(_may_be_name, first)) or any(map(str.isdigit, "".join(first))):
        return None
    asks = [_ASKING.search(_spaced(cell)) is not None for cell in first]
    answers = [_ANSWERING.search(_spaced(cell)) is not None for cell in first]
    if asks[0] and answers[1] and not answers[0] and not asks[1]:
        return 0, 1
    if asks[1] and answers[0] and not answers[1] and not asks[0]:
        return 1, 0
    return None


def may_be_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first of these rows of two columns differs from the others as a header with unknown names."""
    first, below = rows[0], rows[1:]
    if len(below) < 2 or not all(map(_may_be_name, first)) or _GREETINGS.intersection(map(str.casefold, first)):
        return False
    if all(map(_WORD.fullmatch, first)) and not any(_WORD.fullmatch(cell) for row in below for cell in row):
        return True  # capitals.csv
    if all(row[0].strip().endswith(_QUESTION_MARKS) for row in below) and not first[0].endswith(_QUESTION_MARKS):
        return True  # header_of_questions.csv
    lengths = (median(len(row[column].strip()) for row in below) for column in range(2))
    return all(length >= CONTRAST * len(cell.strip()) for length, cell in zip(lengths, first, strict=True))


def _may_be_name(cell: str) -> bool:
    return 0 < len(cell.strip()) <= LONGEST and _SENTENCE.search(cell) is None


def _spaced(name: str) -> str:
    """Return the name with spaces between its words: user_question and userQuestion become "user question"."""
    return re.sub(r"_|-|(?<=[a-z])(?=[A-Z])", " ", name.strip())


# In order of preference: "title" is the question only without a better name.
QUESTIONS = (
    *("question", "questions", "instruction", "query", "prompt", "input", "source", "src", "ask", "post", "title", "q"),
    *("input_text", "source_text", "utterance", "context", "human", "user"),
    *("问题", "提问", "问", "問題", "提問", "問", "问句", "上句", "输入", "用户"),
    *("上联", "上聯", "上文", "前句", "質問"),
    *("frage", "pregunta", "pergunta", "domanda", "вопрос", "питання", "질문", "soru", "pytanie", "otázka", "vraag"),
    *("câu hỏi", "pertanyaan", "سؤال", "السؤال", "คำถาม", "ερώτηση", "שאלה", "kérdés", "fråga"),
)
ANSWERS = (
    *("answer", "output", "response", "completion", "reply", "target", "tgt", "a"),
    *("answers", "responses", "replies", "output_text", "target_text", "assistant", "bot", "chosen", "moss", "resp"),
    *("答案", "回答", "答", "回复", "答复", "回覆", "答覆", "答句", "下句", "输出", "机器人"),
    *("下联", "下聯", "下文", "后句", "回應"),
    *("antwort", "respuesta", "resposta", "risposta", "réponse", "ответ", "відповідь", "답변", "대답", "cevap"),
    *("odpowiedź", "odpověď", "antwoord", "câu trả lời", "trả lời", "jawaban", "جواب", "الجواب", "إجابة"),
    *("คำตอบ", "απάντηση", "תשובה", "válasz", "svar"),
)
INPUTS = ("input", "context")  # text that belongs to the question, beside a column or a field with another name
# In a table of two columns, the question if the other column is named as an answer.
TEXTS = frozenset(
    ("text", "message", "content", "body", "sentence", "内容", "正文", "消息", "文本", "句子", "review", "评论")
)
# Neither question nor answer.
OTHERS = frozenset(
    (
        *("id", "index", "no", "number", "label", "class", "category", "score", "sentiment", "intent", "tag", "date"),
        *("time", "timestamp", "datetime", "sender", "speaker", "author", "name", "role", "from"),
        *("姓名", "电话", "手机号", "邮箱", "地址", "年龄", "性别", "城市", "国家", "价格", "数量", "来源", "链接"),
        *("中文", "英文", "英语", "日文", "单词", "释义", "解释", "翻译", "拼音", "词语", "词性", "标题"),
        *("phone", "email", "address", "url", "age", "city", "country", "price", "word", "meaning", "translation"),
        *("编号", "序号", "标签", "类别", "分类", "时间", "日期", "发送者", "发言人", "昵称"),
    )
)
NAMES = TEXTS.union(OTHERS, QUESTIONS, ANSWERS)
TOO_MANY = "rows with too many columns"
PREAMBLE = 10  # rows, such as a title, that may stand above a header: markdown_table.md


@dataclass(frozen=True)
class Layout:
    """The column indices of a table."""

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

    def question_of(self, row: Sequence[str]) -> str:
        """Return the question of a row: its column, and the inputs that are not empty, each on a line of its own."""
        inputs = (row[index] for index in self.inputs if index < len(row))
        return "\n".join([row[self.question], *(text for text in inputs if text.strip())])

    def pair_of(self, row: Sequence[str]) -> Pair:
        """Return the pair of a row."""
        return self.question_of(row) if self.inputs else row[self.question], row[self.answer], NEW


def check_columns(columns: Sequence[str]) -> None:
    """Raise UserError unless there are none or two different columns, by name or by number from 1."""
    numbers = [column for column in columns if column.isdecimal()]
    if len(columns) not in (0, 2) or len(set(columns)) != len(columns) or any(int(n) < 1 for n in numbers[:2]):
        raise UserError("--columns: give two, the question's and the answer's, by name or by number from 1")


@functools.lru_cache(maxsize=16)  # the records of a file have the same fields
def named(names: tuple[str, ...], columns: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """Return the indices of question and answer among the names: of the given columns, or of well-known names."""
    places = {key_of(name): index for index, name in reversed(list(enumerate(names)))}
    choices: list[tuple[str, ...]] = [(column.casefold(),) for column in columns] or [QUESTIONS, ANSWERS]
    question, answer = (next((places[name] for name in choice if name in places), None) for choice in choices)
    return None if question is None or answer is None else (question, answer)


def layout_of(rows: Sequence[Sequence[str]], columns: tuple[str, ...], place: str) -> Layout:
    """Return the layout of a table that begins with these rows.

    Raises UserError, which shows the first rows, when a given column does not exist, or when none is given and no
    header names the question and the answer among more than two.
    """
    by_number = all(column.isdecimal() for column in columns)
    start, known = header_row(rows, () if by_number else columns)
    rows = rows[start:]
    first = tuple(rows[0]) if rows else ()
    width = len(first) if known or not by_number else usual_width(rows)
    if columns:
        layout = _given(rows, columns, width, known)
    elif known:
        choices = width > 2 and are_choices([row[known[1]] for row in rows[1:] if len(row) > known[1]])
        inputs = tuple(i for i, name in enumerate(first) if name.strip().casefold() in INPUTS and i != known[0])
        doubt = f"the answers are letters of choices; if they are right, give --columns {known[0] + 1} {known[1] + 1}"
        layout = Layout(*known, width, 1, inputs, doubt=doubt if choices else "")
    else:
        layout = _unnamed(rows, width)
    if layout is None:
        raise UserError(_problem(rows, columns, width, place), [one_line(" | ".join(row), 120) for row in rows[:3]])
    below = rows[layout.skip] if len(rows) > layout.skip > 0 else ["text"]
    # The line below the header of Markdown's tables.
    ruled = any(below) and not any(cell.strip("-: ") for cell in below)
    return replace(layout, header=first if layout.skip else (), skip=start + layout.skip + ruled)


def header_row(rows: Sequence[Sequence[str]], columns: tuple[str, ...] = ()) -> tuple[int, tuple[int, int] | None]:
    """Return the index of the row that names the question and the answer, and their places in it; (0, None) without.

    Rows above the header are those of a title, with text in one column.
    """
    for index, row in enumerate(rows[: PREAMBLE + 1]):
        known = named(tuple(row), columns)
        if known and all(sum(map(bool, above)) < 2 for above in rows[:index]):
            return index, known
    return 0, None


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


def _unnamed(rows: Sequence[Sequence[str]], width: int) -> Layout | None:
    """Return the layout of a table whose header, if there is one, has no well-known names; None unless it has two.

    A first column of running numbers, as pandas writes it, is not counted, and neither are columns without text, as
    before and after the bars of Markdown.
    """
    complete = [row for row in rows if len(row) >= width]
    is_counted = width > 2 and holds_running_numbers(complete)
    places = [i for i in range(is_counted, width) if width == 2 or any(row[i].strip() for row in complete)]
    if len(places) != 2:
        return None
    two = [[row[place] for place in places] for row in complete]
    sides = sides_of(two)
    header = sides is not None or is_header(two, NAMES) or (is_counted and not complete[0][0].strip().isdecimal())
    names = [name.strip().casefold() for name in two[0]] if header else []
    doubt = ""
    if sides is None:
        if OTHERS.intersection(names) or (TEXTS.intersection(names) and not set(names).intersection(ANSWERS)):
            doubt = "the header names no question and answer"
        else:
            doubt = doubt_of(two[int(header) :]) or doubt_of(two[1:])  # below a header with unknown names
            if not doubt and not header and may_be_header(two):
                doubt = "the first row may be a header; if it is, delete it or give the two names with --columns"
        doubt = doubt and f"{doubt}; if these are pairs, give --columns {places[0] + 1} {places[1] + 1}"
    question, answer = sides or ((1, 0) if names and names[0] in ANSWERS else (0, 1))
    return Layout(places[question], places[answer], width, int(header), doubt=doubt)


def _problem(rows: Sequence[Sequence[str]], columns: tuple[str, ...], width: int, place: str) -> str:
    """Return why a table has no columns of question and answer, and the remedy."""
    if columns:
        problem = f"no columns {one_line(' and '.join(columns), 40)}"
    elif width < 2 or not any(map(any, rows)):
        return f"{place}: only one column; write question, tab, answer on each line"
    else:
        problem = f"{counted(width, 'column')}, and no header names the question and the answer"
    return listing(f"{place}: {problem}; give --columns and two of: ", numbered(rows[0]))


def misfit(row: list[str], layout: Layout) -> str | None:
    """Remove empty columns at the end of a row; return the reason if it still does not fit, else None."""
    while len(row) > layout.width and not row[-1]:
        row.pop()
    if len(row) > layout.width:
        return TOO_MANY
    if len(row) <= max(layout.question, layout.answer):
        return "rows with too few columns"
    return None


def widths(rows: Iterable[Sequence[str]]) -> Counter[int]:
    """Count the rows by their number of columns, without empty columns at the end; the first two always count."""
    counts: Counter[int] = Counter()
    for row in rows:
        width = len(row)
        while width > 2 and not row[width - 1]:
            width -= 1
        counts[width] += 1
    return counts


def usual_width(rows: Sequence[Sequence[str]]) -> int:
    """Return the most frequent number of columns of the rows with several, 0 without any."""
    counts = widths(row for row in rows if len(row) > 1)
    return counts.most_common(1)[0][0] if counts else 0

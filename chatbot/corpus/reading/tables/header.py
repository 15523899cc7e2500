"""Whether the first row of a table is a header: by well-known names, by words within its cells, by how it differs."""

import re
from collections.abc import Container, Sequence
from statistics import median

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
_GREETINGS = frozenset(
    (
        *("hello", "hi", "hey", "yo", "hallo", "hola", "bonjour", "ciao", "привет", "test"),
        *(
            "你好",
            "您好",
            "你好呀",
            "你好啊",
            "嗨",
            "在吗",
            "在么",
            "在",
            "早",
            "早安",
            "早上好",
            "晚上好",
            "晚安",
            "哈喽",
            "喂",
        ),
        *("こんにちは", "안녕", "안녕하세요"),
    )
)
_QUESTION_MARKS = ("?", "？")
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060\ufeff]")
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
    found = _sides(rows[0])
    return found if len(rows) > 1 and not any(map(_sides, rows[1:])) else None


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

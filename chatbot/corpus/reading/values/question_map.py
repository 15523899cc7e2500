"""Objects whose keys are questions, and whose values are the answers: {"q": "a"}, {"q": ["a", "b"]}.

Settings, a record of unknown fields and conversations by their ids look the same. The keys decide: a text is a
question, and an id is none; whatever is between is asked about.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.corpus.reading.tables.columns import NAMES
from chatbot.corpus.reading.values.fields import CHATS, CONVERSATION, SPEAKERS, TEXTS, TIMES, text_of

FIELDS = (  # of records of people and goods
    *(
        "姓名",
        "名字",
        "电话",
        "手机",
        "年龄",
        "性别",
        "地址",
        "邮箱",
        "职业",
        "城市",
        "价格",
        "数量",
        "颜色",
        "名称",
        "备注",
    ),
    *("rejected", "history", "candidates"),
)
KNOWN = frozenset(NAMES).union(SPEAKERS, TEXTS, TIMES, CHATS, CONVERSATION, FIELDS)
MANY = 20  # entries; settings and records have fewer
ASKING = 0.3  # of the keys are questions by their form
LIKE_COLUMNS = 3  # lists of one length with as many items may be the columns of a table
QUESTION = (
    "the keys may be questions or the names of fields: give --columns 1 2 to learn each key as a question and its "
    "value as the answer"
)
_ID = re.compile(r"(?=[^\s]*\d)[\w.:/#-]+", re.ASCII)
_WORD = re.compile(r"[\w.:/-]+", re.ASCII)
_FORM = re.compile(
    r"[?？]\s*$|[吗呢吧么嘛]$|什么|怎么|怎样|如何|为什么|哪|谁|几|多少|是否|能否|可以|请问|\S+\s+\S+\s+\S+"
)

Reading = Literal["questions", "doubt", "conversations"]


def reading_of(value: Mapping[str, object]) -> Reading | None:
    """Return how an object of texts, or of lists of texts, is read; None for any other object."""
    if not value or not all(map(_is_answer, value.values())):
        return None
    keys = list(value)
    if any(key.strip().casefold() in KNOWN for key in keys):
        return None
    lists = [part for part in value.values() if isinstance(part, list)]
    if all(map(_ID.fullmatch, keys)):
        return "conversations" if lists else None
    if all(map(_WORD.fullmatch, keys)):
        return "doubt"  # {"host": "localhost"}, {"hello": ["hi", "hey"]}
    asking = sum(_FORM.search(key) is not None for key in keys) >= ASKING * len(keys)
    if len(lists) * 2 > len(keys):
        same = len({*map(len, lists)}) == 1 and len(lists[0]) >= LIKE_COLUMNS and len(keys) > 1
        return "doubt" if same and not asking else "questions"
    return "questions" if asking or len(keys) >= MANY else "doubt"


def reading_of_single(head: Sequence[object]) -> Reading | None:
    """Return how a list of objects with one entry each is read: [{"q": "a"}, {"q2": "a2"}]; None for other lists."""
    entries = [value for value in head if isinstance(value, dict) and len(value) == 1]
    keys = {key for value in entries for key in value}
    if len(entries) < max(2, len(head)) or len(keys) * 5 < len(entries) * 4:
        return None
    reading = reading_of({key: part for value in entries for key, part in value.items()})
    natural = any(not _WORD.fullmatch(key) for key in keys)
    return "questions" if reading == "doubt" and natural else reading


def pairs_of_entry(question: str, answer: object) -> Iterator[Pair]:
    """Yield the question with each of its answers."""
    parts: Iterable[object] = answer if isinstance(answer, list) else [answer]
    for part in parts:
        if (text := text_of(part)) is not None:
            yield question, text, NEW


def _is_answer(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(part, str) for part in value)
    return isinstance(value, str) or (text_of(value) is not None and not isinstance(value, dict))

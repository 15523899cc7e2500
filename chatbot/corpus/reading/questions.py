"""Questions and answers by labels or as sections.

Lines begin with a label, such as "Q:" and "A:", 问：and 答：, User: and Bot:. Or headings ask, with the answers below.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from chatbot.corpus.reading.blocks import Block, blocks
from chatbot.corpus.reading.conversation import NEW, NEXT, Pair
from chatbot.corpus.reading.messages import joined
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, is_rule, lines

_QUESTION = (
    r"Q|\uff31|Question|问|問|问题|問題|提问|提問|提问者|提問者|追问|追問"
    r"|Frage|Pregunta|Pergunta|Domanda|Вопрос|質問|질문|문|Hỏi|ถาม|คำถาม|سؤال|س|प्रश्न|P"
)
_ANSWER = (
    r"A|\uff21|Answer|答|答案|回答|回复|答复|回答者|追答"
    r"|Antwort|Respuesta|Resposta|Risposta|Réponse|Ответ|답변|대답|답|Đáp|ตอบ|คำตอบ|جواب|ج|उत्तर|R"
)
_USER = r"User|Human|You|Customer|用户|用戶|顾客|客户|人类|买家|患者|病人"
_BOT = r"Bot|Chatbot|Assistant|Agent|Support|AI|GPT|ChatGPT|机器人|機器人|助手|客服|小助手|卖家|医生|医师"
_LABEL = re.compile(
    r"\s{0,100}(?:[-•#>]{1,4}\s+|\d{1,6}[.、)）]\s*)?\*{0,2}[【\[]?"
    rf"(?:(?P<question>{_QUESTION})|(?P<answer>{_ANSWER})|(?P<user>{_USER})|(?P<bot>{_BOT}))"
    r"[ \t]{0,3}\d{0,6}[ \t]{0,3}(?:[】\]][:：]?|[:：、．]|\.(?=\s))\*{0,2}\s*",
    re.IGNORECASE,
)
# The space or the end of a sentence before a label within a line.
_SAME_LINE = re.compile(
    r"(?:(?<![ \t\u3000])[ \t\u3000]+|(?<=[?？。!！]))"
    r"(?=(?:(?P<answer>A|\uff21|Answer|答|答案|回答|Bot|Assistant)|Q|\uff31|Question|问|問|User|Human)\d{0,6}[:：])"
)
_CHOICE = re.compile(r"\s{0,100}[Bb][.、)）．]\s*\S")
_ASKS = re.compile(  # in Chinese often without a question mark
    r".*[?？؟]\W*|(?:怎么|如何|怎样|为什么|为何|是否|能否|可否|什么是).*|.*(?:吗|呢|什么|怎么办|多久|多少)"
)
_HEADING = re.compile(r"#{1,6}\s.*|[-*_]{3,}\s*")

MATCHED = 0.5  # of the labels of either side have one of the other side
SHARE = 0.3  # of the lines: an answer may have several
LONGEST_HEADING = 200  # characters
_ASKING = ("question", "user")


class Utterance(NamedTuple):
    """What one side says, on one line or several."""

    side: str  # question and user ask, answer and bot answer
    parts: list[str]
    place: str = ""
    is_first: bool = True  # whether it begins the file, or a blank line comes before it

    @property
    def asks(self) -> bool:
        """Whether it is a question."""
        return self.side in _ASKING


def is_question_lines(text: TextFile) -> bool:
    """Return whether the lines begin with the label of a question, and labels of both sides alternate."""
    filled = [line for line in text.first_lines if line.strip()]
    sides = [utterance.asks for line in filled for utterance in _labels_in(line)]
    changes = sum(asks and not then for asks, then in pairwise(sides))
    if not changes or len(sides) < SHARE * len(filled):
        return False
    if sum(_CHOICE.match(line) is not None for line in filled) * 2 >= sum(sides):
        return False  # "A." is a choice, too
    return changes >= MATCHED * max(sum(sides), len(sides) - sum(sides))


def is_question(text: str) -> bool:
    """Return whether a heading asks."""
    return _ASKS.fullmatch(text.strip()) is not None


def _labels_in(line: str, following: str = "") -> list[Utterance]:
    """Return what has labels in a line: all of it, a question and its answer, or more where both sides alternate."""
    match = _LABEL.match(line)
    if match is None:
        return []
    inner = list(_SAME_LINE.finditer(line, match.end())) if match.lastgroup in _ASKING else []
    if not inner:
        return [_labelled(match)]
    if any((mark["answer"] is None) == (place % 2 == 0) for place, mark in enumerate(inner)):
        inner = [mark for mark in inner if mark["answer"]][:1]
    starts, ends = [0, *(mark.end() for mark in inner)], [*(mark.start() for mark in inner), len(line)]
    parts = (_LABEL.match(line[start:end]) for start, end in zip(starts, ends, strict=True))
    return [_labelled(part) for part in parts if part]


def _labelled(match: re.Match[str]) -> Utterance:
    text = match.string[match.end() :].rstrip()
    if text.endswith("**") and text.count("**") % 2:  # the asterisks began before the label
        text = text[:-2]
    return Utterance(match.lastgroup or "", [text])


def read_question_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with each of its answers."""
    found = blocks(lines(text, report), _labels_in, text.place, report)
    return _pairs(_joined(found), not _blank_before_answers(text.first_lines), report)


def _blank_before_answers(sample: Sequence[str]) -> bool:
    """Return whether a blank line stands before most answers, too, so that none ends a conversation."""
    answers = [place for place, line in enumerate(sample) if place and (match := _LABEL.match(line)) and match["bot"]]
    return sum(not sample[place - 1].strip() for place in answers) * 2 > len(answers)


def _joined(found: Iterable[Block[Utterance] | None]) -> Iterator[Utterance | None]:
    """Yield each utterance with the lines below it; those of one speaker without a blank line between are one."""
    current: Utterance | None = None
    is_first = True
    for block in chain(found, (None,)):
        if block is None:
            yield from (current, None)
            current = None
            continue
        side, parts, *_ = block.begin
        below = [line for line in block.lines if line.strip() and not is_rule(line)]
        if current is not None and current.side == side in ("user", "bot") and not is_first:
            current.parts.extend(parts + below)
        else:
            yield current
            current = Utterance(side, parts + below, block.place, is_first)
        is_first = len(below) < len(block.lines)


def read_sections(text: TextFile, match: Callable[[str], re.Match[str] | None], report: Report) -> Iterator[Pair]:
    """Yield each question with the text below it. match: from a line to a head with a question."""

    def begins(line: str, following: str) -> Sequence[tuple[bool, str]]:
        """Return (whether it is a head, its question if it asks) of a line that begins a section."""
        if head := match(line):
            return ((True, head["question"].strip(" *#_") if is_question(head["question"]) else ""),)
        return ((False, ""),) if _HEADING.fullmatch(line[:LONGEST_HEADING]) else ()

    def utterances() -> Iterator[Utterance | None]:
        for block in blocks(lines(text, report), begins, text.place, report):
            yield None
            if block is None:
                continue
            is_head, question = block.begin
            below = [line for line in block.lines if line.strip()]
            if question:
                yield Utterance("question", [question], block.place)
                if below:
                    yield Utterance("answer", below)
                continue
            if is_head:
                report.drop("headings that are no questions", block.place)
            if below:
                report.drop("lines below no question", block.place, len(below))

    return _pairs(utterances(), True, report)


def _pairs(utterances: Iterable[Utterance | None], is_divided: bool, report: Report) -> Iterator[Pair]:
    """Yield each question with each of its answers. is_divided: whether blank lines end conversations, as None does."""
    question: Utterance | None = None
    answered = True
    link = NEW  # of the next question
    for utterance in chain(utterances, (None,)):
        if question is not None and not answered and (utterance is None or utterance.asks):
            report.drop("questions without an answer", question.place)
        if utterance is None:
            question, link = None, NEW
        elif utterance.asks:
            question, answered = utterance, False
            link = NEW if utterance.side == "question" or (utterance.is_first and is_divided) else link
        elif question is None:
            report.drop("answers without a question", utterance.place)
        else:
            yield joined(question.parts), joined(utterance.parts), NEW if answered else link
            answered, link = True, NEXT if utterance.side == "bot" else NEW

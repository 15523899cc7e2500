"""Questions and answers: lines that begin with a label, and questions as headings with the answer below."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from chatbot.corpus.reading.conversation import NEW, NEXT, Pair
from chatbot.corpus.reading.formats.chat import joined
from chatbot.corpus.reading.open.text_file import TextFile, is_rule, lines
from chatbot.corpus.reading.report import ReadOptions, Report

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
    r"[ \t]{0,3}\d{0,6}[ \t]{0,3}(?:[】\]][:：]?|[:：、．]|\.(?=\s))\*{0,2}\s*(?P<text>.*)",
    re.IGNORECASE,
)
# The space or the end of a sentence before a label within a line.
_SAME_LINE = re.compile(
    r"(?:(?<![ \t\u3000])[ \t\u3000]+|(?<=[?？。!！]))"
    r"(?=(?:(?P<answer>A|\uff21|Answer|答|答案|回答|Bot|Assistant)|Q|\uff31|Question|问|問|User|Human)\d{0,6}[:：])"
)
_CHOICE = re.compile(r"\s{0,100}[Bb][.、)）．]\s*\S")
# A number before a question; not a date or a version, such as "2024. 3. 5. ..." or "1.2.3 ...".
_NUMBERED = re.compile(
    r"\s{0,100}[(（]?(?:\d{1,4}[.、)）．](?!\s*\d{1,4}\s?[./:-])|[一二三四五六七八九十百]{1,5}[、)）])\s*(?P<text>\S.*)"
)
_LABELS = ("question", "answer", "user", "bot")

NO_ANSWER = "questions without an answer"
MAX_LINES = 1000  # of a text; the others are left out
MATCHED = 0.5  # of the labels of either side have one of the other side
TITLE = 3  # the first label is on one of as many lines
SHARE = 0.3  # of the lines: an answer may have several


def is_question_lines(text: TextFile) -> bool:
    """Return whether the lines begin with the label of a question, and labels of both sides alternate."""
    sample = text.first_lines
    filled = [part for line in sample for part in _parts(line) if part.strip()]
    labels = [found for line in filled if (found := _labelled(line))]
    sides = [label in ("question", "user") for label, _ in labels]
    changes = sum(asks and not then for asks, then in pairwise(sides))
    if not filled or not changes or len(labels) < SHARE * len(filled):
        return False
    if sum(_CHOICE.match(line) is not None for line in filled) * 2 >= sum(sides):
        return False  # "A." is a choice, too
    return any(map(_labelled, filled[:TITLE])) and changes >= MATCHED * max(sum(sides), len(sides) - sum(sides))


def _blank_before_answers(sample: Sequence[str]) -> bool:
    """Return whether a blank line stands before most answers, too, so that none ends a conversation."""
    answers = [place for place, line in enumerate(sample) if place and (match := _LABEL.match(line)) and match["bot"]]
    return sum(not sample[place - 1].strip() for place in answers) * 2 > len(answers)


def _parts(line: str) -> list[str]:
    """Return the line, its question and its answer, or all of them where questions and answers alternate in it."""
    match = _LABEL.match(line)
    if match is None or not (match["question"] or match["user"]):
        return [line]
    inner = list(_SAME_LINE.finditer(line, match.start("text")))
    if any((mark["answer"] is None) == (place % 2 == 0) for place, mark in enumerate(inner)):
        inner = [mark for mark in inner if mark["answer"]][:1]
    starts, ends = [0, *(mark.end() for mark in inner)], [*(mark.start() for mark in inner), len(line)]
    return [line[start:end] for start, end in zip(starts, ends, strict=True)]


def _labelled(line: str) -> tuple[str, str] | None:
    """Return the label of a line, a group of _LABEL, and its text."""
    match = _LABEL.match(line)
    if match is None:
        return None
    text = match["text"].rstrip()
    if text.endswith("**") and text.count("**") % 2:  # the asterisks began before the label
        text = text[:-2]
    return next(name for name in _LABELS if match[name]), text


def read_question_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with each of its answers."""
    question: str | None = None
    answered = True
    asked_at = text.place
    link = NEW  # of the next question
    separate = not _blank_before_answers(text.first_lines)
    for utterance in chain(_utterances(text, report), (None,)):
        asks = utterance is not None and utterance.label in ("question", "user")
        if not answered and (utterance is None or asks):
            report.drop(NO_ANSWER, asked_at)
        if utterance is None:
            question, answered, link = None, True, NEW
        elif asks:
            question, answered, asked_at = joined(utterance.parts), False, f"{text.place}, line {utterance.line}"
            link = NEW if utterance.label == "question" or (utterance.is_first and separate) else link
        elif question is None:
            report.drop("answers without a question", f"{text.place}, line {utterance.line}")
        else:
            yield question, joined(utterance.parts), NEW if answered else link
            answered, link = True, NEXT if utterance.label == "bot" else NEW


class _Utterance(NamedTuple):
    label: str  # the group of _LABEL
    parts: list[str]  # its lines
    line: int  # the number of the first
    is_first: bool  # whether it begins the file, or a blank line comes before it


def _utterances(text: TextFile, report: Report) -> Iterator[_Utterance | None]:
    """Yield the utterances, and None where a line is missing."""
    current: _Utterance | None = None
    is_first = True
    split = ((number, part) for number, line in lines(text, report) for part in (_parts(line) if line else [line]))
    for number, line in split:
        if line is None:
            current = None
            yield None
        elif labelled := _labelled(line):
            label, content = labelled
            if current is not None and current.label == label and label in ("user", "bot") and not is_first:
                current.parts.append(content)
                continue
            if current is not None:
                yield current
            current = _Utterance(label, [content], number, is_first)
            is_first = False
        elif not line.strip() or is_rule(line):
            is_first = True
        elif current is not None:
            if len(current.parts) < MAX_LINES:
                current.parts.append(line)
        else:
            report.drop("lines before the first label", f"{text.place}, line {number}")
    if current is not None:
        yield current


QUESTIONS = 2  # at least, with an answer

_HEADING = re.compile(r"(?:#{1,6}|={2,6}|\*{1,6})\s+(?P<text>\S.*?)\s*#*")
_BOLD = re.compile(r"(?:\*\*|__)(?P<text>[^*_].*?)(?:\*\*|__)[:：]?")
_RULE = re.compile(r"\s*([-*_])(?:\s*\1){2,}\s*")
_ASKS = re.compile(r".*[?？؟]\s*[*_]{0,2}$")
# Of a heading, in Chinese often without a question mark.
_ASKING_WORDS = re.compile(r"(?:怎么|如何|怎样|为什么|为何|是否|能否|可否|什么是).*|.*(?:吗|呢|什么|怎么办|多久|多少)")


class _Heading(NamedTuple):
    text: str
    asks: bool  # whether it ends as a question does


def _heading_of(line: str) -> _Heading | None:
    """Return the heading that a line is; None for a line that is no heading."""
    line = line.strip()[:1000]
    for pattern in (_HEADING, _BOLD):
        if match := pattern.fullmatch(line):
            text = match["text"].strip("*_ ")
            if numbered := _NUMBERED.fullmatch(text):
                text = numbered["text"]
            return _Heading(text, _ASKS.match(text) is not None or _ASKING_WORDS.fullmatch(text) is not None)
    match = _NUMBERED.fullmatch(line)
    return _Heading(match["text"].strip(), True) if match and _ASKS.match(match["text"]) else None


def is_headings(text: TextFile) -> bool | str:
    """Return whether headings are questions; if in doubt, why."""
    headings = answered = choices = 0
    open_question = False
    for line in text.first_lines:
        if heading := _heading_of(line):
            headings += 1
            open_question = heading.asks
        elif line.strip():
            answered += open_question
            open_question = False
            choices += _CHOICE.match(line) is not None or _LABEL.match(line) is not None
    if answered < QUESTIONS:
        return False
    if choices >= QUESTIONS:
        return "the answers begin with labels, as choices do"
    return f"only {answered:,} of {headings:,} headings are questions" if answered * 2 < headings else True


def read_headings(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with the text below it."""
    question: str | None = None
    answer: list[str] = []
    start = 0
    for number, line in lines(text, report):
        heading = _heading_of(line) if line else None
        if heading is None and line is not None and not _RULE.fullmatch(line):
            if question is not None and len(answer) < MAX_LINES:
                answer.append(line)
            elif line.strip():
                report.drop("lines below no question", f"{text.place}, line {number}")
            continue
        yield from _pair(question, answer, report, f"{text.place}, line {start}")
        question, answer, start = heading.text if heading and heading.asks else None, [], number
        if heading and not heading.asks:
            report.drop("headings that are no questions", f"{text.place}, line {number}")
    yield from _pair(question, answer, report, f"{text.place}, line {start}")


def _pair(question: str | None, answer: Sequence[str], report: Report, place: str) -> Iterator[Pair]:
    if question is not None and (text := joined(line for line in answer if line.strip())):
        yield question, text, NEW
    elif question is not None:
        report.drop("questions without an answer", place)

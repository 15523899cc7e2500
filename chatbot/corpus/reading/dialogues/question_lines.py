"""Lines that begin with a label: "Q: ..." and "A: ...", "问：..." and "答：...", "User: ..." and "Bot: ...".

A label may have a number (Q1:) or a bullet before it, and stand in brackets (【问】) or between asterisks. An answer
may stand on the line of its question. Lines without a label continue the text before them. The pairs of users and bots
are a conversation up to a blank line; those of questions and answers are separate.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from chatbot.corpus.reading.chat_messages import joined
from chatbot.corpus.reading.files.lines import is_rule, lines
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, NEXT, Pair
from chatbot.corpus.reading.report import Report

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
    r"\s*(?:[-•#>]{1,4}\s+|\d{1,6}[.、)）]\s*)?\*{0,2}[【\[]?"
    rf"(?:(?P<question>{_QUESTION})|(?P<answer>{_ANSWER})|(?P<user>{_USER})|(?P<bot>{_BOT}))"
    r"[ \t]{0,3}\d{0,6}[ \t]{0,3}(?:[】\]][:：]?|[:：、．]|\.(?=\s))\*{0,2}\s*(?P<text>.*)",
    re.IGNORECASE,
)
# The space or the end of a sentence before a label within a line.
_SAME_LINE = re.compile(
    r"(?:(?<![ \t\u3000])[ \t\u3000]+|(?<=[?？。!！]))"
    r"(?=(?:(?P<answer>A|\uff21|Answer|答|答案|回答|Bot|Assistant)|Q|\uff31|Question|问|問|User|Human)\d{0,6}[:：])"
)
_CHOICE = re.compile(r"\s*[Bb][.)）．]\s*\S")
_NUMBERED = re.compile(r"\s*[(（]?(?:\d{1,4}[.、)）．]|[一二三四五六七八九十百]{1,5}[、)）])\s*(?P<text>\S.*)")
_LABELS = ("question", "answer", "user", "bot")

NO_ANSWER = "questions without an answer"
MAX_LINES = 1000  # of a text; the others are left out
MATCHED = 0.5  # of the labels of either side have one of the other side
TITLE = 3  # the first label is on one of as many lines
SHARE = 0.3  # of the lines: an answer may have several


def is_question_lines(sample: Sequence[str]) -> bool:
    """Return whether the lines begin with the label of a question, and labels of both sides alternate."""
    filled = [part for line in sample for part in _parts(line) if part.strip()]
    numbered = _numbers_ask(sample)
    labels = [found for line in filled if (found := _labelled(line, numbered))]
    sides = [label in ("question", "user") for label, _ in labels]
    changes = sum(asks and not then for asks, then in pairwise(sides))
    if not filled or not changes or len(labels) < SHARE * len(filled):
        return False
    if sum(_CHOICE.match(line) is not None for line in filled) * 2 >= sum(sides):
        return False  # "A." is a choice, too
    return any(_labelled(line, numbered) for line in filled[:TITLE]) and changes >= MATCHED * max(
        sum(sides), len(sides) - sum(sides)
    )


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


def _numbers_ask(sample: Sequence[str]) -> bool:
    """Return whether numbers stand in place of the labels of questions: one before each answer, and nowhere else."""
    filled = [line for line in sample if line.strip()]
    labels = [match for line in filled if (match := _LABEL.match(line))]
    numbered = [place for place, line in enumerate(filled) if not _LABEL.match(line) and _NUMBERED.match(line)]
    answered = sum(place + 1 < len(filled) and _LABEL.match(filled[place + 1]) is not None for place in numbered)
    return bool(labels) and all(match["answer"] for match in labels) and len(numbered) == answered == len(labels)


def _labelled(line: str, numbered: bool = False) -> tuple[str, str] | None:
    """Return the label of a line, a group of _LABEL, and its text. numbered: whether a number is that of a question."""
    if match := _LABEL.match(line):
        text = match["text"].rstrip()
        if text.endswith("**") and text.count("**") % 2:  # the asterisks began before the label
            text = text[:-2]
        return next(name for name in _LABELS if match[name]), text
    found = _NUMBERED.match(line) if numbered else None
    return ("question", found["text"]) if found else None


def has_label(line: str) -> bool:
    """Return whether a line begins with the label of a question or an answer."""
    return _LABEL.match(line) is not None


def read_question_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with each of its answers."""
    question: str | None = None
    answered = True
    asked_at = text.place
    link = NEW
    separate = not _blank_before_answers(first_lines(text))
    for utterance in _utterances(text, report):
        if not answered and (utterance is None or utterance.label in ("question", "user")):
            report.drop(NO_ANSWER, asked_at)
        if utterance is None:
            question, answered, link = None, True, NEW
            continue
        place = f"{text.place}, line {utterance.line}"
        if utterance.label in ("question", "user"):
            question, answered, asked_at = joined(utterance.parts), False, place
            link = NEW if utterance.label == "question" or (utterance.is_first and separate) else link
        elif question is None:
            report.drop("answers without a question", place)
        else:
            yield question, joined(utterance.parts), link
            answered = True
            link = NEXT if utterance.label == "bot" else NEW
    if not answered:
        report.drop(NO_ANSWER, asked_at)


class _Utterance(NamedTuple):
    label: str  # the group of _LABEL
    parts: list[str]  # its lines
    line: int  # the number of the first
    is_first: bool  # whether it begins the file, or a blank line comes before it


def _utterances(text: TextFile, report: Report) -> Iterator[_Utterance | None]:
    """Yield the utterances, and None where a line is missing."""
    current: _Utterance | None = None
    is_first = True
    numbered = _numbers_ask(first_lines(text))
    split = ((number, part) for number, line in lines(text, report) for part in (_parts(line) if line else [line]))
    for number, line in split:
        if line is None:
            current = None
            yield None
        elif found := _labelled(line, numbered):
            label, content = found
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

"""Lines that begin with a label: "Q: ..." and "A: ...", "问：..." and "答：...", "User: ..." and "Bot: ...".

A label may have a number (Q1:) or a bullet before it, and stand in brackets (【问】) or between asterisks. An answer
may stand on the line of its question. Lines without a label continue the text before them. The pairs of users and bots
are a conversation up to a blank line; those of questions and answers are separate.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from chatbot.corpus.reading.dialogues.chat_messages import joined
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, NEXT, Pair
from chatbot.corpus.reading.report import Report

_QUESTION = r"Q|\uff31|Question|问|問|问题|問題|提问|提問|提问者|提問者"
_ANSWER = r"A|\uff21|Answer|答|答案|回答|回复|答复|回答者"
_USER = r"User|Human|Customer|用户|用戶|顾客|客户|人类|买家"
_BOT = r"Bot|Chatbot|Assistant|Agent|Support|AI|GPT|ChatGPT|机器人|機器人|助手|客服|小助手|卖家"
_LABEL = re.compile(
    r"\s*(?:[-•#>]{1,4}\s+|\d{1,6}[.、)）]\s*)?\*{0,2}[【\[]?"
    rf"(?:(?P<question>{_QUESTION})|(?P<answer>{_ANSWER})|(?P<user>{_USER})|(?P<bot>{_BOT}))"
    r"[ \t]{0,3}\d{0,6}[ \t]{0,3}(?:[】\]][:：]?|[:：、]|[.．](?=\s))\*{0,2}\s*(?P<text>.*)",
    re.IGNORECASE,
)
# The space before the label of an answer on the line of its question.
_SAME_LINE = re.compile(r"(?<![ \t\u3000])[ \t\u3000]+(?=(?:A|\uff21|Answer|答|答案|回答|Bot|Assistant)\d{0,6}[:：])")
_LABELS = ("question", "answer", "user", "bot")

NO_ANSWER = "questions without an answer"
MAX_LINES = 1000  # of a text; the others are left out
MATCHED = 0.5  # of the labels of either side have one of the other side
TITLE = 3  # the first label is on one of as many lines
SHARE = 0.3  # of the lines: an answer may have several


def is_question_lines(sample: Sequence[str]) -> bool:
    """Return whether the lines begin with the label of a question, and labels of both sides alternate."""
    filled = [part for line in sample for part in _parts(line) if part.strip()]
    labels = [match for line in filled if (match := _LABEL.match(line))]
    sides = [bool(match["question"] or match["user"]) for match in labels]
    changes = sum(asks and not then for asks, then in pairwise(sides))
    if not filled or not changes or len(labels) < SHARE * len(filled):
        return False
    return any(map(_LABEL.match, filled[:TITLE])) and changes >= MATCHED * max(sum(sides), len(sides) - sum(sides))


def _parts(line: str) -> list[str]:
    """Return the line, or its question and its answer."""
    match = _LABEL.match(line)
    if match and (match["question"] or match["user"]) and (inner := _SAME_LINE.search(line, match.start("text"))):
        return [line[: inner.start()], line[inner.end() :]]
    return [line]


def has_label(line: str) -> bool:
    """Return whether a line begins with the label of a question or an answer."""
    return _LABEL.match(line) is not None


def read_question_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with each of its answers."""
    question: str | None = None
    answered = True
    asked_at = text.place
    link = NEW
    for utterance in _utterances(text, report):
        if not answered and (utterance is None or utterance.label in ("question", "user")):
            report.drop(NO_ANSWER, asked_at)
        if utterance is None:
            question, answered, link = None, True, NEW
            continue
        place = f"{text.place}, line {utterance.line}"
        if utterance.label in ("question", "user"):
            question, answered, asked_at = joined(utterance.parts), False, place
            link = NEW if utterance.label == "question" or utterance.is_first else link
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
    split = ((number, part) for number, line in lines(text, report) for part in (_parts(line) if line else [line]))
    for number, line in split:
        if line is None:
            current = None
            yield None
        elif match := _LABEL.match(line):
            label = next(name for name in _LABELS if match[name])
            if current is not None and current.label == label and label in ("user", "bot") and not is_first:
                current.parts.append(match["text"])
                continue
            if current is not None:
                yield current
            current = _Utterance(label, [match["text"]], number, is_first)
            is_first = False
        elif not line.strip():
            is_first = True
        elif current is not None:
            if len(current.parts) < MAX_LINES:
                current.parts.append(line)
        else:
            report.drop("lines before the first label", f"{text.place}, line {number}")
    if current is not None:
        yield current

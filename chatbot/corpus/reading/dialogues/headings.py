"""Questions as headings, with the answer below: "## ...?" of Markdown, "* ...?" of Org, "1. ...？", "**...?**".

Headings that do not ask end the answer above them; what stands below them is left out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chatbot.corpus.reading.chat_messages import joined
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.corpus.reading.report import Report

ENDINGS = ("md", "markdown", "org", "adoc", "rst")
QUESTIONS = 2  # at least, with an answer
ASKING = 0.5  # of the headings with a mark
MAX_LINES = 1000  # of an answer; the others are left out

_HEADING = re.compile(r"(?:#{1,6}|={2,6}|\*{1,6})\s+(?P<text>\S.*?)\s*#*")
_BOLD = re.compile(r"(?:\*\*|__)(?P<text>[^*_].*?)(?:\*\*|__)[:：]?")
# Not a date or a version, such as "2024. 3. 5. ..." or "1.2.3 ...".
_NUMBERED = re.compile(
    r"(?:[(（]?\d{1,4}[.、)）．](?!\s*\d{1,4}\s?[./:-])|[(（]?[一二三四五六七八九十百]{1,5}[、)）])\s*(?P<text>\S.*)"
)
_RULE = re.compile(r"\s*([-*_])(?:\s*\1){2,}\s*")
_ASKS = re.compile(r".*[?？؟]\s*[*_]{0,2}$")
# Of a heading, in Chinese often without a question mark.
_ASKING_WORDS = re.compile(r"(?:怎么|如何|怎样|为什么|为何|是否|能否|可否|什么是).*|.*(?:吗|呢|什么|怎么办|多久|多少)")
_CHOICE = re.compile(r"\s*[Bb][.、)）．]\s*\S")


class _Heading(NamedTuple):
    text: str
    asks: bool  # whether it ends as a question does
    mark: str  # "##", "**", with "1" where a number follows; "" for a number alone


def _heading_of(line: str) -> _Heading | None:
    """Return the heading that a line is; None for a line that is no heading."""
    line = line.strip()[:1000]
    for pattern in (_HEADING, _BOLD):
        if match := pattern.fullmatch(line):
            text, mark = match["text"].strip("*_ "), line[: match.start("text")].strip()
            if numbered := _NUMBERED.fullmatch(text):
                text, mark = numbered["text"], mark + "1"
            asks = _ASKS.match(text) is not None or _ASKING_WORDS.fullmatch(text) is not None
            return _Heading(text, asks, mark)
    match = _NUMBERED.fullmatch(line)
    return _Heading(match["text"].strip(), True, "") if match and _ASKS.match(match["text"]) else None


def _marks_of_questions(sample: Sequence[str]) -> frozenset[str]:
    """Return the marks of the headings of which most ask, so that the others with them are questions, too."""
    headings = [heading for line in sample if (heading := _heading_of(line))]
    every, asking = (Counter(h.mark for h in found) for found in (headings, [h for h in headings if h.asks]))
    return frozenset(mark for mark, count in asking.items() if count >= QUESTIONS and count > ASKING * every[mark])


def questions_as_headings(sample: Sequence[str]) -> tuple[int, int, bool]:
    """Return the numbers of headings that are questions with an answer and of all, and whether answers are choices."""
    headings = questions = answered = choices = 0
    open_question = False
    for line in sample:
        if found := _heading_of(line):
            headings += 1
            questions += found.asks
            open_question = found.asks
        elif line.strip():
            answered += open_question
            open_question = False
            choices += _CHOICE.match(line) is not None
    return answered, headings, choices >= QUESTIONS


def read_headings(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with the text below it."""
    question: str | None = None
    answer: list[str] = []
    start = 0
    marks = _marks_of_questions(first_lines(text))
    for number, line in lines(text, report):
        found = _heading_of(line) if line else None
        asks = found is not None and (found.asks or found.mark in marks)
        if found is None and line is not None and not _RULE.fullmatch(line):
            if question is not None and len(answer) < MAX_LINES:
                answer.append(line)
            elif line.strip():
                report.drop("lines below no question", f"{text.place}, line {number}")
            continue
        yield from _pair(question, answer, report, f"{text.place}, line {start}")
        question, answer, start = found.text if found and asks else None, [], number
        if found and not asks:
            report.drop("headings that are no questions", f"{text.place}, line {number}")
    yield from _pair(question, answer, report, f"{text.place}, line {start}")


def _pair(question: str | None, answer: Sequence[str], report: Report, place: str) -> Iterator[Pair]:
    if question is not None and (text := joined(line for line in answer if line.strip())):
        yield question, text, NEW
    elif question is not None:
        report.drop("questions without an answer", place)

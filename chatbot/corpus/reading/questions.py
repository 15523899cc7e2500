"""Texts of questions and answers, whose parts begin with labels or with headings that ask.

Labels are such as "Q:" and "A:", 问：and 答：, User: and Bot:, on one line or on several.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, takewhile
from typing import Generic, TypeVar

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.names import UNHEARD, any_of, pattern
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, is_rule, lines
from chatbot.corpus.reading.turns import OF_PROGRAMS, Said, joined, pairs_of_turns

_SIDES = "|".join(f"(?P<{side}>{any_of(side)})" for side in ("question", "answer", "user", "bot"))
_LABEL = re.compile(
    rf"\s{{0,100}}(?:[-•#>]{{1,4}}\s+|\d{{1,6}}[.、)）]\s*)?\*{{0,2}}[【\[]?(?:{_SIDES})"
    r"[ \t]{0,3}\d{0,6}[ \t]{0,3}(?:[】\]][:：]?|[:：、．]|\.(?=\s))\*{0,2}\s*",
    re.IGNORECASE,
)
# The space or the end of a sentence before a label within a line.
_SAME_LINE = re.compile(
    r"(?:(?<![ \t\u3000])[ \t\u3000]+|(?<=[?？。!！]))"
    r"(?=(?:(?P<answer>A|\uff21|Answer|答|答案|回答|Bot|Assistant)|Q|\uff31|Question|问|問|User|Human)\d{0,6}[:：])"
)
_CHOICE = re.compile(r"\s{0,100}[Bb][.、)）．]\s*\S")
_ASKS = pattern("asks")
_HEADING = re.compile(r"#{1,6}\s.*|[-*_]{3,}\s*")

_OTHER_LABEL = re.compile(r"\s{0,100}(\w{1,20})[:：]\s*\S")
_OF_PROGRAM = re.compile(rf"\s{{0,100}}(?:{'|'.join(sorted(UNHEARD))})[ \t]{{0,3}}[:：]", re.IGNORECASE)

MATCHED = 0.5  # of the labels of either side have one of the other side
SHARE = 0.3  # of the lines: an answer may have several
LONGEST_HEADING = 200  # characters
MAX_BLOCK = 100_000  # characters; the lines after them are left out
_ASKING = ("question", "user")
_ANSWERING = ("answer", "bot")
Begin = TypeVar("Begin")


@dataclass
class Block(Generic[Begin]):
    """What begins a block, and the lines below it."""

    begin: Begin
    place: str  # of its first line
    lines: list[str] = field(default_factory=list)


def blocks(
    text: TextFile, begins: Callable[[str, str], Sequence[Begin]], report: Report
) -> Iterator[Block[Begin] | None]:
    """Yield the blocks of a text, and None for a line that is missing, with which the block around it is lost.

    begins: from a line and the following one to what begins on the line, which may be several blocks or none.
    """
    block: Block[Begin] | None = None
    for (number, line), (_, following) in pairwise(chain(lines(text, report), ((0, ""),))):
        begun = begins(line, following or "") if line else ()
        if line is None:
            block = None
            yield None
        elif begun:
            for begin in begun:
                if block is not None:
                    yield block
                block = Block(begin, f"{text.place}, line {number}")
                size = 0
        elif block is not None:
            size += len(line) + 1
            if size <= MAX_BLOCK:
                block.lines.append(line)
        elif line.strip() and not is_rule(line):
            report.drop("lines before the first label or head", f"{text.place}, line {number}")
    if block is not None:
        yield block


def is_question_lines(text: TextFile) -> bool:
    """Return whether the lines begin with the label of a question, and labels of both sides alternate."""
    filled = [line for line in text.first_lines if line.strip()]
    sides = [side in _ASKING for line in filled for side, _ in _labels_in(line)]
    changes = sum(asks and not then for asks, then in pairwise(sides))
    if not changes or len(sides) < SHARE * len(filled):
        return False
    if sum(_CHOICE.match(line) is not None for line in filled) * 2 >= sum(sides):
        return False  # "A." is a choice, too
    others = Counter(match[1] for line in filled if not _LABEL.match(line) and (match := _OTHER_LABEL.match(line)))
    if others and 2 * max(others.values()) > changes:
        return False  # records, of which the labels name two fields
    return changes >= MATCHED * max(sum(sides), len(sides) - sum(sides))


def is_question(text: str) -> bool:
    """Return whether a heading asks."""
    return _ASKS.fullmatch(text.strip()) is not None


def _labels_in(line: str, following: str = "") -> list[tuple[str, str]]:
    """Return (side, text) of a line: of all of it, of a question and its answer, or more where both sides alternate."""
    match = _LABEL.match(line)
    if match is None:
        return []
    inner = list(_SAME_LINE.finditer(line, match.end())) if match.lastgroup in _ASKING else []
    if not inner:
        return [_labelled(match)]
    if any((mark["answer"] is None) == (place % 2 == 0) for place, mark in enumerate(inner)):
        inner = [mark for mark in inner if mark["answer"]][:1]
    places = (0, *(mark.end() for mark in inner), len(line))
    return [_labelled(part) for start, end in pairwise(places) if (part := _LABEL.match(line[start:end]))]


def _labelled(match: re.Match[str]) -> tuple[str, str]:
    text = match.string[match.end() :].rstrip()
    if text.endswith("**") and text.count("**") % 2:  # the asterisks began before the label
        text = text[:-2]
    return match.lastgroup or "", text


def read_question_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each question with each of its answers."""
    return pairs_of_turns(_said(blocks(text, _labels_in, report), report), report.drop)


def read_sections(text: TextFile, match: Callable[[str], re.Match[str] | None], report: Report) -> Iterator[Pair]:
    """Yield each question with the text below it. match: from a line to a head with a question."""

    def begins(line: str, following: str) -> Sequence[tuple[str, str]]:
        head = match(line)
        if head and is_question(head["question"]):
            return (("question", head["question"].strip(" *#_")), ("answer", ""))
        return (("", ""),) if head or _HEADING.fullmatch(line[:LONGEST_HEADING]) else ()

    return pairs_of_turns(_said(blocks(text, begins, report), report), report.drop)


def _said(found: Iterable[Block[tuple[str, str]] | None], report: Report) -> Iterator[Said | None]:
    """Yield what both sides say: question and user ask, answer and bot answer, "" does neither.

    The question comes again before each other answer to it. A blank line before a user ends a conversation, unless one
    stands before what bots say, too.
    """
    question: Block[tuple[str, str]] | None = None
    is_apart, is_answered, are_apart = True, False, False  # behind a blank line or at the beginning; all answers
    for block in chain(found, (None,)):
        side, text = block.begin if block else ("", "")
        if side in ("", "question") or (side == "user" and is_apart and not are_apart):
            if question is not None and not is_answered:
                report.drop("questions without an answer", question.place)
            question = None
            yield None
        if block is None:
            continue
        heard = block.lines
        if side in ("user", "bot"):  # between these, "System:" begins a message; in an answer to "Q:" it is text
            heard = [*takewhile(lambda line: not _OF_PROGRAM.match(line), block.lines)]
            if len(heard) < len(block.lines):
                report.drop(OF_PROGRAMS, block.place)
        below = [line for line in heard if line.strip() and not is_rule(line)]
        parts = [text, *below] if text else below
        said = Said(joined(parts), side if side in ("user", "bot") else None, side in _ASKING, side in _ANSWERING)
        if side in _ASKING:
            question = block
            asked = said
            is_answered = False
            yield said
        elif question is None and (side or parts):
            report.drop("answers without a question" if side else "sections without a question", block.place)
        elif side and parts:
            if is_answered and side == "answer":
                yield from (None, asked)
            yield said
            are_apart = are_apart if is_answered else is_apart
            is_answered = True
        is_apart = len(below) < len(heard)

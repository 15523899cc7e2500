"""Readers for text files in which lines, labels or headings separate the turns.

qa        labels such as "Q:" and "A:", 问： and 答：, or "User:" and "Bot:"; also sections with questions as headings
conv      a line "E" begins a conversation, and lines "M text" are its utterances, often with slashes between words
douban    label, turns and response, separated by tabs: the Douban, Ubuntu V1 and E-commerce corpora
eou       one conversation per line, with __eou__ at the end of each turn: DailyDialog
turns     one conversation per line, with tabs between the turns
parlai    ParlAI's "text:...<tab>labels:...", and its older format "number turn<tab>answer"
lines     one utterance per line, with blank lines or rules between conversations; without these, two lines form a pair
parallel  two files, in which line i of the second file answers line i of the first
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, pairwise, takewhile, zip_longest
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.doubts import find_doubt
from chatbot.corpus.reading.marked_text import split_utterances
from chatbot.corpus.reading.names import UNHEARD, alternation, pattern
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import FIRST_LINES, TextFile, is_rule, lines, open_text_files
from chatbot.corpus.reading.turns import NEW, OF_PROGRAMS, Pair, Utterance, join_text, pairs_of_texts, pairs_of_turns
from chatbot.display import pluralize
from chatbot.errors import UserError

FALSE_RESPONSES = "responses labelled as false"
MAX_UTTERANCE = 60  # typical maximum length of an utterance in characters; most lines of prose are longer
MAX_TURNS = 1_000  # maximum number of lines that are kept in memory; longer blocks are split
END = "__eou__"
DEEPQA = "==="  # separator of conversations in Conchylicultor/DeepQA's lightweight corpus
# Slashes are word separators if this fraction of the utterances with more than _LONGER characters contains slashes.
_SLASHED_SHARE, _LONGER = 0.9, 3
_NUMBERED = re.compile(r"(\d{1,4}) (.*)", re.DOTALL)
_PERSONA = re.compile(r"(?:your|partner's) persona: ")
_PARLAI = re.compile(r"text:.*\t(?:eval_)?labels:", re.DOTALL)

_SIDES = "|".join(f"(?P<{side}>{alternation(side)})" for side in ("question", "answer", "user", "bot"))
_LABEL = re.compile(
    rf"\s{{0,100}}(?:[-•#>]{{1,4}}\s+|\d{{1,6}}[.、)）]\s*)?\*{{0,2}}[【\[]?(?:{_SIDES})"
    r"[ \t]{0,3}\d{0,6}[ \t]{0,3}(?:[】\]][:：]?|[:：、．]|\.(?=\s))\*{0,2}\s*",
    re.IGNORECASE,
)
# Matches the gap before a label inside a line: whitespace, or the (empty) end of a sentence.
_SAME_LINE = re.compile(
    r"(?:(?<![ \t\u3000])[ \t\u3000]+|(?<=[?？。!！]))"
    r"(?=(?:(?P<answer>A|\uff21|Answer|答|答案|回答|Bot|Assistant)|Q|\uff31|Question|问|問|User|Human)\d{0,6}[:：])"
)
_CHOICE = re.compile(r"\s{0,100}[Bb][.、)）．]\s*\S")
_ASKS = pattern("asks")
_HEADING = re.compile(r"#{1,6}\s.*|[-*_]{3,}\s*")
_OTHER_LABEL = re.compile(r"\s{0,100}(\w{1,20})[:：]\s*\S")
_OF_PROGRAM = re.compile(rf"\s{{0,100}}(?:{'|'.join(sorted(UNHEARD))})[ \t]{{0,3}}[:：]", re.IGNORECASE)

MATCHED = 0.5  # minimum fraction of the questions, and of the answers, that belong to a question with an answer below
SHARE = 0.3  # minimum number of labels per line; it is low because answers can span several lines
MAX_HEADING = 200  # maximum characters of a heading
MAX_BLOCK = 100_000  # maximum characters of a block; further lines are dropped
_ASKING = ("question", "user")
_ANSWERING = ("answer", "bot")
Begin = tuple[Any, ...]  # first line of a block: (side, text) for a label or heading, (kind, line, match) for a head


@dataclass
class Block:
    """A line with a label, a heading or a message head, and the lines below it."""

    begin: Begin
    place: str  # file and number of the first line, shown in messages
    lines: list[str] = field(default_factory=list)


def blocks(text: TextFile, begins: Callable[[str, str], Sequence[Begin]], report: Report) -> Iterator[Block | None]:
    """Split a text into blocks. None is yielded for a block with an undecodable or overlong line.

    Args:
        text: The text.
        begins: Receives a line and the next line. Returns the beginning of each block that starts on the line.
        report: Report in which the lines before the first block are counted as dropped.
    """
    block: Block | None = None
    for (number, line), (_, following) in pairwise(chain(lines(text, report), ((0, ""),))):
        beginnings = begins(line, following or "") if line else ()
        if line is None:
            block = None
            yield None
        elif beginnings:
            for begin in beginnings:
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
    """Return whether a text consists of lines with alternating labels of questions and answers."""
    filled = text.filled
    sides = [side in _ASKING for line in filled for side, _ in _labels_in(line)]
    changes = sum(asks and not then for asks, then in pairwise(sides))
    if not changes or len(sides) < SHARE * len(filled):
        return False
    if sum(_CHOICE.match(line) is not None for line in filled) * 2 >= sum(sides):
        return False  # "A." and "B." are options of multiple-choice questions.
    others = Counter(match[1] for line in filled if not _LABEL.match(line) and (match := _OTHER_LABEL.match(line)))
    if others and 2 * max(others.values()) > changes:
        return False  # There are further labels, so the lines are fields of records.
    return changes >= MATCHED * max(sum(sides), len(sides) - sum(sides))


def is_question(text: str) -> bool:
    """Return whether a text is worded like a question."""
    return _ASKS.fullmatch(text.strip()) is not None


def _labels_in(line: str, following: str = "") -> list[tuple[str, str]]:
    """Return the side ("question", "answer", "user" or "bot") and the text for each label in a line."""
    match = _LABEL.match(line)
    if match is None:
        return []
    inner = list(_SAME_LINE.finditer(line, match.end())) if match.lastgroup in _ASKING else []
    if any((mark["answer"] is None) == (place % 2 == 0) for place, mark in enumerate(inner)):
        inner = [mark for mark in inner if mark["answer"]][:1]
    places = (0, *(mark.end() for mark in inner), len(line))
    return [_split_label(part) for start, end in pairwise(places) if (part := _LABEL.match(line[start:end]))]


def _split_label(match: re.Match[str]) -> tuple[str, str]:
    text = match.string[match.end() :].rstrip()
    if text.endswith("**") and text.count("**") % 2:  # The opening asterisks precede the label.
        text = text[:-2]
    return match.lastgroup or "", text


def read_question_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield a pair for each answer of each question."""
    return pairs_of_turns(_question_turns(blocks(text, _labels_in, report), report), report.drop)


def read_sections(text: TextFile, match: Callable[[str], re.Match[str] | None], report: Report) -> Iterator[Pair]:
    """Yield a pair for each heading that is a question. The answer is the text below the heading.

    Args:
        text: The text.
        match: Matches a line if it is a heading. The heading is in the group `question`.
        report: Report that is updated.
    """

    def begins(line: str, following: str) -> Sequence[tuple[str, str]]:
        head = match(line)
        if head and is_question(head["question"]):
            return (("question", head["question"].strip(" *#_")), ("answer", ""))
        return (("", ""),) if head or _HEADING.fullmatch(line[:MAX_HEADING]) else ()

    return pairs_of_turns(_question_turns(blocks(text, begins, report), report), report.drop)


def _question_turns(found: Iterable[Block | None], report: Report) -> Iterator[Utterance | None]:
    """Convert labelled blocks to turns. None is yielded after each conversation.

    Blocks labelled "question" or "user" ask, and blocks labelled "answer" or "bot" answer. An empty label ends a
    conversation. A "user" block after a blank line begins a new conversation, unless blank lines also precede the
    answers. If a question has several answers, it is repeated before each of them.
    """
    question: Block | None = None
    follows_blank = True  # whether a blank line precedes the block; also true for the first block
    answers_follow_blanks = False
    is_answered = False
    for block in chain(found, (None,)):
        side, text = block.begin if block else ("", "")
        if side in ("", "question") or (side == "user" and follows_blank and not answers_follow_blanks):
            if question is not None and not is_answered:
                report.drop("questions without an answer", question.place)
            question = None
            yield None
        if block is None:
            continue
        lines_below = block.lines
        if side in ("user", "bot"):  # In chats, "System:" begins a message. Below "Q:" and "A:", it is ordinary text.
            lines_below = [*takewhile(lambda line: not _OF_PROGRAM.match(line), block.lines)]
            if len(lines_below) < len(block.lines):
                report.drop(OF_PROGRAMS, block.place)
        content = [line for line in lines_below if line.strip() and not is_rule(line)]
        parts = [text, *content] if text else content
        speaker = side if side in ("user", "bot") else None
        turn = Utterance(join_text(parts), speaker, side in _ASKING, side in _ANSWERING)
        if side in _ASKING:
            question = block
            question_turn = turn
            is_answered = False
            yield turn
        elif question is None and (side or parts):
            report.drop("answers without a question" if side else "sections without a question", block.place)
        elif side and parts:
            if is_answered and side == "answer":
                yield from (None, question_turn)
            yield turn
            answers_follow_blanks = answers_follow_blanks if is_answered else follows_blank
            is_answered = True
        follows_blank = len(content) < len(lines_below)


def is_conv(text: TextFile) -> bool:
    """Return whether at least nine tenths of the lines begin with E or M."""
    marked = sum(line.strip() in ("E", "M") or line.lstrip().startswith("M ") for line in text.filled)
    return marked >= 0.9 * len(text.filled)


def read_conv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield a pair for each two adjacent utterances of a conversation. Slashes between words are removed."""
    utterances = [line[2:] for line in text.filled if line.startswith("M ") and len(line) > _LONGER + 2]
    slashed = (
        sum("/" in words and words.strip("/ ") != "" for words in utterances) >= _SLASHED_SHARE * len(utterances) > 0
    )

    def turns() -> Iterator[Utterance | None]:
        for number, line in lines(text, report):
            if line is not None and (line[:2] == "M " or line == "M"):
                yield Utterance(line[2:].replace("/", "") if slashed else line[2:])
            elif line is None or line.strip():
                if line is not None and line.rstrip() != "E":
                    report.drop("lines that begin with neither E nor M", f"{text.place}, line {number}")
                yield None  # "E" and unusable lines end a conversation.

    return pairs_of_turns(turns(), report.drop)


def is_douban(text: TextFile) -> bool:
    """Return whether each line contains a label (0 or 1) and at least two turns."""
    rows = [line.split("\t") for line in text.filled]
    return any(row[0] == "1" for row in rows) and all(len(row) > 2 and row[0] in ("0", "1") for row in rows)


def read_douban(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield a pair for each two adjacent turns on the lines labelled 1.

    If a conversation has several correct responses, its turns occur on several lines. The cleaning rule `duplicates`
    drops the repeated pairs later.
    """
    for number, line in lines(text, report):
        if not line or line.isspace():
            continue
        label, *turns = line.split("\t")
        turns = [turn for turn in turns if turn.strip()]
        if label == "0" and turns:
            report.drop(FALSE_RESPONSES, f"{text.place}, line {number}")
        elif label != "1" or len(turns) < 2:
            report.drop("lines without a label and two turns", f"{text.place}, line {number}")
        else:
            yield from pairs_of_texts(turns)


def is_eou(text: TextFile) -> bool:
    """Return whether more than half of the lines end in __eou__."""
    return sum(line.rstrip().endswith(END) for line in text.filled) * 2 > len(text.filled)


def read_turns(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield a pair for each two adjacent turns on a line. Turns are separated by marks such as __eou__, or by tabs."""
    for number, line in lines(text, report):
        if not line or line.isspace():
            continue
        turns = split_utterances(line) or [turn for turn in line.split("\t") if turn.strip()]
        if len(turns) < 2:
            report.drop("lines without two turns", f"{text.place}, line {number}")
        yield from pairs_of_texts(turns)


def is_parlai(text: TextFile) -> bool:
    """Return whether all lines are in one of ParlAI's formats, with the fields text and labels or with turn numbers."""
    if all(map(_PARLAI.match, text.filled)):
        return bool(text.filled)
    matches = [_NUMBERED.match(line) for line in text.filled]
    numbers = [int(match[1]) for match in matches if match]
    if len(numbers) < max(2, len(text.filled)):
        return False
    turns = [line for line in text.filled if not _PERSONA.match(line.partition(" ")[2])]
    are_consecutive = all(b in (1, a + 1) for a, b in pairwise(numbers))
    return are_consecutive and all("\t" in line for line in turns) and numbers.count(1) > 1


def read_parlai(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each turn and its answer as a pair."""
    return pairs_of_turns(_parlai_turns(text, report), report.drop)


def _parlai_turns(text: TextFile, report: Report) -> Iterator[Utterance | None]:
    for number, line in lines(text, report):
        numbered = _NUMBERED.match(line or "")
        if not line or line.isspace():
            yield None
            continue
        if numbered:
            if numbered[1] == "1":
                yield None
            if _PERSONA.match(numbered[2]):
                continue
            question, _, rest = numbered[2].partition("\t")
            answer = rest.partition("\t")[0]
            is_last = False
        else:
            fields = dict(part.partition(":")[::2] for part in line.split("\t"))
            parts = [part for part in fields.get("text", "").split("\\n") if not _PERSONA.match(part)]
            question = "\n".join(parts)
            answer = fields.get("labels") or fields.get("eval_labels") or ""
            answer = answer.partition("|")[0]
            is_last = fields.get("episode_done") == "True"
        if question.strip() and answer.strip():
            yield from (Utterance(question, answers=False), Utterance(answer.replace("\\n", "\n"), asks=False))
        else:
            report.drop("lines without a turn and its answer", f"{text.place}, line {number}")
            is_last = True
        if is_last:
            yield None


def detect_lines(text: TextFile) -> bool | str:
    """Detect whether each line of a text is a turn of a conversation.

    Returns:
        True if each line is a turn, False if not, or, if the text is ambiguous, a message with which the user is asked.
    """
    blocks = [*_blocks(text.first_lines, FIRST_LINES)]
    blocks = blocks if text.whole or len(blocks) == 1 else blocks[:-1]  # The last block may be incomplete.
    utterances = [line for block in blocks for line in block]
    if len(utterances) < 4 or sum(len(line) > MAX_UTTERANCE for line in utterances) * 2 > len(utterances):
        return False
    if len(blocks) == 1:
        return "every two lines may be a pair"
    if not all(len(block) > 1 for block in blocks):
        return False
    if {line.strip() for line in text.filled if is_rule(line)} == {DEEPQA}:
        return True
    doubt = "each line may be a turn, and each block a conversation"
    if any(len(block) > 2 for block in blocks):
        return doubt
    # Prose can also consist of blocks of two lines, so most blocks must begin with a question.
    are_questions = sum(is_question(block[0]) for block in blocks) * 2 > len(blocks)
    return find_doubt(blocks, "line") or are_questions or doubt


def _blocks(lines: Iterable[str | None], size: int = MAX_TURNS) -> Iterator[list[str]]:
    """Yield blocks of at most `size` lines. Blank lines, rules (such as "---") and unusable lines separate blocks."""
    bare = ("" if line is None or is_rule(line) else line.strip() for line in lines)
    for is_filled, block in groupby(bare, bool):
        while is_filled and (part := [*islice(block, size)]):
            yield part


def read_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield a pair for each two adjacent lines of a block. In a text with a single block, pairs do not overlap."""
    is_single = len([*islice(_blocks(text.first_lines, FIRST_LINES), 2)]) == 1
    for block in _blocks((line for _, line in lines(text, report)), 2 if is_single else MAX_TURNS):
        if len(block) == 1:
            report.drop("single lines between blank lines", text.place)
        yield from pairs_of_texts(block)


def read_parallel(paths: tuple[Path, ...], report: Report, charset: str | None) -> Iterator[Pair]:
    """Read pairs from two files: line i of the second file answers line i of the first.

    Raises:
        UserError: If the files have different numbers of lines.
    """
    with contextlib.ExitStack() as stack:
        sides = [open_text_files(path, report, charset) for path in paths]
        questions, answers = (next(stack.enter_context(contextlib.closing(side))) for side in sides)
        for text in (questions, answers):
            if text.damage:
                raise UserError(f"{text.place}: {text.damage}", text.details)
            report.note("parallel", text.charset)
        question_count = answer_count = 0
        for (number, question), (answer_number, answer) in zip_longest(
            lines(questions, report), lines(answers, report), fillvalue=(0, None)
        ):
            question_count = max(question_count, number)
            answer_count = max(answer_count, answer_number)
            # None means an unusable line, which `lines` has already counted, or the end of the shorter file.
            if question is not None and answer is not None and (question or answer):
                yield question, answer, NEW
        if question_count != answer_count:
            raise UserError(
                f"{questions.place} has {pluralize(question_count, 'line')} and {answers.place} has {answer_count:,}; "
                "line i of the second answers line i of the first, so the numbers must be equal"
            )
        for side, text in zip(sides, (questions, answers), strict=True):
            if next(side, None) is not None:
                raise UserError(f"{text.place}: the archive contains more than one file; unpack it and give one")

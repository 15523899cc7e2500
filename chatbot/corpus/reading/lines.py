"""Texts of conversations without names: a line is an utterance, a turn with its answer, or a whole conversation.

conv      "E" begins a conversation, "M text" is an utterance; several corpora have slashes between words
douban    label, turns and response, with tabs; the Douban corpus, the Ubuntu corpus V1 and E-commerce
eou       DailyDialog: turns that end in __eou__, a conversation on each line
turns     the same with tabs between the turns, as a table may have them, too
parlai    ParlAI's text:... and labels:..., and its older form: number, turn, tab, answer
lines     an utterance on each line, with a blank line or a rule between conversations; without any, each two are a pair
parallel  two files: line i of the second answers line i of the first
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from itertools import groupby, islice, pairwise, zip_longest
from pathlib import Path

from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.doubts import doubt_of
from chatbot.corpus.reading.marked_text import separated
from chatbot.corpus.reading.questions import is_question
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import FIRST_LINES, TextFile, is_rule, lines, open_text_files
from chatbot.corpus.reading.turns import Said, pairs_of_texts, pairs_of_turns
from chatbot.display import counted
from chatbot.errors import UserError

FALSE_RESPONSES = "responses labelled as false"
LONGEST = 60  # characters of an utterance in a text without any mark; the lines of prose are longer
MAX_TURNS = 1_000  # of a block of lines that is held in memory
END = "__eou__"
DEEPQA = "==="  # the line between conversations in the light corpus of Conchylicultor/DeepQA
_SLASHED_SHARE, _LONGER = 0.9, 3  # of the utterances with more characters; others contain a slash by chance ("1/2")
_NUMBERED = re.compile(r"(\d{1,4}) (.*)", re.DOTALL)
_PERSONA = re.compile(r"(?:your|partner's) persona: ")
_PARLAI = re.compile(r"text:.*\t(?:eval_)?labels:", re.DOTALL)


def is_conv(text: TextFile) -> bool:
    """Return whether all lines but a few damaged ones begin with E or M."""
    marked = sum(line.strip() in ("E", "M") or line.lstrip().startswith("M ") for line in text.filled)
    return marked >= 0.9 * len(text.filled)


def read_conv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield adjacent utterances of each conversation, without the slashes between words."""
    utterances = [line[2:] for line in text.filled if line.startswith("M ") and len(line) > _LONGER + 2]
    slashed = (
        sum("/" in words and words.strip("/ ") != "" for words in utterances) >= _SLASHED_SHARE * len(utterances) > 0
    )

    def said() -> Iterator[Said | None]:
        for number, line in lines(text, report):
            if line is not None and (line[:2] == "M " or line == "M"):
                yield Said(line[2:].replace("/", "") if slashed else line[2:])
            elif line is None or line.strip():
                if line is not None and line.rstrip() != "E":
                    report.drop("lines that begin with neither E nor M", f"{text.place}, line {number}")
                yield None  # the next utterance does not answer the previous one

    return pairs_of_turns(said(), report.drop)


def is_douban(text: TextFile) -> bool:
    """Return whether the lines have a label, 0 or 1, and two or more turns."""
    rows = [line.split("\t") for line in text.filled]
    return any(row[0] == "1" for row in rows) and all(len(row) > 2 and row[0] in ("0", "1") for row in rows)


def read_douban(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield adjacent turns of the lines whose response is true.

    A context with several true responses stands on several lines, whose equal pairs the rule `duplicates` drops.
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
    """Return whether the lines are conversations whose turns end in __eou__, of which a few may be damaged."""
    return sum(line.rstrip().endswith(END) for line in text.filled) * 2 > len(text.filled)


def read_turns(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the adjacent turns of each line, between marks such as __eou__ or between tabs."""
    for number, line in lines(text, report):
        if not line or line.isspace():
            continue
        turns = separated(line) or [turn for turn in line.split("\t") if turn.strip()]
        if len(turns) < 2:
            report.drop("lines without two turns", f"{text.place}, line {number}")
        yield from pairs_of_texts(turns)


def is_parlai(text: TextFile) -> bool:
    """Return whether the lines have ParlAI's fields, or numbers that count the turns of each conversation from 1."""
    if all(map(_PARLAI.match, text.filled)):
        return bool(text.filled)
    matches = [_NUMBERED.match(line) for line in text.filled]
    counted_turns = [int(match[1]) for match in matches if match]
    if len(counted_turns) < max(2, len(text.filled)) or counted_turns[0] != 1:
        return False
    turns = [line for line in text.filled if not _PERSONA.match(line.partition(" ")[2])]
    one_by_one = all(b in (1, a + 1) for a, b in pairwise(counted_turns))
    return one_by_one and all("\t" in line for line in turns) and counted_turns.count(1) > 1


def read_parlai(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield each turn with its answer; the next turn of a conversation follows the answer."""
    return pairs_of_turns(_said_in_parlai(text, report), report.drop)


def _said_in_parlai(text: TextFile, report: Report) -> Iterator[Said | None]:
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
            told = [part for part in fields.get("text", "").split("\\n") if not _PERSONA.match(part)]
            question = "\n".join(told)
            answer = fields.get("labels") or fields.get("eval_labels") or ""
            answer = answer.partition("|")[0]
            is_last = fields.get("episode_done") == "True"
        if question.strip() and answer.strip():
            yield from (Said(question, answers=False), Said(answer.replace("\\n", "\n"), asks=False))
        else:
            report.drop("lines without a turn and its answer", f"{text.place}, line {number}")
            is_last = True
        if is_last:
            yield None


def are_lines(text: TextFile) -> bool | str:
    """Return whether DeepQA's rules divide the lines, or questions begin blocks of two; if they may be turns, why."""
    blocks = [*_blocks(text.first_lines, FIRST_LINES)]
    blocks = blocks if text.whole or len(blocks) == 1 else blocks[:-1]  # the last one may go on
    utterances = [line for block in blocks for line in block]
    if len(utterances) < 4 or sum(len(line) > LONGEST for line in utterances) * 2 > len(utterances):
        return False
    if len(blocks) == 1:
        return "each two lines may be a pair"
    if not all(len(block) > 1 for block in blocks):
        return False
    if {line.strip() for line in text.filled if is_rule(line)} == {DEEPQA}:
        return True
    doubt = "each line may be a turn, and each block a conversation"
    if any(len(block) > 2 for block in blocks):
        return doubt
    are_asked = sum(is_question(block[0]) for block in blocks) * 2 > len(blocks)  # prose may have lines by two
    return doubt_of(blocks, "line") or are_asked or doubt


def _blocks(found: Iterable[str | None], size: int = MAX_TURNS) -> Iterator[list[str]]:
    """Yield the lines between blank ones, rules and missing ones, at most so many at once."""
    bare = ("" if line is None or is_rule(line) else line.strip() for line in found)
    for is_filled, block in groupby(bare, bool):
        while is_filled and (part := [*islice(block, size)]):
            yield part


def read_lines(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the adjacent lines of each block, or each two lines of a text without blank lines and rules."""
    is_single = len([*islice(_blocks(text.first_lines, FIRST_LINES), 2)]) == 1
    for block in _blocks((line for _, line in lines(text, report)), 2 if is_single else MAX_TURNS):
        if len(block) == 1:
            report.drop("lines that stand alone", text.place)
        yield from pairs_of_texts(block)


def read_parallel(paths: tuple[Path, ...], report: Report, charset: str | None) -> Iterator[Pair]:
    """Yield line i of the first file with line i of the second. Raises UserError when one has more lines."""
    with contextlib.ExitStack() as stack:
        sides = [open_text_files(path, report, charset) for path in paths]
        questions, answers = (next(stack.enter_context(contextlib.closing(side))) for side in sides)
        for text in (questions, answers):
            if text.damage:
                raise UserError(f"{text.place}: {text.damage}", text.details)
            report.note("parallel", text.charset)
        asked = answered = 0  # lines that were read
        for (number, question), (answer_number, answer) in zip_longest(
            lines(questions, report), lines(answers, report), fillvalue=(0, None)
        ):
            asked = max(asked, number)
            answered = max(answered, answer_number)
            # A line that is missing was counted by `lines`, or is beyond the end of the shorter file.
            if question is not None and answer is not None and (question or answer):
                yield question, answer, NEW
        if asked != answered:
            raise UserError(
                f"{questions.place} has {counted(asked, 'line')} and {answers.place} has {answered:,}; "
                "line i of the second answers line i of the first, so the numbers must be equal"
            )
        for side, text in zip(sides, (questions, answers), strict=True):
            if next(side, None) is not None:
                raise UserError(f"{text.place}: the archive contains more than one file; unpack it and give one")

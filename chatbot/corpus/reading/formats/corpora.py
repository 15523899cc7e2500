"""Layouts of published corpora.

conv      "E" begins a conversation, "M text" is an utterance; several corpora have slashes between words
douban    the Douban Conversation Corpus (Wu et al., 2017) and the Ubuntu corpus V1: label, turns, response, with tabs
eou       DailyDialog: turns that end in __eou__, a conversation on each line
ubuntu    the Ubuntu corpus V2: a table of a context with the turns, the utterance after them, and a label
template  turns between the marks of a language model's template
cornell   the Cornell Movie-Dialogs Corpus (Danescu-Niculescu-Mizil and Lee, 2011): utterances by id, and lists of ids
parallel  two files: line i of the second answers line i of the first
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path

from chatbot.corpus.reading.conversation import NEW, Pair, Turn, pairs_of_texts, pairs_of_turns
from chatbot.corpus.reading.display import counted, one_line
from chatbot.corpus.reading.formats.dialect import COMMAS, rows_of, rows_of_text
from chatbot.corpus.reading.formats.marked_text import pairs_of_dialogue, separated, turns_of
from chatbot.corpus.reading.open.sources import CORNELL_FILES, Source
from chatbot.corpus.reading.open.text_file import TextFile, decoded, lines, open_text_files, whole_text
from chatbot.corpus.reading.report import ALONE, ReadOptions, Report
from chatbot.errors import UserError

FALSE_RESPONSES = "responses labelled as false"

SLASHED_SHARE = 0.9  # of the longer utterances; others contain a slash by chance ("1/2", "http://")
LONGER = 3  # characters; shorter utterances are a single word
LABELLED = 0.95  # of the lines of Douban
END = "__eou__"
MARKED = 0.5  # of the lines
UTTERANCES = ("ground truth utterance", "utterance")
TRUE = ("1", "1.0")
TEMPLATES = ("<|", "### ", "[INST]", "<s>", "<start_of_turn>", "[Human]")  # the beginnings of models' templates
SEPARATOR = " +++$+++ "


def is_conv(text: TextFile) -> bool:
    """Return whether nearly all lines begin with E or M."""
    filled = [line.strip("\r\n ") for line in text.first_lines if line.strip()]
    return sum(line in ("E", "M") or line.startswith("M ") for line in filled) >= 0.9 * len(filled)


def read_conv(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield adjacent utterances of each conversation, without the slashes between words."""
    return pairs_of_turns(_conv_turns(text, report))


def _conv_turns(text: TextFile, report: Report) -> Iterator[Turn | None]:
    slashed = is_slashed(text.sample)
    for number, line in lines(text, report):
        if line is None:
            yield None  # an utterance is missing, so the next one does not answer the previous one
        elif line[:2] == "M " or line == "M":
            yield Turn(line[2:].replace("/", "") if slashed else line[2:])
        elif line.rstrip() == "E":
            yield None
        elif line.strip():
            report.drop("lines that begin with neither E nor M", f"{text.place}, line {number}")
            yield None


def is_slashed(sample: str) -> bool:
    """Return whether slashes separate the words of the sample's utterances."""
    longer = [utterance for utterance in re.findall(r"^M (.*)$", sample, re.MULTILINE) if len(utterance) > LONGER]
    slashed = sum("/" in utterance and utterance.strip("/ ") != "" for utterance in longer)
    return bool(longer) and slashed >= SLASHED_SHARE * len(longer)


def is_douban(text: TextFile) -> bool:
    """Return whether nearly all lines have a label and two or more turns."""
    rows = [line.rstrip("\r\n").split("\t") for line in text.first_lines if line.strip()]
    labels = [row[0] for row in rows if len(row) > 2 and row[0] in ("0", "1")]
    return "1" in labels and len(labels) >= LABELLED * len(rows)


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
    """Return whether the lines are conversations whose turns end in __eou__. Raises UserError for a table of them."""
    filled = [line.rstrip() for line in text.first_lines if line.strip()]
    if sum(END in line for line in filled) < MARKED * len(filled):
        return False
    if sum(line.endswith(END) for line in filled) < MARKED * len(filled):
        raise UserError(f"{text.place}: a table with {END} in a column; give that column alone, without quotes")
    return True


def read_eou(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the adjacent turns of each line."""
    for number, dialogue in lines(text, report):
        if dialogue and (turns := separated(dialogue)):
            yield from pairs_of_texts(turns)
        elif dialogue and dialogue.strip():
            report.drop("lines without two turns", f"{text.place}, line {number}")


def is_ubuntu(text: TextFile) -> bool:
    """Return whether the lines are a table of the Ubuntu corpus V2."""
    first = next((row for _, row, _ in rows_of(text.first_lines[:2], COMMAS)), [])
    return any("__eo" in line for line in text.first_lines) and _ubuntu_columns(first) is not None


def _ubuntu_columns(header: Sequence[str]) -> tuple[int, int, int | None] | None:
    """Return the columns of context, utterance and label; None for another header."""
    names = [name.strip().casefold() for name in header]
    utterance = next((names.index(name) for name in UTTERANCES if name in names), None)
    if "context" not in names or utterance is None:
        return None
    return names.index("context"), utterance, names.index("label") if "label" in names else None


def read_ubuntu(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the adjacent turns of the rows whose utterance belongs to the context."""
    first = next((row for _, row, _ in rows_of(text.first_lines, COMMAS) if row), [])
    header = _ubuntu_columns(first)
    context, utterance, label = header or (0, 1, 2)
    rows = rows_of_text(text, report, COMMAS, (context, utterance))
    for number, row, _ in islice(rows, int(header is not None), None):
        place = f"{text.place}, line {number}"
        if len(row) <= max(context, utterance, label or 0):
            report.drop("rows with too few columns", place)
        elif label is not None and row[label].strip() not in TRUE:
            report.drop(FALSE_RESPONSES, place)
        else:
            yield from pairs_of_texts(separated(f"{row[context]} __eot__ {row[utterance]}") or [])


def is_template(text: TextFile) -> bool:
    """Return whether a text that begins like this has the marks of a language model's template around its turns."""
    return text.sample.lstrip().startswith(TEMPLATES) and bool(pairs_of_dialogue(turns_of(text.sample) or []))


def read_template(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of users and assistants. Raises UserError for a text that is too large."""
    content = whole_text(text, "templates")
    return decoded(
        pairs_of_dialogue(turns_of(content) or []), text, report, lambda reason: report.drop(reason, text.place)
    )


def read_cornell(source: Source, report: Report, charset: str | None = None) -> Iterator[Pair]:
    """Yield the pairs of movie_lines.txt and movie_conversations.txt.

    Raises UserError if movie_lines.txt has no line of the expected format.
    """
    utterances: dict[str, str] = {}
    for path in source.paths:
        for text in open_text_files(path, source.name, report, charset=charset):
            report.note("cornell", text.charset)
            if utterances:
                yield from pairs_of_turns(_cornell_turns(text, utterances, report))
            else:
                utterances = _cornell_utterances(text, report)


def _cornell_utterances(text: TextFile, report: Report) -> dict[str, str]:
    utterances: dict[str, str] = {}
    for number, line in lines(text, report):
        if not line:
            continue
        fields = line.split(SEPARATOR, 4)
        if len(fields) == 5:
            utterances[fields[0].strip()] = fields[4]
        else:
            report.drop("rows with too few columns", f"{text.place} ({CORNELL_FILES[0]}), line {number}")
    if not utterances:
        raise UserError(
            f"{text.place}: no line of {CORNELL_FILES[0]} has Cornell's format, L1{SEPARATOR}u0 ...; "
            "download the corpus again"
        )
    return utterances


def _cornell_turns(text: TextFile, utterances: dict[str, str], report: Report) -> Iterator[Turn | None]:
    for number, line in lines(text, report):
        if not line:
            continue
        place = f"{text.place} ({CORNELL_FILES[1]}), line {number}"
        ids = re.findall(r"'([^']*)'", line.rpartition(SEPARATOR)[2])
        if len(ids) < 2:
            report.drop(ALONE if ids else "lines without a list of ids", place)
        for line_id in ids:
            yield Turn(utterances[line_id]) if line_id in utterances else None
        yield None
        if missing := sum(line_id not in utterances for line_id in ids):
            report.drop("ids that are not in movie_lines.txt", place, missing)


def read_parallel(paths: tuple[Path, ...], name: str, report: Report, charset: str | None = None) -> Iterator[Pair]:
    """Yield line i of the first file with line i of the second. Raises UserError when one has more lines."""
    with contextlib.ExitStack() as stack:
        sides, opened = [], []
        for path in paths:
            side = open_text_files(path, one_line(str(path)), report, charset=charset)
            sides.append(stack.enter_context(contextlib.closing(side)))
            opened.append(next(side))
            report.note("parallel", opened[-1].charset)
        yield from _aligned(opened[0], opened[1], report)
        for side, text in zip(sides, opened, strict=True):
            if next(side, None) is not None:
                raise UserError(f"{text.place}: the archive contains more than one file; unpack it and give one")


def _aligned(questions: TextFile, answers: TextFile, report: Report) -> Iterator[Pair]:
    questions_read = answers_read = 0
    for (number, question), (answer_number, answer) in zip_longest(
        lines(questions, report), lines(answers, report), fillvalue=(0, None)
    ):
        questions_read, answers_read = max(questions_read, number), max(answers_read, answer_number)
        if question is None or answer is None:
            continue  # counted by `lines`, or the end of the shorter file
        if question or answer:
            yield question, answer, NEW
    if questions_read != answers_read:
        raise UserError(
            f"{questions.place} has {counted(questions_read, 'line')} and {answers.place} has {answers_read:,}; "
            "line i of the second answers line i of the first, so the numbers must be equal"
        )

"""The formats, and detection of a text's format: the name of the file is evidence, the content is proof.

A layout that no other text has is recognised under any name. A name such as chats.csv decides where the content could
be a table as well as prose, and a name that the content contradicts, such as that of a .json file without JSON, is an
error. Where neither tells enough, the format is in doubt: the first pairs are shown, and the user names the format.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.formats import chat_logs, corpora, line_pairs, questions, subtitles
from chatbot.corpus.reading.formats.dialect import TABLE_ENDINGS, dialect_of, nearest, odd_separator
from chatbot.corpus.reading.formats.json_files import is_json, is_json_lines, read_json, read_json_lines
from chatbot.corpus.reading.formats.message_rows import is_messages, read_message_rows
from chatbot.corpus.reading.formats.tables import is_csv, is_tsv, read_csv, read_tsv
from chatbot.corpus.reading.formats.telegram import is_telegram, read_telegram
from chatbot.corpus.reading.formats.yaml_files import is_yaml, read_yaml
from chatbot.corpus.reading.open.charset import CONTROL
from chatbot.corpus.reading.open.text_file import TextFile
from chatbot.corpus.reading.report import DETECTED, ReadOptions, Report
from chatbot.errors import UserError


class Format(NamedTuple):
    """A format of texts."""

    name: str
    read: Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]
    matches: Callable[[TextFile], bool | str]  # whether a text has this format; if in doubt, why


# Endings of names that promise a format, and what the text lacks without it.
PROMISES = {
    **dict.fromkeys(("json", "jsonl", "ndjson"), ("not JSON", ", such as tsv")),
    **dict.fromkeys(("srt", "vtt", "ass", "ssa"), ("no times of subtitles", "")),
}
# A statement of a programming language: its end, or its first word.
_CODE = re.compile(
    r".*(?:[;{}]|\):)$|(?:import|from|def|class|return|function|const|var|let|print|#include|public|private) ?[\w(<\"]"
)


def _is_misnamed(text: TextFile) -> bool:
    """Raise UserError for a text without JSON in a file named .json, and for subtitles without times."""
    if text.ending in PROMISES:
        lacks, example = PROMISES[text.ending]
        first = next((line.strip() for line in text.first_lines if line.strip()), "")
        begins = f"it begins with {one_line(first, 30)!r}" if first else "it is empty"
        raise UserError(f"{text.place}: named .{text.ending}, but {lacks}: {begins}; give --format{example}")
    return False


def is_program(text: TextFile) -> bool:
    """Return whether most lines are statements of a programming language, unless the name says that it is a table."""
    filled = [line.strip()[:1000] for line in text.first_lines if line.strip()]
    statements = sum(_CODE.match(line) is not None for line in filled)
    return statements * 2 >= len(filled) > 0 and text.ending not in TABLE_ENDINGS


# Stages of detection: the formats in the order in which they are tried, and whether the text is of none if all fail.
STAGES: tuple[tuple[tuple[Format, ...], Callable[[TextFile], bool]], ...] = (
    (  # layouts that no other text has
        (
            Format("ass", subtitles.read_ass, subtitles.is_ass),
            Format("srt", subtitles.read_srt, subtitles.is_srt),
            Format("whatsapp", chat_logs.read_whatsapp, chat_logs.is_whatsapp),
            Format("qq", chat_logs.reader_of("qq"), chat_logs.is_qq),
            Format("telegram", read_telegram, is_telegram),
            Format("jsonl", read_json_lines, is_json_lines),
            Format("json", read_json, is_json),
        ),
        _is_misnamed,
    ),
    (
        (
            *(Format(name, chat_logs.reader_of(name), chat_logs.matcher_of(name)) for name in chat_logs.APPLICATIONS),
            Format("conv", corpora.read_conv, corpora.is_conv),
            Format("yaml", read_yaml, is_yaml),
            Format("template", corpora.read_template, corpora.is_template),
            Format("ubuntu", corpora.read_ubuntu, corpora.is_ubuntu),
            Format("messages", read_message_rows, is_messages),
            Format("qa", questions.read_question_lines, questions.is_question_lines),
            Format("eou", corpora.read_eou, corpora.is_eou),
        ),
        is_program,
    ),
    (
        (
            Format("douban", corpora.read_douban, corpora.is_douban),
            Format("tsv", read_tsv, is_tsv),
            Format("headings", questions.read_headings, questions.is_headings),
            Format("lines", line_pairs.read_line_pairs, line_pairs.is_line_pairs),
        ),
        lambda text: odd_separator(text.first_lines) != "",
    ),
    (
        (
            Format("csv", read_csv, is_csv),
            Format("speakers", chat_logs.read_speakers, chat_logs.is_speakers),
            Format("lines", line_pairs.read_line_pairs, line_pairs.may_be_line_pairs),
        ),
        lambda text: True,
    ),
)
FORMATS = {each.name: each for formats, _ in STAGES for each in formats}


def detect_format(text: TextFile, options: ReadOptions = DETECTED) -> tuple[str, str]:
    """Return the format of a text, "" if it is unknown, and why it may be another, "" if it is clear.

    options: with columns, the text is a table. Raises UserError if the content contradicts the name of the file.
    """
    filled = [line for line in text.first_lines if line.strip()]
    if sum("\0" in line for line in filled) * 2 >= len(filled):
        return "", ""  # blank, or a binary file, such as a picture
    for formats, ends in STAGES:
        for each in formats:
            if options.columns and each.name == "csv" and dialect_of(text.first_lines, sure=True):
                return "csv", ""
            if options.columns and each.name == "messages":
                continue
            if found := each.matches(text):
                return each.name, found if isinstance(found, str) else ""
        if ends(text) and not (options.columns and ends is is_program):
            break
    return "", ""


# The nearest guess for a text of no format: by format, whether a line fits, and what such a line has.
LINES: dict[str, tuple[Callable[[str], bool], str]] = {
    "whatsapp": (chat_logs.is_header_of_whatsapp, "a date, a time and a name"),
    "qq": (chat_logs.is_header_of_qq, "a date, a time and a name"),
    "srt": (subtitles.has_times, "two times with an arrow"),
    "qa": (questions.has_label, "a label such as Q: or A:"),
}
LEAST = 2  # lines or blocks that fit
UNTYPICAL = frozenset(CONTROL.decode("latin-1") + "\ufffd")  # characters that are in no text
BINARY = 0.1  # of the characters are such
# Texts that are no corpus, by their beginning, and what to do instead.
_OTHERS = tuple(
    (re.compile(rf"\s*(?:{pattern})", re.IGNORECASE), advice)
    for pattern, advice in (
        (r"<!doctype html|<html", "an HTML page: export the chat as text or JSON, or save its text"),
        (r"<\?xml", "an XML document: convert it to a table or to JSON"),
        (
            r"(--|/\*|insert into|create table|drop table|set )(?s:.*)(create table|insert into|values)",
            "an SQL dump: export the table as CSV",
        ),
    )
)


def refusal(text: TextFile) -> UserError:
    """Return the error about a file of unknown format, which names the one thing to do."""
    if text.binary:
        return UserError(f"{text.place}: {text.binary}")
    sample = text.first_lines
    if separator := odd_separator(sample):
        guess = f"the lines have {separator!r} once; if it separates question and answer, replace it by a tab"
    elif not (guess := _kind_of(text.sample)) and not is_program(text):
        guess = _nearest_talk(sample) or _nearest_table(sample)
    begins = f"it begins with {one_line(text.sample.strip(), 30)!r}"
    unknown = f"unknown format, {begins}; write one pair on each line: question, tab, answer"
    return UserError(f"{text.place}: {guess or unknown}")


def _kind_of(sample: str) -> str:
    """Return what a text is that is no corpus, and the remedy; "" for any other text. sample: its beginning."""
    for pattern, advice in _OTHERS:
        if pattern.match(sample):
            return f"it looks like {advice}"
    head = sample[:1000]
    if sum(character in UNTYPICAL for character in head) > BINARY * len(head):
        return "it looks like binary data: give a text file"
    return ""


def _nearest_talk(sample: Sequence[str]) -> str:
    lines = [line.strip() for line in sample]
    for name, (fits, content) in LINES.items():
        found = sum(map(fits, lines))
        if found >= LEAST:
            return f"nearest is {name}: {found:,} of the first {len(lines):,} lines have {content}; --format {name}"
    pairs, blocks = line_pairs.count_of_pairs(sample)
    if pairs >= max(LEAST, blocks / 2):  # lines_mostly.txt
        return f"nearest is lines: {pairs:,} of the first {blocks:,} blocks have two lines; --format lines"
    return ""


def _nearest_table(sample: Sequence[str]) -> str:
    filled = [line.strip() for line in sample if line.strip()]
    if any("\0" in line for line in filled):
        return ""
    with_tab = sum("\t" in line for line in filled)
    if with_tab:
        lines = f"{with_tab:,} of the first {len(filled):,} lines have a tab"
        return f"{lines}; if it separates question and answer, give --format tsv"
    if shape := nearest(sample):
        return (
            f"{shape.same:,} of the first {shape.total:,} lines have {shape.width} columns separated by "
            f"{shape.dialect.separator!r}, as prose may have; if it is a table, give --format csv"
        )
    return ""

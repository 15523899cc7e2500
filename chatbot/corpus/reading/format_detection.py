"""Detection of a text's format: the name of the file is evidence, the content is proof.

A layout that no other text has is recognised under any name. A name such as chats.csv decides where the content could
be a table as well as prose, and a name that the content contradicts, such as that of a .json file without JSON, is an
error. Where neither tells enough, the format is in doubt: the first pairs are shown, and the user names the format.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import orjson

from chatbot.corpus.reading.dialogues.chat_logs import DOUBTFUL, chat_log_of, format_of
from chatbot.corpus.reading.dialogues.douban import is_douban
from chatbot.corpus.reading.dialogues.headings import ENDINGS, QUESTIONS, questions_as_headings
from chatbot.corpus.reading.dialogues.line_pairs import doubt_of_line_pairs, is_line_pairs, may_be_line_pairs
from chatbot.corpus.reading.dialogues.marked_turns import is_eou, is_template, is_ubuntu
from chatbot.corpus.reading.dialogues.message_rows import delimiter_of_messages
from chatbot.corpus.reading.dialogues.nearest_talk import is_program
from chatbot.corpus.reading.dialogues.qq import is_qq
from chatbot.corpus.reading.dialogues.question_lines import is_question_lines
from chatbot.corpus.reading.dialogues.speakers import speakers_of
from chatbot.corpus.reading.dialogues.subtitles import is_ass, is_srt
from chatbot.corpus.reading.dialogues.telegram import is_telegram
from chatbot.corpus.reading.dialogues.whatsapp import is_whatsapp
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import DETECTED, ReadOptions
from chatbot.corpus.reading.tables.dialect import dialect_of
from chatbot.corpus.reading.tables.nearest_table import odd_separator
from chatbot.corpus.reading.values.yaml_document import is_yaml
from chatbot.errors import UserError

JSON_START = re.compile(r"[\[{]\s*([\"'\[\]{}]|$)")
JSON_COMMENT = ("//", "/*", "*", "#")

# The endings of names that are evidence of a format; those of Markdown and of tables are read below.
JSON = ("json", "jsonl", "ndjson")
SUBTITLES = ("srt", "vtt", "ass", "ssa")
TABLES = {"csv": "csv", "tsv": "tsv", "tab": "tsv"}

# Layouts that no other text has, in the order in which they are tried.
EXPORTS: dict[str, Callable[[Sequence[str]], bool]] = {
    "ass": is_ass,
    "srt": is_srt,
    "whatsapp": is_whatsapp,
    "qq": is_qq,
}


class Detection(NamedTuple):
    """The format of a text."""

    format: str
    doubt: str = ""  # why it may be another one, "" if it is clear


def detect_format(text: TextFile, options: ReadOptions = DETECTED) -> Detection | None:
    """Return the format of a text, None if it is unknown. options: with columns, the text is a table.

    Raises UserError if the content contradicts the name of the file.
    """
    sample = first_lines(text)
    lines = [line.strip("\r\n ") for line in sample if line.strip()]
    if sum("\0" in line for line in lines) * 2 >= len(lines):
        return None  # blank, or a binary file, such as a picture
    for name, is_format in EXPORTS.items():
        if is_format(sample):
            return Detection(name)
    if (json_format := _json_format(lines, text.ending)) is not None:
        return Detection("telegram" if is_telegram(text.sample) else json_format)
    _check_name(text, lines)
    if (layout := chat_log_of(sample)) is not None:
        return Detection(format_of(layout), "these may be other lines with times" if layout in DOUBTFUL else "")
    if sum(line in ("E", "M") or line.startswith("M ") for line in lines) >= 0.9 * len(lines):
        return Detection("conv")
    if text.ending not in ENDINGS and is_yaml(sample, text.ending):
        return Detection("yaml")
    if is_template(text.sample):
        return Detection("template")
    if is_ubuntu(sample):
        return Detection("ubuntu")
    if not options.columns and delimiter_of_messages(sample) is not None:
        return Detection("messages")
    if is_question_lines(sample):
        return Detection("qa")
    if is_eou(sample):
        return Detection("eou")
    if is_program(sample) and not options.columns and text.ending not in TABLES:
        return None
    return _table(text, sample, options) or _lines(text, sample)


def _check_name(text: TextFile, lines: Sequence[str]) -> None:
    """Raise UserError for a text without JSON in a file named .json, and for subtitles without times."""
    begins = f"it begins with {one_line(lines[0].strip(), 30)!r}" if lines else "it is empty"
    if text.ending in JSON:
        raise UserError(f"{text.place}: named .{text.ending}, but not JSON: {begins}; give --format, such as tsv")
    if text.ending in SUBTITLES:
        raise UserError(f"{text.place}: named .{text.ending}, but no times of subtitles: {begins}; give --format")


def _table(text: TextFile, sample: Sequence[str], options: ReadOptions) -> Detection | None:
    filled = [line for line in sample if line.strip()]
    if sum("\t" in line.lstrip() for line in filled) * 2 >= len(filled):
        return Detection("douban" if is_douban(sample) else "tsv")
    if (headings := _headings(text, sample)) is not None:
        return headings
    named = text.ending in TABLES
    if not named and is_line_pairs(sample, text.whole):
        return Detection("lines", doubt_of_line_pairs(sample))
    if odd_separator(sample):
        return None
    return Detection("csv") if dialect_of(sample, sure=bool(options.columns), named=named) is not None else None


def _headings(text: TextFile, sample: Sequence[str]) -> Detection | None:
    """Raises UserError for a file of Markdown or Org without questions."""
    answered, headings, choices = questions_as_headings(sample)
    named = text.ending in ENDINGS
    if answered >= QUESTIONS:
        few = f"only {answered:,} of {headings:,} headings are questions" if answered * 2 < headings else ""
        return Detection("headings", "the answers may be choices" if choices else few)
    if dialect_of(sample) is not None:  # such as a table of Markdown
        return None
    if named and answered:
        return Detection("headings", f"only {answered:,} of {headings:,} headings are questions")
    if named and headings:
        raise UserError(
            f"{text.place}: no question is a heading of this .{text.ending}; give "
            "a table alone, or lines with Q: and A:"
        )
    return None


def _lines(text: TextFile, sample: Sequence[str]) -> Detection | None:
    """Return the format of lines that are speech, which is always in doubt."""
    if odd_separator(sample):
        return None
    if speakers_of(sample):
        return Detection("speakers", "the lines begin with names, as in a chat")
    if may_be_line_pairs(sample):
        return Detection("lines", "each two lines may be a pair")
    return None


def _json_format(lines: list[str], ending: str) -> str | None:
    if ending == "json":
        lines = [*itertools.dropwhile(lambda line: line.startswith(JSON_COMMENT), lines)] or lines
    values = [_value(line) for line in lines if line[0] in "[{"]
    complete = [value for value in values if value is not None]
    if len(lines) == 1 and complete:
        # A single line is valid in both formats; only a document is a list of conversations.
        utterances = isinstance(complete[0], list) and not any(isinstance(item, list | dict) for item in complete[0])
        return "jsonl" if utterances or isinstance(complete[0], dict) else "json"
    # In a document of several lines, only the last value can be a complete line: the others end in a comma.
    if complete and (_value(lines[0]) is not None or len(complete) * 2 >= len(lines)):
        return "jsonl"
    return "json" if JSON_START.match(lines[0]) and "\t" not in lines[0].strip() else None


def _value(line: str) -> list[object] | dict[str, object] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list | dict) else None

"""Detection of a text's format from its content, not from the file name."""

import re
from collections.abc import Callable, Sequence

import orjson

from chatbot.corpus.reading.dialogues.douban import is_douban
from chatbot.corpus.reading.dialogues.line_pairs import is_line_pairs
from chatbot.corpus.reading.dialogues.message_rows import delimiter_of_messages
from chatbot.corpus.reading.dialogues.qq import is_qq
from chatbot.corpus.reading.dialogues.question_lines import is_question_lines
from chatbot.corpus.reading.dialogues.subtitles import is_ass, is_srt
from chatbot.corpus.reading.dialogues.telegram import is_telegram
from chatbot.corpus.reading.dialogues.whatsapp import is_whatsapp
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import DETECTED, ReadOptions
from chatbot.corpus.reading.tables.dialect import dialect_of, nearest

YAML_START = re.compile(r"(categories|conversations)\s*:|-( +- | +\[|\s*$)")
JSON_START = re.compile(r"[\[{]\s*([\"\[\]{}]|$)")


# Layouts that no other text has, in the order in which they are tried.
EXPORTS: dict[str, Callable[[Sequence[str]], bool]] = {
    "ass": is_ass,
    "srt": is_srt,
    "whatsapp": is_whatsapp,
    "qq": is_qq,
}


def detect_format(text: TextFile, options: ReadOptions = DETECTED) -> str | None:
    """Return the name of the format, or None if it is unknown. options: with columns, the text is a table."""
    sample = first_lines(text)
    lines = [line.strip("\r\n ") for line in sample if line.strip()]
    if sum("\0" in line for line in lines) * 2 >= len(lines):
        return None  # blank, or a binary file, such as a picture
    for name, is_format in EXPORTS.items():
        if is_format(sample):
            return name
    if (json_format := _json_format(lines)) is not None:
        return "telegram" if is_telegram(text.sample) else json_format
    if sum(line in ("E", "M") or line.startswith("M ") for line in lines) >= 0.9 * len(lines):
        return "conv"
    first = next((line for line in lines if not line.startswith(("#", "---", "%YAML"))), "")
    if YAML_START.match(first) and "\t" not in first:
        return "yaml"
    if not options.columns and delimiter_of_messages(sample) is not None:
        return "messages"
    if is_question_lines(sample):
        return "qa"
    if sum("\t" in line.lstrip() for line in lines) * 2 >= len(lines):
        return "douban" if is_douban(sample) else "tsv"
    if is_line_pairs(sample, text.whole):
        return "lines"
    return "csv" if dialect_of(sample, sure=bool(options.columns)) is not None else None


def nearest_format(text: TextFile) -> str:
    """Return the nearest guess for a text of unknown format and the flag that settles it; "" without a guess."""
    sample = first_lines(text)
    if any("\0" in line for line in sample):
        return ""
    with_tab = sum("\t" in line.lstrip() for line in sample)
    if with_tab:
        return f"nearest is tsv: {with_tab:,} of the first {len(sample):,} lines have a tab; if it is, --format tsv"
    if shape := nearest(sample):
        return (
            f"nearest is csv: {shape.same:,} of the first {shape.total:,} lines have {shape.width} columns separated "
            f"by {shape.dialect.separator!r}, as prose may have; if it is a table, --format csv"
        )
    return ""


def _json_format(lines: list[str]) -> str | None:
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

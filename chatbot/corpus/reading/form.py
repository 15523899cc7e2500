"""Which format a text has, told from its beginning and never from its name."""

import re

import orjson

from chatbot.corpus.reading.csv_rows import delimiter_of
from chatbot.corpus.reading.text import Text, first_lines

YAML_START = re.compile(r"(categories|conversations)\s*:|-( +- | +\[|\s*$)")
JSON_START = re.compile(r"[\[{]\s*([\"\[\]{}]|$)")


def format_of(text: Text) -> str | None:
    """The name of its format, or None for one that is not known."""
    sample = first_lines(text)
    lines = [line.strip("\r\n ") for line in sample if line.strip()]
    if sum("\0" in line for line in lines) * 2 >= len(lines):
        return None  # a picture or a program: its line ends and tabs are chance
    if (form := _json_form(lines)) is not None:
        return form
    if sum(line == "E" or line.startswith("M ") for line in lines) >= 0.9 * len(lines):
        return "conv"
    first = next((line for line in lines if not line.startswith(("#", "---", "%YAML"))), "")
    if YAML_START.match(first) and "\t" not in first:
        return "yaml"
    if sum("\t" in line for line in lines) * 2 >= len(lines):
        return "tsv"
    return "csv" if delimiter_of(sample) is not None else None


def _json_form(lines: list[str]) -> str | None:
    values = [_value(line) for line in lines if line[0] in "[{"]
    complete = [value for value in values if value is not None]
    if len(lines) == 1 and complete:
        # One line is either; a list of conversations is a document.
        utterances = isinstance(complete[0], list) and not any(isinstance(item, list | dict) for item in complete[0])
        return "jsonl" if utterances or isinstance(complete[0], dict) else "json"
    # A document in several lines has at most its last value complete in a line: the others end in a comma.
    if complete and (_value(lines[0]) is not None or len(complete) * 2 >= len(lines)):
        return "jsonl"
    return "json" if JSON_START.match(lines[0]) and "\t" not in lines[0].strip() else None


def _value(line: str) -> list[object] | dict[str, object] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list | dict) else None

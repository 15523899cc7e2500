"""The formats of texts, and which one a text has: exactly one signature fits, or the user is asked.

The name of a file is evidence, never proof: a table named .csv is one where its content could be prose as well, and a
.json file without JSON is an error. The modules of readers are imported where a line may be of their formats.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import orjson

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.rows import Dialect, Table, dialects_of, rows_of_text, sample_of, usual_width
from chatbot.corpus.reading.tables import Reading, of_header, pairs_of_table
from chatbot.corpus.reading.text_file import TextFile
from chatbot.display import one_line
from chatbot.errors import UserError

Read = Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]
Fits = Callable[[TextFile], bool]

_YAML_KEY = r"(?:[^\s:：\"'#-][^:：\n]{0,40}|\"[^\"\n]{0,60}\"|'[^'\n]{0,60}'):(?=\s|$)"
BEGINNING = 50  # filled lines, of which one shows that a format is possible
# What one of the first lines of a format begins with. The readers look closer.
LINES = {
    "ass": r"(?i:\[script info\]|\[events\])",
    "srt": r"WEBVTT|.{0,40}-->|(?i:<sami>)|\{\d+\}\{",
    "json": r"[\[{]",  # or jsonl
    "yaml": rf"-(\s|$)|{_YAML_KEY}",
    "heads": r".{0,80}\d{1,2}[:.]\d{2}",
    "conv": r"[EM](?: |$)",
    "template": r"<|### |\[",
    "parlai": r"text:|1 ",
    "douban": r"[01]\t",
    "qa": r".{1,40}[:：．、.】\]]",
    "eou": r".*__eou__",
}
MARKUP = ("md", "markdown", "org", "adoc", "rst")  # endings of names whose headings may be questions
NO_HEADS = "--head, but JSON and tables have no heads; leave it out"
STRUCTURED = ("ass", "srt", "json", "yaml")  # which may contain lines of any other format
# The least share of the rows with the same number of columns, by the name of a table and without it.
NAMED = 0.6
SAME_WIDTH = 0.95
# Endings of names that promise a format that is marked, and what the text lacks without it.
PROMISES = {
    **dict.fromkeys(("json", "jsonl", "ndjson"), "not JSON"),
    **dict.fromkeys(("srt", "vtt", "ass", "ssa"), "no times of subtitles"),
}


def _format(name: str) -> tuple[Fits, Read]:
    """Return whether a text has a format, and its reader."""
    if name in ("ass", "srt"):
        from chatbot.corpus.reading import subtitles

        return subtitles.is_ass if name == "ass" else subtitles.is_srt, subtitles.read_subtitles
    if name in ("jsonl", "json", "yaml"):
        from chatbot.corpus.reading import values

        reader = {"jsonl": values.read_json_lines, "json": values.read_json, "yaml": values.read_yaml}[name]
        return is_yaml, reader  # `_json_format` tells which JSON is there
    if name == "qa":
        from chatbot.corpus.reading import questions

        return questions.is_question_lines, questions.read_question_lines
    from chatbot.corpus.reading import lines, marked_text

    return {
        "conv": (lines.is_conv, lines.read_conv),
        "template": (marked_text.is_template, marked_text.read_template),
        "parlai": (lines.is_parlai, lines.read_parlai),
        "douban": (lines.is_douban, lines.read_douban),
        "eou": (lines.is_eou, lines.read_turns),
        "turns": (lambda text: False, lines.read_turns),
        "lines": (lambda text: lines.are_lines(text) is True, lines.read_lines),
    }[name]


class Detected(NamedTuple):
    """The format of a text."""

    name: str
    read: Read
    doubt: str = ""  # why it may be another one, with the flag that settles it


def reader_of(name: str) -> Read:
    """Return the reader of a format by its name."""
    if name in ("tsv", "csv"):
        return read_table
    if name in (*LINES, "jsonl", "lines", "turns"):
        return _format(name)[1]
    from chatbot.corpus.reading import heads

    return functools.partial(heads.read_heads, layout=heads.texts().get(name))


def detect(text: TextFile, options: ReadOptions) -> Detected | None:
    """Return the format of a text, the one that the user gave or that it has; None if it is unknown.

    Raises UserError if the content contradicts the name of the file.
    """
    if options.format:
        return Detected(options.format, reader_of(options.format))
    filled = [line for line in text.first_lines if line.strip()]
    if sum("\0" in line for line in filled) * 2 >= len(filled):
        return None  # blank, or a binary file, such as a picture
    found = _signed(text, filled[:BEGINNING], STRUCTURED)
    if options.head:
        if {*found} & {"jsonl", "json"} or division_of(text).header:
            raise UserError(f"{text.place}: {NO_HEADS}")
        return Detected("head", reader_of("head"))
    is_given = bool(options.columns or options.map)
    if not found and not is_given:
        found = _signed(text, filled[:BEGINNING], [name for name in LINES if name not in STRUCTURED])
    if text.ending in PROMISES and not {*found} & {"jsonl", "json", "srt", "ass"}:
        raise UserError(
            f"{text.place}: named .{text.ending}, but {PROMISES[text.ending]}: it begins with "
            f"{one_line(filled[0].strip(), 30)!r}; give --format"
        )
    if found:
        doubt = f"it may be {' or '.join(found)}; give --format {found[0]}" if len(found) > 1 else ""
        return Detected(found[0], reader_of(found[0]), doubt)
    table = division_of(text)
    is_sure = is_given or table.header is not None
    name, doubt = (table.format, "") if is_sure else _unsigned(text, table)
    read = functools.partial(read_table, table=table) if name == table.format else reader_of(name)
    return Detected(name, read, doubt) if name else None


def _signed(text: TextFile, beginning: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return those of these formats whose signature a text has."""
    found: list[str] = []
    for name in names:
        if not any(map(re.compile(LINES[name]).match, map(str.lstrip, beginning))):
            continue
        if name == "heads":
            from chatbot.corpus.reading import heads

            found += heads.formats_of(text)
        elif name == "json":
            found += filter(None, [_json_format(text)])
        elif _format(name)[0](text):
            found.append(name)
    return found


def _unsigned(text: TextFile, table: "Division") -> tuple[str, str]:
    """Return the format of a text without a signature, "" if it is unknown, and why it may be another."""
    is_prose = text.ending in MARKUP and not any(line.startswith("|") for line in text.first_lines)
    is_named = text.ending in ("csv", "tsv", "tab") and table.evenness >= NAMED
    is_table = not is_prose and (table.dialect.separator == "\t" or is_named)
    if is_table and table.sample and not re.match(LINES["heads"], table.sample[0][0]):
        return table.format, ""
    from chatbot.corpus.reading import heads, lines

    settled = "; if the pairs above are right, give"
    if (head := heads.usual_head(text)) and ("{name}" in head or not is_table):
        return "head", f"the lines begin with names or questions{settled} --head {head!r}"
    if is_table:
        return table.format, ""
    turns = lines.are_lines(text)
    if turns is True:
        return "lines", ""
    if not is_prose and table.evenness >= SAME_WIDTH:
        why = "nearly all lines have the same number of columns, as a table or prose may have"
        return "csv", f"{why}{settled} --format csv"
    return ("lines", f"{turns}{settled} --format lines") if turns else ("", "")


def read_table(text: TextFile, options: ReadOptions, report: Report, table: "Division | None" = None) -> Iterator[Pair]:
    """Yield the pairs of a table. table: how it is divided, if that is known."""
    table = table or division_of(text, options.format == "tsv")
    if not table.sample:
        return iter(())
    rows = rows_of_text(text, table.dialect, report)
    return pairs_of_table(Table(text.place, table.format, table.sample, rows), table.header, options, report)


class Division(NamedTuple):
    """How the lines of a text are divided into the cells of a table."""

    dialect: Dialect
    sample: list[list[str]]  # the first rows
    header: Reading | None  # how it is read, if its header is known
    evenness: float  # the share of the rows with the same number of columns, 0 of one column

    @property
    def format(self) -> str:
        """The name of its format."""
        return "tsv" if self.dialect.separator == "\t" else "csv"


def division_of(text: TextFile, has_tabs: bool = False) -> Division:
    """Return the division in which the header is known, or most rows have the same number of columns.

    has_tabs: whether the user says that tabs divide them.
    """
    divisions = []
    for dialect in dialects_of(text, has_tabs) or [Dialect(",")]:
        sample = sample_of(text, dialect)
        width, share = usual_width(sample)
        divisions.append(Division(dialect, sample, of_header(sample), share if width > 1 else 0.0))
    return max(divisions, key=lambda found: (found.header is not None, found.evenness * len(found.sample)))


_JSON_START = re.compile(r"[\[{]\s*([\"'\[\]{}]|$)")


def _json_format(text: TextFile) -> str | None:
    """Return "jsonl" if each line is a JSON value, or the only one an object or a list of utterances; else "json"."""
    filled = [line.strip("\r\n ") for line in text.first_lines if line.strip()]
    values = [_value(line) for line in filled if line[0] in "[{"]
    complete = [value for value in values if value is not None]
    if len(filled) == 1 and complete:
        # A single line is valid in both formats; only a document is a list of conversations.
        is_list = isinstance(complete[0], list) and any(isinstance(item, list | dict) for item in complete[0])
        return "json" if is_list else "jsonl"
    # In a document of several lines, only the last value can be a complete line: the others end in a comma.
    if complete and (_value(filled[0]) is not None or len(complete) * 2 >= len(filled)):
        return "jsonl"
    return "json" if _JSON_START.match(filled[0]) and "\t" not in filled[0] else None


def _value(line: str) -> list[object] | dict[str, object] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list | dict) else None


_YAML_START = re.compile(r"(categories|conversations)\s*:|-( +- | +\[|\s*$)")
_YAML_OBJECT = re.compile(rf"- +{_YAML_KEY}.*\n +{_YAML_KEY}")


def is_yaml(text: TextFile) -> bool:
    """Return whether the text is YAML: by its name and its first line, or as a list of lists or of objects."""
    filled = [*islice((s for s in text.first_lines if s.strip() and not s.startswith(("#", "---", "%YAML"))), 2)]
    first = filled[0] if filled else ""
    if "\t" in first or text.ending in MARKUP:
        return False
    named = text.ending in ("yaml", "yml") and re.match(rf"{_YAML_KEY}|-(\s|$)", first)
    return bool(named or _YAML_START.match(first.strip()) or _YAML_OBJECT.match("".join(filled)))


def refusal(text: TextFile) -> UserError:
    """Return the error about a text that is left out: of unknown format, damaged, or no text."""
    begins = one_line(text.sample.strip(), 30)
    remedy = "write one pair on each line: question, tab, answer; or give --format or --head"
    return UserError(
        f"{text.place}: {text.damage or f'unknown format, it begins with {begins!r}; {remedy}'}", text.details
    )

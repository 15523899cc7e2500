"""Texts of chats: a head with the name and often the time begins a message, and lines without one continue it.

A head is a pattern such as "{name} ({time}):" or "[{time}] {name}". Its fields are {name}, {time}, {id} of a person,
{text}, {question} for a line with the answer below it, and {any} for what is left out. White space stands for any. What
follows the last field on the line is the text, unless that field ends the pattern: then the text is on the lines below.
Where the name stands alone on the line below the time, the pattern has a line end.

The user gives a pattern with --head; heads.yaml declares those of applications and exporters.
"""

import dataclasses
import functools
import io
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.marked_text import speakers
from chatbot.corpus.reading.names import any_of, are_roles, expression, table_of
from chatbot.corpus.reading.questions import blocks, is_question, read_sections
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, is_rule, raw_lines
from chatbot.corpus.reading.texts import FUNCTIONS, have_codes
from chatbot.corpus.reading.turns import NOTICES, SYSTEM, Message, pairs_of_messages, pairs_of_roles
from chatbot.display import one_line
from chatbot.errors import UserError

LONGEST_HEAD = 200  # characters
MESSAGES, SHARE = 2, 0.1  # at least, and of the lines: a message may have many
FEW_SPEAKERS = 20
_MARKS = any_of("marks")
_FIELDS = {name: expression(pattern) for name, pattern in table_of("heads.yaml")["fields"].items()}
_KNOWN = " and ".join(", ".join(_FIELDS).rsplit(", ", 1))
_SPACE = r"(?<![^\S\n])[^\S\n]+(?![^\S\n])"  # all of it, so that a line of spaces takes no quadratic time
USUAL: Sequence[str] = table_of("heads.yaml")["usual"]
_BETWEEN = ("date", "end", "notice")  # lines between messages


class Heads(NamedTuple):
    """A row of heads.yaml."""

    format: str
    heads: Sequence[str]
    proof: re.Pattern[str] | None
    between: re.Pattern[str]  # with a group of the name of each kind
    no_text: re.Pattern[str]
    removed: re.Pattern[str]
    finish: Callable[[str], str]
    separate: bool

    def text_of(self, content: str) -> str:
        """Return the text of a message, "" for one without."""
        if self.no_text.fullmatch(content):
            return ""
        return self.finish(self.removed.sub("", content).strip())


def _of_qqnt(content: str) -> str:
    """Return the parts of a message of QQNT_Export that are text: [文本], the text, [图片], ..."""
    parts = re.split(r"^((?:\[[^\[\]\n]{1,20}\])+)[^\S\n]*$", content, flags=re.MULTILINE)
    return "\n".join(text.strip() for kind, text in zip(parts[1::2], parts[2::2], strict=True) if kind == "[文本]")


def _unquoted(content: str) -> str:
    return content[1:-1] if "\n" in content and content[0] == content[-1] == '"' else content


_FINISH: dict[str, Callable[[str], str]] = {**FUNCTIONS, "of_qqnt": _of_qqnt, "unquoted": _unquoted, "": str}


@functools.cache
def texts() -> dict[str, Heads]:
    """Return the rows of heads.yaml by their formats."""
    return {row["format"]: _heads(row) for row in table_of("heads.yaml")["texts"]}


def _heads(row: Mapping[str, Any]) -> Heads:
    def pattern(text: str) -> re.Pattern[str]:
        return re.compile(expression(text) or "(?!)")

    return Heads(
        format=row.get("format", ""),
        heads=row.get("heads", ()),
        proof=pattern(row["proof"]) if "proof" in row else None,
        between=pattern("|".join(f"(?P<{kind}>{row[kind]})" for kind in _BETWEEN if kind in row)),
        no_text=pattern(row.get("no_text", "")),
        removed=pattern(row.get("removed", "")),
        finish=_FINISH[row.get("finish", "")],
        separate=row.get("separate", False),
    )


def _undeclared(head: str) -> Heads:
    """Return the row of a text that no row declares: other lines that begin with its time are the application's."""
    begins = re.match(r"([^{]*)\{(time|clock)\}", head)
    return _heads({"notice": f"{re.escape(begins[1])}<{begins[2]}>.*"} if begins else {})


@functools.lru_cache(maxsize=256)
def compiled(head: str) -> "re.Pattern[str]":
    """Return the pattern of a head. Raises UserError for one that has no name and no question, or unknown fields."""
    shown = f"--head {one_line(head, 40)!r}"
    fields = re.findall(r"\{([^{}]*)\}", head)
    if not {"name", "question"} & {*fields}:
        raise UserError(f"{shown}: no {{name}}; write one such as '{{name}} ({{time}}):', with {_KNOWN}")
    if not {*fields} <= _FIELDS.keys() or len({*fields} - {"any"}) < len([field for field in fields if field != "any"]):
        raise UserError(f"{shown}: its fields may be {_KNOWN}, each once in braces")
    pattern = ""
    for part in re.split(r"(\{[^{}]*\}|[ \t]+|\n)", head.replace("\\n", "\n")):
        if part[:1] == "{":
            pattern += _FIELDS[part[1:-1]]
        elif part.strip():
            pattern += re.escape(part).replace(":", "[:：]").replace(r"\(", "[(（]").replace(r"\)", "[)）]")
        elif part:
            pattern += part if part in ("\n", "\t") else _SPACE
    if not head.endswith("}") and "text" not in fields:
        pattern = pattern.removesuffix(_SPACE) + r"[^\S\n]*(?P<text>.*)"
    pattern = pattern.replace(_SPACE + r"(?P<text>", r"[^\S\n]*(?P<text>")
    return re.compile(rf"[{_MARKS}~]*{pattern}\s*", re.DOTALL)


Match = re.Match[str]


def _match(pattern: "re.Pattern[str]", line: str, following: str = "") -> Match | None:
    """Return the head that a line is, or that it is with the following one if the pattern has a line end."""
    both = f"{line[:LONGEST_HEAD]}\n{following[:LONGEST_HEAD]}" if "\n" in pattern.pattern else line[:LONGEST_HEAD]
    return pattern.fullmatch(both) if line else None


def _matches(head: str, lines: Iterable[str]) -> Iterator[tuple[int, Match]]:
    """Yield (number from 0, match) of the lines that are heads, but for those of a program's log."""
    pattern = compiled(head)
    for number, (line, following) in enumerate(pairwise(chain(lines, ("",)))):
        match = _match(pattern, line, following)
        if match and not _LEVEL.search(match.groupdict("").get("name", "")):
            yield number, match


def _bare_lines(text: TextFile) -> list[str]:
    return [line.rstrip("\r\n") for line in text.first_lines]


def formats_of(text: TextFile) -> list[str]:
    """Return the formats whose heads begin messages of a text; those with a proof come alone, and in a log."""
    found = [layout for layout in texts().values() if _fits(layout, text)]
    proven = [layout for layout in found if layout.proof]
    return [layout.format for layout in proven or (found if text.ending != "log" else ())]


def _fits(layout: Heads, text: TextFile) -> bool:
    raw = _bare_lines(text)
    filled = sum(map(bool, map(str.strip, raw)))
    if layout.proof and not any(layout.proof.fullmatch(line[:LONGEST_HEAD].strip(_MARKS)) for line in raw):
        return False
    _, matches = _best(layout.heads, raw)
    if len(matches) < max(MESSAGES, SHARE * filled):
        return False
    if layout.separate and not all(_ID.fullmatch(match["name"]) for _, match in matches):
        return all(place == 0 or not raw[place - 1].strip() for place, _ in matches)
    return True


_ID = re.compile(
    r"(?:【[^】]{1,20}】)*(?P<name>.*?)\s*(?:[(（](?P<id>[^()（）]{1,80})[)）]|<(?P<address>[^<>\s]{3,80})>)"
)
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")  # of a program's log


def _best(heads: Sequence[str], sample: Sequence[str]) -> tuple[str, list[tuple[int, Match]]]:
    """Return the head that most of these lines have, and its matches; of several, the first."""
    return max(((head, [*_matches(head, sample)]) for head in heads), key=lambda found: len(found[1]))


def usual_head(text: TextFile) -> str:
    """Return a head that repeats in a text, with names that repeat, or the one of most questions; "" without one."""
    filled = [line for line in _bare_lines(text) if line.strip()]
    answered = {"": 1}  # questions with text below; a single one may stand anywhere
    for head in USUAL:
        matches = [*_matches(head, filled)]
        if "{question}" in head:
            others = {len(filled), *(place for place, _ in matches)}
            answered[head] = sum(is_question(match["question"]) and place + 1 not in others for place, match in matches)
            continue
        counts = Counter(match["name"].strip() for _, match in matches)
        repeated = sum(count for count in counts.values() if count > 1)
        are_names = 1 < len(counts) <= FEW_SPEAKERS and not any(_NO_NAME.search(name) for name in counts)
        ends = [match.string[match.start("name") : match.end("name") + 3] for _, match in matches]
        are_times = sum(map(bool, map(_TIME.search, ends))) * 2 > len(ends)  # which may end behind what seems a name
        if are_names and not are_times and repeated and repeated * 2.5 >= len(filled):
            return "" if have_codes(match.groupdict("").get("text", "") for _, match in matches) else head
    return max(answered, key=lambda head: answered[head])


_TIME = re.compile(expression(r"<date>|(?<!\d)\d{1,2}[:：]\d{2}"))
_NO_NAME = re.compile(r"[,，。！？!?=\"{}]|//|\[\d|^/")


def read_heads(text: TextFile, options: ReadOptions, report: Report, layout: Heads | None = None) -> Iterator[Pair]:
    """Yield the pairs of a text whose messages begin with `options.head` or with a head of this layout.

    Raises UserError if `options.me` wrote no message.
    """
    heads = [options.head] if options.head else layout.heads if layout else [usual_head(text) or USUAL[0]]
    head, matches = _best(heads, _bare_lines(text))
    if not matches:
        raise UserError(f"{text.place}: no line has the head {one_line(head, 60)!r}; copy one from the file")
    pattern = compiled(head)
    if "{question}" in head:
        yield from read_sections(text, lambda line: _match(pattern, line), report)
        return
    report.has_names = True
    with io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", newline="") as copy:
        known: set[str] | None = None  # names that begin messages, where nothing else tells a head from a text
        names = {match["name"].strip() for _, match in matches}
        if not {"time", "clock", "id"} & pattern.groupindex.keys():
            shutil.copyfileobj(text.stream, copy)
            text = dataclasses.replace(text, stream=copy)
            known = names = _names_in(text, head)
            copy.seek(0)
        messages = _messages(text, layout or _undeclared(head), pattern, known, report)
        if are_roles(names) and not options.me:
            said = (message and (message.names[0], message.text) for message in messages)
            yield from pairs_of_roles(said, functools.partial(report.drop, place=text.place))
        else:
            yield from pairs_of_messages(messages, options, report, text.place)


def _names_in(text: TextFile, head: str) -> set[str]:
    """Return the names that begin messages in all of a text."""
    text.stream.seek(0)
    lines = (line.rstrip("\r\n") for line in raw_lines(text, Report()))
    counts = Counter(match["name"].strip() for _, match in _matches(head, lines))
    text.stream.seek(0)
    return speakers(counts, sum(map(bool, map(str.strip, raw_lines(text, Report())))))


def _messages(
    text: TextFile, layout: Heads, pattern: "re.Pattern[str]", known: set[str] | None, report: Report
) -> Iterator[Message | None]:
    """Yield the messages, and None where a conversation ends or a line is missing."""

    def begins(line: str, following: str) -> Sequence[tuple[str, str, Match | None]]:
        """Return (kind, line, head) of a line that is not of the text of a message."""
        head = _match(pattern, line, following)
        if head and (known is None or head["name"].strip() in known):
            return (("message", line, head),)
        bare = line[:LONGEST_HEAD].strip(_MARKS)
        between = layout.between.fullmatch(bare)
        if between or (not layout.format and is_rule(line)):
            return (((between and between.lastgroup) or "end", bare, None),)
        return ()

    date = ""
    for block in blocks(text, begins, report):
        kind, line, head = block.begin if block else ("end", "", None)
        if kind == "end":
            yield None
        elif kind == "date":
            date = line
        elif block and head:
            message = _message(head, line, block.lines["\n" in pattern.pattern :], date)
            yield message._replace(text=layout.text_of(message.text))
        elif block:
            report.drop(NOTICES, block.place)


def _message(head: Match, line: str, below: Sequence[str], date: str) -> Message:
    """Return the message that a head begins. date: of the lines above, for a clock without one."""
    groups = head.groupdict("")
    name = groups["name"].strip(f"{_MARKS}\u00a0 ").removesuffix(" (pinned)")
    number = groups.get("id", "")
    if identified := _ID.fullmatch(name):
        name = identified["name"]
        number = identified["id"] or identified["address"]
    time = groups.get("time") or f"{date} {groups.get('clock', '')}".strip()
    content = groups.get("text", "") + (line[LONGEST_HEAD:] if "text" in groups else "")
    names = tuple(filter(None, (name, number))) or ("",)
    return Message(name if name in SYSTEM else number or name, names, time, "\n".join([content, *below]).strip())

"""Texts of chats: a head with the name and often the time begins a message, and lines without one continue it.

A head is a pattern such as "{name} ({time}):" or "[{time}] {name}". Its fields are {name}, {time}, {id} of a person,
{text}, {question} for a line with the answer below it, and {any} for what is left out. White space stands for any. What
follows the last field on the line is the text, unless that field ends the pattern: then the text is on the lines below.
Where the name stands alone on the line below the time, the pattern has a line end.

The user gives a pattern with --head; those of applications and exporters are declared here.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading.blocks import blocks
from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.detect import has_header, is_json, is_json_lines
from chatbot.corpus.reading.layouts import FUNCTIONS, rows_of_yaml
from chatbot.corpus.reading.marked_text import speakers
from chatbot.corpus.reading.messages import NOTICES, SYSTEM, Message, pairs_of_messages
from chatbot.corpus.reading.questions import is_question, read_sections
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, is_rule, lines
from chatbot.corpus.reading.times import HALF, MONTHS
from chatbot.display import one_line
from chatbot.errors import UserError

LONGEST_HEAD = 200  # characters
MESSAGES, SHARE = 2, 0.1  # at least, and of the lines: a message may have many
FEW_SPEAKERS = 20
# The marks of the direction of writing also stand in front of WhatsApp's own words.
_MARKS = "\u200e\u200f\u202a\u202c\u2068\u2069\ufeff"
_CLOCK = rf"(?:(?:{HALF})\s?)?\d{{1,2}}[:.]\d{{2}}(?:[:.]\d{{2}}(?:[.,]\d{{1,9}})?)?(?:\s?(?:{HALF}))?"
_DATE = (
    rf"(?:\d{{1,4}}[{_MARKS}]?\s?[-/.년年]\s?(?:\d{{1,2}}|[A-Z][a-z]{{2}})[{_MARKS}]?\s?[-/.월月]\s?\d{{1,4}}[일日.]?"
    rf"|(?:{'|'.join(map(str.title, MONTHS))})\s\d{{1,2}},\s\d{{4}})"
)
_TIME = rf"{_DATE}[,،]?(?:T|\s+)(?:(?:um|at|à|às|kl\.?|klo|ب)\s)?{_CLOCK}"
_FIELDS = {
    "name": r'(?P<name>[^\n\t"“”„]{1,60}?)',
    "time": rf"(?P<time>{_TIME})",
    "clock": rf"(?P<clock>{_CLOCK})",
    "number": r"[(（]?(?:\d{1,4}|[一二三四五六七八九十百]{1,5})[.、)）．]\s*",
    "id": r"(?P<id>[^\s()（）<>]{3,80})",
    "text": r"(?P<text>.*)",
    "question": r"(?P<question>\S[^\n]*?)",
    "any": r"[^\n]{0,100}?",
}
_SPACE = r"(?<![^\S\n])[^\S\n]+(?![^\S\n])"  # all of it, so that a line of spaces takes no quadratic time
_KNOWN = "name, time, clock, id, text, question, number and any"


_NOTHING = re.compile("(?!)")


class Heads(NamedTuple):
    """A row of heads.yaml, with compiled expressions."""

    format: str = ""
    heads: Sequence[str] = ()
    proof: re.Pattern[str] | None = None
    dates: re.Pattern[str] = _NOTHING
    notices: re.Pattern[str] = _NOTHING
    no_text: re.Pattern[str] = _NOTHING
    ends: re.Pattern[str] = _NOTHING
    finish: Callable[[str], str] = str
    separate: bool = False


def _of_qqnt(content: str) -> str:
    """Return the parts of a message of QQNT_Export that are text: [文本], the text, [图片], ..."""
    parts = re.split(r"^((?:\[[^\[\]\n]{1,20}\])+)[^\S\n]*$", content, flags=re.MULTILINE)
    return "\n".join(text.strip() for kind, text in zip(parts[1::2], parts[2::2], strict=True) if kind == "[文本]")


def _of_qce(content: str) -> str:
    """Return the text of a message of qq-chat-exporter, which stands between other fields."""
    text = content.partition("内容: ")[2]
    text = re.split(r"\n(?:资源: \d+ 个文件|提及: |回复: )", text)[0].strip()
    return "" if re.fullmatch(r"\[[^\[\]]{1,30}(?:消息|内容)\]", text) else text


def _unquoted(content: str) -> str:
    return content[1:-1] if "\n" in content and content[0] == content[-1] == '"' else content


_WHATSAPP_ADDED = re.compile(  # at the end of a text: an attachment with a caption, an edited message
    r"(?:(?<!\s)\s+)?(?:\u200e<[^<>]{3,120}>"
    r"|<(?:This message was edited|此消息已编辑|此訊息已編輯|Diese Nachricht wurde bearbeitet)>)$"
)


def _of_whatsapp(content: str) -> str:
    return _WHATSAPP_ADDED.sub("", content.strip(_MARKS)).strip(_MARKS)


_DAY = r"\d{4}\s?[년/.年-]\s?\d{1,2}\s?[월/.月-]\s?\d{1,2}"
_FINISH = {**FUNCTIONS, "of_qqnt": _of_qqnt, "of_qce": _of_qce, "of_whatsapp": _of_whatsapp, "unquoted": _unquoted}


@functools.cache
def texts() -> dict[str, Heads]:
    """Return the rows of heads.yaml by their formats."""
    rows = rows_of_yaml("heads.yaml")
    return {row["format"]: Heads(**{name: _value(name, row[name]) for name in row.keys() - {"source"}}) for row in rows}


def _value(name: str, value: Any) -> Any:
    if name == "finish":
        return _FINISH[value]
    if name not in ("proof", "dates", "notices", "no_text", "ends"):
        return value
    for part, pattern in (("<time>", _TIME), ("<clock>", _CLOCK), ("<day>", _DAY), ("<marks>", _MARKS)):
        value = value.replace(part, pattern)
    return re.compile(value)


# Heads that other texts have, too, which the user is asked about.
USUAL = (
    *("[{time}] {name}: ", "[{clock}] {name}: ", "[{clock}] {name}", "{clock} <{name}> ", "{time} <{name}> "),
    *("<{name}> ", "[{name}] ", "{time} {name}: ", "{name}: "),
    *("# {question}", "## {number}{question}", "## {question}", "### {question}", "**{question}**"),
    *("* {question}", "{number}{question}"),
)


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
    if not head.endswith("}"):
        pattern = pattern.removesuffix(_SPACE) + r"[^\S\n]*(?P<text>.*)"
    pattern = pattern.replace(_SPACE + r"(?P<text>", r"[^\S\n]*(?P<text>")
    return re.compile(rf"[{_MARKS}~]*{pattern}\s*", re.DOTALL)


Match = re.Match[str]


def _match(pattern: "re.Pattern[str]", line: str, following: str = "") -> Match | None:
    """Return the head that a line is, or that it is with the following one if the pattern has a line end."""
    both = f"{line[:LONGEST_HEAD]}\n{following[:LONGEST_HEAD]}" if "\n" in pattern.pattern else line[:LONGEST_HEAD]
    return pattern.fullmatch(both) if line else None


def _matches(head: str, sample: Sequence[str]) -> list[tuple[int, Match]]:
    """Return (number from 0, match) of the lines that are heads, but for those of a program's log."""
    pattern = compiled(head)
    found = (
        (number, match)
        for number, (line, following) in enumerate(zip(sample, [*sample[1:], ""], strict=True))
        if (match := _match(pattern, line, following))
    )
    return [(n, match) for n, match in found if not _LEVEL.search(match.groupdict("").get("name", ""))]


def _bare_lines(text: TextFile) -> list[str]:
    return [line.rstrip("\r\n") for line in text.first_lines]


def formats_of(text: TextFile) -> list[str]:
    """Return the formats whose heads begin messages of a text; those with a proof come alone."""
    found = [layout for layout in texts().values() if _fits(layout, text)]
    proven = [layout for layout in found if layout.proof]
    return [layout.format for layout in proven or found]


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
    return max(((head, _matches(head, sample)) for head in heads), key=lambda found: len(found[1]))


def usual_head(text: TextFile) -> str:
    """Return a head that repeats in a text, with names that repeat or with questions; "" without one."""
    filled = [line for line in _bare_lines(text) if line.strip()]
    for head in USUAL:
        matches = [match for _, match in _matches(head, filled)]
        if "{question}" in head:
            asked = sum(is_question(match["question"]) for match in matches)
            if asked >= 2 and 2 * asked >= len(matches) and len(matches) * 2 <= len(filled):
                return head
            continue
        counts = Counter(match["name"].strip() for match in matches)
        repeated = sum(count for count in counts.values() if count > 1)
        are_names = 1 < len(counts) <= FEW_SPEAKERS and not any(_NO_NAME.search(name) for name in counts)
        if are_names and repeated and repeated * 2.5 >= len(filled):
            return head
    return ""


_NO_NAME = re.compile(r"[,，。！？!?=\"{}]|//")


def read_heads(text: TextFile, options: ReadOptions, report: Report, layout: Heads | None = None) -> Iterator[Pair]:
    """Yield the pairs of a text whose messages begin with `options.head` or with a head of this layout.

    Raises UserError if `options.me` wrote no message.
    """
    raw = _bare_lines(text)
    heads = [options.head] if options.head else layout.heads if layout else [usual_head(text) or USUAL[0]]
    head, matches = _best(heads, raw)
    if options.head and (is_json(text) or is_json_lines(text) or has_header(text)):
        raise UserError(f"{text.place}: --head, but JSON and tables have no heads; leave it out")
    if not matches:
        raise UserError(f"{text.place}: no line has the head {one_line(head, 60)!r}; copy one from the file")
    pattern = compiled(head)
    if "{question}" in head:
        return read_sections(text, lambda line: _match(pattern, line), report)
    known: set[str] | None = None  # names that begin messages, where nothing else tells a head from a text
    if not {"time", "clock", "id"} & pattern.groupindex.keys():
        known = speakers([match["name"].strip() for _, match in matches], sum(map(bool, map(str.strip, raw))))
    report.has_names = True
    messages = _messages(text, layout or Heads(), pattern, known, report)
    return pairs_of_messages(messages, options, report, text.place)


def _messages(
    text: TextFile, layout: Heads, pattern: "re.Pattern[str]", known: set[str] | None, report: Report
) -> Iterator[Message | None]:
    """Yield the messages, and None where a conversation ends or a line is missing."""

    def begins(line: str, following: str) -> Sequence[tuple[Match | str, str]]:
        """Return (head, line), or (kind, line) for a line between messages."""
        head = _match(pattern, line, following)
        if head and (known is None or head["name"].strip() in known):
            return ((head, line),)
        bare = line[:LONGEST_HEAD].strip(_MARKS)
        if layout.dates.fullmatch(bare):
            return (("date", bare),)
        if layout.ends.match(line) or (not layout.format and is_rule(line)):
            return (("end", bare),)
        return (("notice", bare),) if layout.notices.fullmatch(bare) else ()

    date = ""
    for block in blocks(lines(text, report), begins, text.place, report):
        if block is None:
            yield None
            continue
        head, line = block.begin
        if isinstance(head, re.Match):
            message = _message(head, line, block.lines["\n" in pattern.pattern :], date)
            yield message._replace(text="" if layout.no_text.fullmatch(message.text) else layout.finish(message.text))
        elif head == "date":
            date = line
        elif head == "end":
            yield None
        else:
            report.drop(NOTICES, block.place)


def _message(head: Match, line: str, below: Sequence[str], date: str) -> Message:
    """Return the message that a head begins. date: of the lines above, for a clock without one."""
    groups = head.groupdict("")
    name, number = groups["name"].strip(f"{_MARKS}\u00a0 "), groups.get("id", "")
    if identified := _ID.fullmatch(name):
        name, number = identified["name"], identified["id"] or identified["address"]
    time = groups.get("time") or f"{date} {groups.get('clock', '')}".strip()
    content = groups.get("text", "") + (line[LONGEST_HEAD:] if "text" in groups else "")
    names = tuple(filter(None, (name, number))) or ("",)
    return Message(name if name in SYSTEM else number or name, names, time, "\n".join([content, *below]).strip())

"""Reader for chats saved as plain text. Each message begins with a head: a name and often a time.

Head patterns describe heads, for example "{name} ({time}):" or "[{time}] {name}". Users specify a pattern with --head.
heads.yaml contains the patterns of known applications.

The fields of a pattern are {name}, {time}, {id} (of the person), {text}, {question} and {any} (ignored). The answer to
a {question} is on the lines below. If a pattern ends with a field other than {text}, the message begins on the next
line. Otherwise, it begins on the same line. A space matches any whitespace. A head can have two lines, separated by a
line break.
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

from chatbot.corpus.reading.lines import blocks, is_question, read_sections
from chatbot.corpus.reading.marked_text import speakers
from chatbot.corpus.reading.names import alternation, are_roles, expression, load_table
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, is_rule, raw_lines
from chatbot.corpus.reading.texts import FUNCTIONS, have_codes
from chatbot.corpus.reading.turns import NOTICES, SYSTEM, Message, Pair, pairs_of_messages, pairs_of_roles
from chatbot.display import one_line
from chatbot.errors import UserError

MAX_HEAD = 200  # maximum characters of a head
MIN_MESSAGES, MIN_SHARE = 2, 0.1  # A format matches if at least this many, and this fraction of, lines are heads.
MAX_SPEAKERS = 20
_MARKS = alternation("marks")
_FIELDS = {name: expression(pattern) for name, pattern in load_table("heads.yaml")["fields"].items()}
_KNOWN = " and ".join(", ".join(_FIELDS).rsplit(", ", 1))
_SPACE = r"(?<![^\S\n])[^\S\n]+(?![^\S\n])"  # The lookarounds prevent quadratic backtracking.
USUAL: Sequence[str] = load_table("heads.yaml")["usual"]
_BETWEEN = ("date", "end", "notice")  # kinds of lines between messages (see heads.yaml)


class Heads(NamedTuple):
    """A row of heads.yaml with compiled regular expressions. heads.yaml documents the fields."""

    format: str
    heads: Sequence[str]
    proof: re.Pattern[str] | None
    between: re.Pattern[str]  # Contains a named group for each kind in _BETWEEN.
    no_text: re.Pattern[str]
    removed: re.Pattern[str]
    finish: Callable[[str], str]
    separate: bool

    def text_of(self, content: str) -> str:
        """Return the text that a person wrote in a message, without generated parts such as placeholders."""
        if self.no_text.fullmatch(content):
            return ""
        return self.finish(self.removed.sub("", content).strip())


def _qqnt_text(content: str) -> str:
    """Return the texts of a QQNT_Export message. Before each part is a line such as [文本] or [图片]."""
    parts = re.split(r"^((?:\[[^\[\]\n]{1,20}\])+)[^\S\n]*$", content, flags=re.MULTILINE)
    return "\n".join(text.strip() for kind, text in zip(parts[1::2], parts[2::2], strict=True) if kind == "[文本]")


def _unquote(content: str) -> str:
    return content[1:-1] if "\n" in content and content[0] == content[-1] == '"' else content


_FINISH: dict[str, Callable[[str], str]] = {**FUNCTIONS, "qqnt_text": _qqnt_text, "unquote": _unquote, "": str}


@functools.cache
def declared_formats() -> dict[str, Heads]:
    """Return the compiled rows of heads.yaml, keyed by format."""
    return {row["format"]: _heads(row) for row in load_table("heads.yaml")["texts"]}


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


def _undeclared_heads(head: str) -> Heads:
    """Return the settings for a head pattern that is not in heads.yaml. Lines with a time but no name are notices."""
    begins = re.match(r"([^{]*)\{(time|clock)\}", head)
    return _heads({"notice": f"{re.escape(begins[1])}<{begins[2]}>.*"} if begins else {})


@functools.lru_cache(maxsize=256)
def compile_head(head: str) -> "re.Pattern[str]":
    """Compile a head pattern. Raises UserError if it has neither {name} nor {question}, or has unknown fields."""
    flag = f"--head {one_line(head, 40)!r}"
    fields = re.findall(r"\{([^{}]*)\}", head)
    if not {"name", "question"} & {*fields}:
        raise UserError(f"{flag}: no {{name}}; write one such as '{{name}} ({{time}}):', with {_KNOWN}")
    if not {*fields} <= _FIELDS.keys() or len({*fields} - {"any"}) < len([field for field in fields if field != "any"]):
        raise UserError(f"{flag}: its fields may be {_KNOWN}, each once in braces")
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


def _match(pattern: "re.Pattern[str]", line: str, following: str = "") -> re.Match[str] | None:
    """Match a head pattern against a line, or against two lines if the pattern contains a line break."""
    both = f"{line[:MAX_HEAD]}\n{following[:MAX_HEAD]}" if "\n" in pattern.pattern else line[:MAX_HEAD]
    return pattern.fullmatch(both) if line else None


def _matches(head: str, lines: Iterable[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the zero-based line number and the match of each head. Lines of program logs are skipped."""
    pattern = compile_head(head)
    for number, (line, following) in enumerate(pairwise(chain(lines, ("",)))):
        match = _match(pattern, line, following)
        if match and not _LEVEL.search(match.groupdict("").get("name", "")):
            yield number, match


def _bare_lines(text: TextFile) -> list[str]:
    return [line.rstrip("\r\n") for line in text.first_lines]


def find_formats(text: TextFile) -> list[str]:
    """Return the formats in heads.yaml whose heads occur in a text.

    If a format with a `proof` matches, only such formats are returned. In .log files, other formats are ignored.
    """
    found = [layout for layout in declared_formats().values() if _matches_format(layout, text)]
    proven = [layout for layout in found if layout.proof]
    return [layout.format for layout in proven or (found if text.ending != "log" else ())]


def _matches_format(layout: Heads, text: TextFile) -> bool:
    raw = _bare_lines(text)
    filled = sum(map(bool, map(str.strip, raw)))
    if layout.proof and not any(layout.proof.fullmatch(line[:MAX_HEAD].strip(_MARKS)) for line in raw):
        return False
    _, matches = _find_best_head(layout.heads, raw)
    if len(matches) < max(MIN_MESSAGES, MIN_SHARE * filled):
        return False
    if layout.separate and not all(_ID.fullmatch(match["name"]) for _, match in matches):
        return all(place == 0 or not raw[place - 1].strip() for place, _ in matches)
    return True


_ID = re.compile(
    r"(?:【[^】]{1,20}】)*(?P<name>.*?)\s*(?:[(（](?P<id>[^()（）]{1,80})[)）]|<(?P<address>[^<>\s]{3,80})>)"
)
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")  # log levels of programs


def _find_best_head(heads: Sequence[str], sample: Sequence[str]) -> tuple[str, list[tuple[int, re.Match[str]]]]:
    """Return the head pattern that matches the most lines, and its matches."""
    return max(((head, [*_matches(head, sample)]) for head in heads), key=lambda found: len(found[1]))


def find_usual_head(text: TextFile) -> str:
    """Find the pattern of the heads in a text whose format is not in heads.yaml.

    Returns:
        The first pattern in USUAL that matches recurring names. If there is none, the pattern that matches the most
        questions, or an empty string.
    """
    filled = text.filled
    answered = {"": 1}  # number of answered questions per pattern; "" has 1, so that one question is not enough
    for head in USUAL:
        matches = [*_matches(head, filled)]
        if "{question}" in head:
            others = {len(filled), *(place for place, _ in matches)}
            answered[head] = sum(is_question(match["question"]) and place + 1 not in others for place, match in matches)
            continue
        counts = Counter(match["name"].strip() for _, match in matches)
        repeated = sum(count for count in counts.values() if count > 1)
        are_names = 1 < len(counts) <= MAX_SPEAKERS and not any(_NO_NAME.search(name) for name in counts)
        ends = [match.string[match.start("name") : match.end("name") + 3] for _, match in matches]
        are_times = sum(map(bool, map(_TIME.search, ends))) * 2 > len(ends)  # Matched "names" may be parts of times.
        if are_names and not are_times and repeated and repeated * 2.5 >= len(filled):
            return "" if have_codes(match.groupdict("").get("text", "") for _, match in matches) else head
    return max(answered, key=lambda head: answered[head])


_TIME = re.compile(expression(r"<date>|(?<!\d)\d{1,2}[:：]\d{2}"))
_NO_NAME = re.compile(r"[,，。！？!?=\"{}]|//|\[\d|^/")


def read_heads(text: TextFile, options: ReadOptions, report: Report, layout: Heads | None = None) -> Iterator[Pair]:
    """Yield the pairs of a chat whose messages begin with `options.head` or a head of `layout`.

    Raises:
        UserError: If no line matches the head, or `options.me` wrote no message.
    """
    heads = [options.head] if options.head else layout.heads if layout else [find_usual_head(text) or USUAL[0]]
    head, matches = _find_best_head(heads, _bare_lines(text))
    if not matches:
        raise UserError(f"{text.place}: no line has the head {one_line(head, 60)!r}; copy one from the file")
    pattern = compile_head(head)
    if "{question}" in head:
        yield from read_sections(text, lambda line: _match(pattern, line), report)
        return
    report.has_names = True
    with io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", newline="") as copy:
        known: set[str] | None = None  # names that begin messages; only used if heads have neither a time nor an id
        names = {match["name"].strip() for _, match in matches}
        if not {"time", "clock", "id"} & pattern.groupindex.keys():
            shutil.copyfileobj(text.stream, copy)
            text = dataclasses.replace(text, stream=copy)
            known = names = _names_in(text, head)
            copy.seek(0)
        messages = _messages(text, layout or _undeclared_heads(head), pattern, known, report)
        if are_roles(names) and not options.me:
            turns = (message and (message.names[0], message.text) for message in messages)
            yield from pairs_of_roles(turns, functools.partial(report.drop, place=text.place))
        else:
            yield from pairs_of_messages(messages, options, report, text.place)


def _names_in(text: TextFile, head: str) -> set[str]:
    """Return the names of all speakers in a text."""
    text.stream.seek(0)
    lines = (line.rstrip("\r\n") for line in raw_lines(text, Report()))
    counts = Counter(match["name"].strip() for _, match in _matches(head, lines))
    text.stream.seek(0)
    return speakers(counts, sum(map(bool, map(str.strip, raw_lines(text, Report())))))


def _messages(
    text: TextFile, layout: Heads, pattern: "re.Pattern[str]", known: set[str] | None, report: Report
) -> Iterator[Message | None]:
    """Yield the messages of a chat. None is yielded at the end of a conversation and for an unreadable line."""

    def begins(line: str, following: str) -> Sequence[tuple[str, str, re.Match[str] | None]]:
        """Return the kind, text and head match of a line that begins or separates messages, or an empty sequence."""
        head = _match(pattern, line, following)
        if head and (known is None or head["name"].strip() in known):
            return (("message", line, head),)
        bare = line[:MAX_HEAD].strip(_MARKS)
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


def _message(head: re.Match[str], line: str, below: Sequence[str], date: str) -> Message:
    """Build a message from its head and the lines below. If the head has only a clock time, `date` is its date."""
    groups = head.groupdict("")
    name = groups["name"].strip(f"{_MARKS}\u00a0 ").removesuffix(" (pinned)")
    person_id = groups.get("id", "")
    if match := _ID.fullmatch(name):
        name = match["name"]
        person_id = match["id"] or match["address"]
    time = groups.get("time") or f"{date} {groups.get('clock', '')}".strip()
    content = groups.get("text", "") + (line[MAX_HEAD:] if "text" in groups else "")
    names = tuple(filter(None, (name, person_id))) or ("",)
    return Message(name if name in SYSTEM else person_id or name, names, time, "\n".join([content, *below]).strip())

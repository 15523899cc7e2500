"""QQ's exported message records: "2020-01-01 12:00:00 name(12345678)", the lines of the message, a blank line.

In text copied from a window the name comes before the time. A record of all chats has a header for each. The number in
brackets is the person's; an address in angle brackets may take its place, or, between friends, nothing.
"""

import datetime
import re
from collections.abc import Iterator, Sequence

from chatbot.corpus.reading.chat_messages import Message, is_log_level, pairs_of_messages, with_line
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report

_TIME = (
    r"(?P<year>\d{4})[-/年](?P<month>\d{1,2})[-/月](?P<day>\d{1,2})日?\s+"
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?:\s(?P<half>[AP])M)?"
)
_NUMBER = r"[(（](?P<number>\d{4,12}|wxid_\w{4,40})[)）]|<(?P<address>[^<>\s]{3,80})>"
_PERSON = rf"(?:【[^】]{{1,20}}】)?(?P<name>.{{0,60}}?)(?:{_NUMBER})?"
_TIME_FIRST = re.compile(rf"{_TIME}\s+{_PERSON}\s*")
_NAME_FIRST = re.compile(rf"{_PERSON}\s+{_TIME}\s*")
_CHAT = re.compile(r"(?:消息分组|消息对象|消息記錄|消息對象)[:：]|={20,}\s*$|消息记录（此消息记录为文本格式")

LONGEST_HEADER = 200  # characters
MESSAGES = 2
SHARE = 0.1  # of the lines: a message may have many
PREAMBLE = 5  # lines, such as a title, with a blank one before the first message
REGULAR = 0.8  # of the messages


def is_qq(sample: Sequence[str]) -> bool:
    """Return whether the lines are QQ's: by its title, by people's numbers, or by the blank lines between messages."""
    lines = [line.rstrip("\r\n") for line in sample]
    pattern = _pattern_of(lines)
    headers = [
        (index, match)
        for index, line in enumerate(lines)
        if len(line) <= LONGEST_HEADER and (match := pattern.fullmatch(line))
    ]
    if any(_CHAT.match(line) for line in lines[:20]) and headers:
        return True
    if len(headers) < MESSAGES or len(headers) < SHARE * sum(line.strip() != "" for line in lines):
        return False
    title = lines[: headers[0][0]]
    if any(map(str.strip, title)) and (len(title) > PREAMBLE or title[-1].strip()):
        return False
    numbered = sum(bool(match["number"] or match["address"]) for _, match in headers)
    separate = sum(
        (index == 0 or not lines[index - 1].strip()) and lines[index + 1 : index + 2] not in ([""], [])
        for index, _ in headers
    )
    return max(numbered, separate) >= REGULAR * len(headers)


def is_header_of_qq(line: str) -> bool:
    """Return whether a line has a date, a time and a name."""
    match = (_TIME_FIRST.fullmatch(line) or _NAME_FIRST.fullmatch(line)) if len(line) <= LONGEST_HEADER else None
    return match is not None and not is_log_level(match["name"])


def read_qq(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of one or several chats. Raises UserError if `options.me` wrote no message."""
    return pairs_of_messages(_messages(text, report), options, report, text.place)


def _pattern_of(sample: Sequence[str]) -> "re.Pattern[str]":
    short = [line for line in sample if len(line) <= LONGEST_HEADER]
    return max(_TIME_FIRST, _NAME_FIRST, key=lambda pattern: sum(map(bool, map(pattern.fullmatch, short))))


def _messages(text: TextFile, report: Report) -> Iterator[Message | None]:
    pattern = _pattern_of([line.rstrip("\r\n") for line in first_lines(text)])
    current: Message | None = None
    for number, line in lines(text, report):
        match = pattern.fullmatch(line) if line and len(line) <= LONGEST_HEADER else None
        if line and match is None and not _CHAT.match(line):
            if current is not None:
                current = with_line(current, line)
            else:
                report.drop("lines before the first message", f"{text.place}, line {number}")
        elif line != "":
            if current is not None and line is not None:
                yield current
            current = _message(match) if match else None
            if match is None:
                yield None  # another chat, or a line is missing
    if current is not None:
        yield current


def _message(match: "re.Match[str]") -> Message:
    """Return a message without text yet."""
    name, key = match["name"].strip(), match["number"] or match["address"] or ""
    names = tuple(filter(None, (name, key))) or ("",)
    return Message(key or name, names, _time(match), "")


def _time(match: "re.Match[str]") -> float | None:
    """Return the time in seconds; None for a date that does not exist."""
    hour = int(match["hour"])
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"] == "P")
    year, month, day, minute = (int(match[part]) for part in ("year", "month", "day", "minute"))
    try:
        time = datetime.datetime(year, month, day, hour, minute, tzinfo=datetime.timezone.utc)
    except ValueError:
        return None
    return time.timestamp()

"""WhatsApp's text export: "31.12.20, 21:15 - Anna: text" on Android, "[31.12.20, 21:15:03] Anna: text" on iOS.

The date, the clock and the words are those of the telephone's language. Lines without a date continue a message.
"""

import datetime
import re
from collections.abc import Iterator, Sequence

from chatbot.corpus.reading.chat_messages import NOTICES, Message, is_log_level, pairs_of_messages, with_line
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report

# Marks of the direction of writing, which WhatsApp also puts in front of its own words.
_MARKS = "\u200e\u200f\u202a\u202c\u2068\u2069\ufeff"
_DATE = rf"(\d{{1,4}})[{_MARKS}]?\s?[./年-]\s?(\d{{1,2}})[{_MARKS}]?\s?[./月-]\s?(\d{{1,4}})[.日]?"
_HALF = r"上午|下午|凌晨|早上|清晨|中午|晚上|오전|오후|午前|午後|[صم]|[AaPp]\.?\s?[Mm]\.?"
_CLOCK = rf"(?:(?:um|at|à|às|kl\.?|klo|ب)\s)?({_HALF})?\s?(\d{{1,2}})[:.](\d{{2}})(?:[:.]\d{{2}})?\s?({_HALF})?"
_HEADER = re.compile(rf"[{_MARKS}]*(?:\[{_DATE}[,،]?\s+{_CLOCK}\]\s?|{_DATE}[,،]?\s+{_CLOCK}(?:\.?\s[-–]|:)\s)(.*)")
_SENDER = re.compile(r"([^\"“”„:]{1,60}):(?:\s(.*))?$")
_AFTERNOON = ("下午", "晚上", "오후", "午後", "中午", "م", "p")
# Media and deleted messages in every language: <Media omitted>; a mark in front of WhatsApp's own words.
_PLACEHOLDER = re.compile(r"<[^<>]{3,60}>")
# The same at the end of a text, after a mark: an attachment with a caption, an edited message.
_ADDED = re.compile(
    r"(?:(?<!\s)\s+)?(?:\u200e<[^<>]{3,120}>"
    r"|<(?:This message was edited|此消息已编辑|此訊息已編輯|Diese Nachricht wurde bearbeitet)>)$"
)
_ATTACHED = re.compile(r".{1,120}\.\w{2,4} \(.{3,30}\)")  # IMG-20200101-WA0001.jpg (file attached)
_OMITTED = re.compile(
    r"(?:image|video|audio|sticker|GIF|document|contact card) omitted|(?:图像|图片|视频|音频|贴图|文档)已忽略",
    re.IGNORECASE,
)
_MEDIA = (_PLACEHOLDER, _ATTACHED, _OMITTED)
REST = 15  # the group of _HEADER after two alternatives of date and clock
SHARE = 0.1  # of the lines: messages may have many
MESSAGES = 2
PREAMBLE = 3  # lines, such as a title


def is_whatsapp(sample: Sequence[str]) -> bool:
    """Return whether the lines begin with a message, or a title, and have enough others."""
    filled = [line.strip() for line in sample if line.strip()]
    headers = [match.group(REST) for match in map(_HEADER.match, filled) if match]
    senders = [match.group(1) for match in map(_SENDER.match, headers) if match]
    messages = len(senders)
    if sum(map(is_log_level, senders)) * 2 > messages:
        return False
    return messages >= MESSAGES and messages >= SHARE * len(filled) and any(map(_HEADER.match, filled[:PREAMBLE]))


def is_header_of_whatsapp(line: str) -> bool:
    """Return whether a line begins with a date, a time and a name."""
    match = _HEADER.match(line)
    sender = _SENDER.match(match.group(REST)) if match else None
    return sender is not None and not is_log_level(sender.group(1))


def read_whatsapp(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a chat. Raises UserError if `options.me` wrote no message."""
    return pairs_of_messages(_messages(text, report), options, report, text.place)


def _messages(text: TextFile, report: Report) -> Iterator[Message | None]:
    order = _order_of_dates(first_lines(text))
    current: Message | None = None
    in_notice = False
    for number, line in lines(text, report):
        match = _HEADER.match(line) if line else None
        if match is None:
            if line is None:
                current = None
                yield None  # a line is missing
            elif current is not None:
                current = with_line(current, line)
            elif line.strip() and not in_notice:
                report.drop("lines before the first message", f"{text.place}, line {number}")
            continue
        if current is not None:
            yield current
        rest = match.group(REST)
        found = _SENDER.match(rest)
        in_notice = found is None
        if found:
            name, content = found.group(1).strip(_MARKS + "\u00a0 ~"), found.group(2) or ""
            current = Message(name, (name,), _time(_when(match), order), _content(content))
        else:
            report.drop(NOTICES, f"{text.place}, line {number}")
            current = None
    if current is not None:
        yield current


def _content(text: str) -> str:
    """Return what the person wrote: nothing for media."""
    if text[:1] in ("\u200e", "\u200f"):
        return ""
    text = _ADDED.sub("", text.strip(_MARKS)).strip(_MARKS)
    return "" if any(pattern.fullmatch(text) for pattern in _MEDIA) else text


def _order_of_dates(sample: Sequence[str]) -> str:
    """Return "ymd", "dmy" or "mdy" for the dates of the sample."""
    first = second = 0
    half = False
    for match in filter(None, map(_HEADER.match, sample)):
        fields = _when(match)
        if len(fields[0]) == 4:
            return "ymd"
        first, second = max(first, int(fields[0])), max(second, int(fields[1]))
        half = half or bool(fields[3] or fields[6])
    if first > 12 or second > 12:
        return "dmy" if first > 12 else "mdy"
    return "mdy" if half else "dmy"


def _when(match: "re.Match[str]") -> tuple[str, ...]:
    """Return the three numbers of the date, the half of the day, hour, minute, and the half of the day."""
    groups = match.groups()
    return groups[:7] if groups[0] else groups[7:14]


def _time(fields: Sequence[str], order: str) -> float | None:
    """Return the seconds of a date and a clock; None for a date that does not exist."""
    numbers = dict(zip(order, map(int, fields[:3]), strict=True))
    year = numbers["y"] + 2000 if numbers["y"] < 100 else numbers["y"]
    half, hour = (fields[3] or fields[6] or "").casefold(), int(fields[4])
    if half:
        hour = hour % 12 + 12 * half.startswith(_AFTERNOON)
    try:
        date = datetime.datetime(year, numbers["m"], numbers["d"], hour, int(fields[5]), tzinfo=datetime.timezone.utc)
    except ValueError:
        return None
    return date.timestamp()

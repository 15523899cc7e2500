"""Text exports of chats: a line with the time and the name begins a message, and lines without one continue it.

    whatsapp   31.12.20, 21:15 - Anna: text, or [31.12.20, 21:15:03] Anna: text, in the telephone's language
    qq         2020-01-01 12:00:00 name(12345678), or the name first, and the text on the lines below
    discord    [01/01/2023 10:00 AM] name, and the text on the lines below
    kakaotalk  [name] [오전 10:15] text, or 2023년 1월 1일 오전 10:15, name : text
    line       10:15, tab, name, tab, text, below lines with the date
    imessage   Jan 01, 2023 10:00:00 AM, a line with the name, and the text on the lines below
    speakers   name: text, <name> text, [name] text, as in scripts and interviews; a time may stand before the name

Lines of speakers may also be a list of terms or a recipe, so that this format is read only if the user names it.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.formats.chat import (
    LineKind,
    Mark,
    Message,
    is_log_level,
    messages_of_lines,
    pairs_of_messages,
)
from chatbot.corpus.reading.open.text_file import TextFile, is_rule
from chatbot.corpus.reading.report import ReadOptions, Report

MESSAGES, SHARE = 2, 0.1  # at least, and of the lines: a message may have many
LONGEST_HEADER = 200  # characters
PREAMBLE_OF_QQ = 5  # lines before the first message
REGULAR = 0.8  # of the messages of QQ have a number, or blank lines around them
FEW_SPEAKERS, SHARE_OF_SPEAKERS = 20, 0.4  # texts below their names have as many lines: wechat_phone.txt

# The marks of the direction of writing also stand in front of WhatsApp's own words.
_MARKS = "\u200e\u200f\u202a\u202c\u2068\u2069\ufeff"
_HALF = r"上午|下午|凌晨|早上|清晨|中午|晚上|오전|오후|午前|午後|[صم]|[AaPp]\.?\s?[Mm]\.?"
_AFTERNOON = ("下午", "晚上", "오후", "午後", "中午", "م", "p")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = rf"(?:(?:{_HALF})\s?)?\d{{1,2}}:\d{{2}}(?:\s?(?:{_HALF}))?"
_DAY = r"\d{4}\s?[년/.年-]\s?\d{1,2}\s?[월/.月-]\s?\d{1,2}"
# Media: <Media omitted>, IMG-20200101-WA0001.jpg (file attached), or words without brackets.
_WHATSAPP_MEDIA = re.compile(
    r"[\u200e\u200f].*|<[^<>]{3,60}>|.{1,120}\.\w{2,4} \(.{3,30}\)"
    r"|(?i:(?:image|video|audio|sticker|GIF|document|contact card) omitted|(?:图像|图片|视频|音频|贴图|文档)已忽略)"
)
# The same at the end of a text, after a mark: an attachment with a caption, an edited message.
_ADDED = re.compile(
    r"(?:(?<!\s)\s+)?(?:\u200e<[^<>]{3,120}>"
    r"|<(?:This message was edited|此消息已编辑|此訊息已編輯|Diese Nachricht wurde bearbeitet)>)$"
)
_KAKAOTALK_MEDIA = re.compile(
    r"<?(?:사진|동영상|이모티콘|음성메시지)(?: \d+장)?(?: 읽지 않음)?>?|파일: .*|삭제된 메시지입니다\."
)
_JOINED_OR_LEFT = r".{1,60}님이 .{0,60}(?:들어왔|나갔|초대|내보냈).{0,20}"
# QQ. The number in brackets is the person's; an address may take its place, or, between friends, nothing.
_QQ_TIME = r"(?P<time>\d{4}[-/年]\d{1,2}[-/月]\d{1,2}日?\s+\d{1,2}:\d{2}(?::\d{2})?(?:\s[AP]M)?)"
_PERSON = (
    r"(?:【[^】]{1,20}】)?(?P<name>.{0,60}?)"
    r"(?:[(（](?P<number>\d{4,12}|wxid_\w{4,40})[)）]|<(?P<address>[^<>\s]{3,80})>)?"
)
_CHAT = re.compile(r"(?:消息分组|消息对象|消息記錄|消息對象)[:：]|={20,}\s*$|消息记录（此消息记录为文本格式")


class _Layout(NamedTuple):
    """The lines of one application's export."""

    format: str
    header: (
        "re.Pattern[str]"  # its time, name and text; without a name a notice, without that group it is the line below
    )
    date: "re.Pattern[str] | None" = None  # of a line with a date for the messages below
    notice: "re.Pattern[str] | None" = None  # of lines that the application wrote, beside those of NOTICES
    no_text: "re.Pattern[str] | None" = None  # of texts that stand for pictures
    end: "re.Pattern[str] | None" = None  # of the beginnings of lines before and after a chat
    is_quoted: bool = False  # whether a text of several lines stands in quotes
    preamble: int = 12  # lines, such as a title and the name of the channel, of which one at least is a header


LAYOUTS = (
    _Layout(
        "whatsapp",
        re.compile(
            rf"[{_MARKS}]*(?P<bracket>\[)?(?P<time>\d{{1,4}}[{_MARKS}]?\s?[./年-]\s?\d{{1,2}}[{_MARKS}]?\s?[./月-]\s?"
            rf"\d{{1,4}}[.日]?[,،]?\s+(?:(?:um|at|à|às|kl\.?|klo|ب)\s)?(?:{_HALF})?\s?\d{{1,2}}[:.]\d{{2}}"
            rf"(?:[:.]\d{{2}})?\s?(?:{_HALF})?)(?(bracket)\]\s?|(?:\.?\s[-–]|:)\s)"
            rf"(?:[{_MARKS}\s~]*(?P<name>[^\"“”„:]{{1,60}}):(?:\s(?P<text>.*))?|.*)"
        ),
        no_text=_WHATSAPP_MEDIA,
        preamble=3,
    ),
    _Layout("qq", re.compile(rf"{_QQ_TIME}\s+{_PERSON}\s*"), end=_CHAT),
    _Layout("qq", re.compile(rf"{_PERSON}\s+{_QQ_TIME}\s*"), end=_CHAT),
    _Layout(
        "discord",
        re.compile(
            r"\[(?P<time>\d{1,4}[-/.](?:\d{1,2}|[A-Z][a-z]{2})[-/.]\d{2,4} \d{1,2}:\d{2}(?::\d{2})?(?: [AP]M)?)\] "
            r"(?P<name>[^:：]{1,60}?)(?: \(pinned\))?(?P<text>)"
        ),
        notice=re.compile(r"\{(?:Reactions|Attachments|Embed|Stickers)\}|={20,}|Exported [\d,]+ message\(s\)"),
    ),
    _Layout(
        "kakaotalk",
        re.compile(rf"\[(?P<name>[^\]]{{1,60}})\] \[(?P<time>{_TIME})\] (?P<text>.*)"),
        date=re.compile(rf"-{{5,}} {_DAY}.{{0,20}} -{{5,}}"),
        notice=re.compile(_JOINED_OR_LEFT),
        no_text=_KAKAOTALK_MEDIA,
    ),
    _Layout(
        "kakaotalk",
        re.compile(rf"(?P<time>{_DAY}[일.]? {_TIME}), (?P<name>.{{1,60}}?) : (?P<text>.*)"),
        date=re.compile(rf"{_DAY}일 (?:.요일|{_TIME})"),
        notice=re.compile(rf"{_DAY}[일.]? {_TIME}[,:] .*|{_JOINED_OR_LEFT}"),
        no_text=_KAKAOTALK_MEDIA,
    ),
    _Layout(
        "line",
        re.compile(rf"(?P<time>{_TIME})\t(?P<name>[^\t]{{1,60}})\t(?P<text>.*)"),
        date=re.compile(rf"{_DAY}\s?(?:[（(].{{1,3}}[)）]|.{{2,3}})?|[A-Z][a-z]{{2}}, \d\d/\d\d/\d{{4}}"),
        notice=re.compile(rf"{_TIME}\t.*"),
        is_quoted=True,
    ),
    _Layout(
        "imessage",
        re.compile(
            r"(?P<time>[A-Z][a-z]{2} \d{2}, \d{4}\s+\d{1,2}:\d{2}:\d{2} [AP]M)"
            r"(?: \((?:Read|Delivered|Edited).{0,60}\))?"
        ),
        notice=re.compile(r"Tapbacks:|This message responded to an earlier message\."),
        no_text=re.compile(r"(?:Attachment missing!|/.{0,200}\.\w{2,5}|.{0,80}/Attachments/.{0,200})"),
    ),
)


APPLICATIONS = ("discord", "kakaotalk", "line", "imessage")  # whose lines may be those of another text


def is_qq(text: TextFile) -> bool:
    """Return whether the lines are QQ's: by its title, by people's numbers, or by the blank lines between messages."""
    lines = [line.rstrip("\r\n") for line in text.first_lines]
    header = _layout_of("qq", lines).header
    headers = [(index, match) for index, line in enumerate(lines) if (match := _match(header, line))]
    if any(_CHAT.match(line) for line in lines[:20]) and headers:
        return True
    if len(headers) < MESSAGES or len(headers) < SHARE * len(_filled(text)):
        return False
    title = lines[: headers[0][0]]
    if any(map(str.strip, title)) and (len(title) > PREAMBLE_OF_QQ or title[-1].strip()):
        return False
    numbered = sum(bool(match["number"] or match["address"]) for _, match in headers)
    separate = sum(
        (index == 0 or not lines[index - 1].strip()) and lines[index + 1 : index + 2] not in ([""], [])
        for index, _ in headers
    )
    return max(numbered, separate) >= REGULAR * len(headers)


def matcher_of(application: str) -> Callable[[TextFile], bool]:
    """Return the function from a text to whether it is an export of this application."""

    def matches(text: TextFile) -> bool:
        filled = _filled(text)
        return any(layout.format == application and _fits(layout, filled) for layout in LAYOUTS)

    return matches


def _filled(text: TextFile) -> list[str]:
    return [line.rstrip("\r\n") for line in text.first_lines if line.strip()]


def _fits(layout: _Layout, filled: Sequence[str]) -> bool:
    headers = [_match(layout.header, line) for line in filled]
    messages = [header.groupdict() for header in headers if header and header.groupdict().get("name", "") is not None]
    if sum(is_log_level(message.get("name", "")) for message in messages) * 2 > len(messages):
        return False
    dated = layout.date is None or any(_match(layout.date, line) for line in filled)
    return len(messages) >= max(MESSAGES, SHARE * len(filled)) and any(headers[: layout.preamble]) and dated


def reader_of(application: str) -> Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]:
    """Return the reader of the exports of one application. It raises UserError if `options.me` wrote no message."""

    def read(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
        sample = _filled(text)
        layout = _layout_of(application, sample)
        dates = [match for line in sample if (match := _match(layout.date or layout.header, line))]
        order = _order_of_dates([match.groupdict().get("time") or match[0] for match in dates])
        messages = messages_of_lines(text, report, _kind_in(layout, order), lambda message: _finished(message, layout))
        return pairs_of_messages(messages, options, report, text.place)

    return read


def _layout_of(application: str, lines: Sequence[str]) -> _Layout:
    """Return the layout of an application in which most of these lines begin a message."""
    layouts = [layout for layout in LAYOUTS if layout.format == application]
    return max(layouts, key=lambda layout: sum(_match(layout.header, line) is not None for line in lines))


def _match(pattern: "re.Pattern[str] | None", line: str) -> "re.Match[str] | None":
    line = line[:LONGEST_HEADER].strip("\u200e\ufeff")  # a name of QQ may be a space
    return (pattern.fullmatch(line) or pattern.fullmatch(line.strip(" "))) if pattern else None


def _kind_in(layout: _Layout, order: str) -> LineKind:
    date = ""  # of the messages
    unnamed: Message | None = None  # whose name is the next line

    def kind_of(line: str) -> Message | Mark | None:
        nonlocal date, unnamed
        if unnamed is not None:
            named, unnamed = unnamed._replace(sender=line.strip(), names=(line.strip(),)), None
            return named
        if header := _match(layout.header, line):
            groups = header.groupdict("")
            if header.groupdict().get("name", "") is None:
                return Mark.NOTICE
            name, key = groups.get("name", "").strip(f"{_MARKS}\u00a0 "), groups.get("number") or groups.get("address")
            names = (name, key) if name and key else (name or key or "",)
            content = groups.get("text", "") + (line[LONGEST_HEADER:] if groups.get("text") else "")
            time = groups["time"]
            if date and len(_numbers(time)) < len(("year", "month", "day", "hour", "minute")):
                time = f"{date} {time}"
            message = Message(key or name, names, _seconds(time, order), _without_media(content, layout))
            if "name" in groups:
                return message
            unnamed = message
            return Mark.DATE
        if dated := _match(layout.date, line):
            date = dated[0]
            return Mark.DATE
        if layout.end and layout.end.match(line):
            return Mark.END
        return Mark.NOTICE if _match(layout.notice, line) else None

    return kind_of


def _finished(message: Message, layout: _Layout) -> Message:
    text = message.text.strip()
    if layout.is_quoted and "\n" in text and text[0] == text[-1] == '"':
        text = text[1:-1]
    return message._replace(text=_without_media(text, layout))


def _without_media(text: str, layout: _Layout) -> str:
    if layout.no_text is None or layout.no_text.fullmatch(text):
        return "" if layout.no_text else text
    return _ADDED.sub("", text.strip(_MARKS)).strip(_MARKS) if layout.format == "whatsapp" else text


def _numbers(time: str) -> list[int]:
    """Return the numbers of a date and a clock, in their order."""
    words = re.findall(r"\d+|[A-Z][a-z]{2}", time)
    numbers = (_MONTHS.index(word.lower()) + 1 if word.lower() in _MONTHS else word for word in words)
    return [int(number) for number in numbers if isinstance(number, int) or number.isdecimal()]


def _order_of_dates(times: Iterable[str]) -> str:
    """Return the order of year, month and day, which is that of the telephone's language: "ymd", "dmy" or "mdy"."""
    dates = [numbers[:2] for time in times if len(numbers := _numbers(time)) > 2]
    first, second = (max((date[part] for date in dates), default=0) for part in range(2))
    if first > 31:
        return "ymd"
    if first > 12 or second > 12:
        return "dmy" if first > 12 else "mdy"
    is_american = any(re.search(_HALF, time) and not re.search(r"\d-[A-Z]", time) for time in times)
    return "mdy" if is_american else "dmy"


@functools.lru_cache(maxsize=1024)  # many messages have the same minute
def _seconds(time: str, order: str) -> float | None:
    """Return the seconds of a date and a clock; None if the date is not known or does not exist."""
    numbers = _numbers(time)
    if len(numbers) < 5:
        return None
    date = dict(zip(order, numbers, strict=False))
    year = date["y"] + 2000 if date["y"] < 100 else date["y"]
    hour, minute = numbers[3:5]
    if half := re.search(_HALF, time):
        hour = hour % 12 + 12 * half[0].casefold().startswith(_AFTERNOON)
    try:
        return datetime(year, date["m"], date["d"], hour, minute, tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


# Speakers.
_SPEAKER = re.compile(
    r"(?:\W?[\d:/.-]{4,10}(?: ?[AP]M)?\W{1,3})?"
    r"(?:[\[【](?P<bracket>[^\[\]【】:：\d]{1,20})[\]】]\s*[:：]?\s*|<[ @+%&~]?(?P<nick>[^<>\s]{1,30})>\s"
    r"|(?P<name>[^\s:：,，。\d<>\[\]{}()=\"'][^:：,，。！？!?\t=\"{}()]{0,29})[:：](?!//|\d))(?P<text>.*)"
    r"|\[\d{1,2}:\d{2}(?: ?[AP]M)?\] (?P<timed>[^:：,，。！？!?]{1,30})"
)


def _name(match: "re.Match[str]") -> str:
    return (match["bracket"] or match["nick"] or match["name"] or match["timed"]).strip()


def speakers_of(sample: Sequence[str]) -> list[str]:
    """Return the names with which most lines begin; [] if they are too few or too many for a talk."""
    names = Counter(_name(match) for line in sample if (match := _SPEAKER.fullmatch(line.strip())))
    repeated = {name: count for name, count in names.items() if count > 1}
    filled = sum(line.strip() != "" for line in sample)
    if repeated and 1 < len(names) <= FEW_SPEAKERS and names.total() == filled:
        return list(names)
    if not 1 < len(repeated) <= FEW_SPEAKERS or sum(repeated.values()) < SHARE_OF_SPEAKERS * filled:
        return []
    return list(repeated) if 2 * sum(repeated.values()) >= names.total() + len(repeated) else []


def is_speakers(text: TextFile) -> str:
    """Return why the text may be a talk, "" if it is none."""
    return "the lines begin with names, as in a chat" if speakers_of(text.first_lines) else ""


def read_speakers(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the speakers' turns. Raises UserError if `options.me` says nothing."""
    names = {*speakers_of(text.first_lines)}

    def kind_of(line: str) -> Message | Mark | None:
        if is_rule(line):
            return Mark.END
        match = _SPEAKER.fullmatch(line.strip()) if line else None
        if match is None or (names and _name(match) not in names):
            return None
        return Message(_name(match), (_name(match),), None, match["text"] or "")

    return pairs_of_messages(messages_of_lines(text, report, kind_of), options, report, text.place)

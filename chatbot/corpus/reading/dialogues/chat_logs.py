"""Text exports of Discord, KakaoTalk, LINE and iMessage: a line with the time and the name begins a message.

    discord    [01/01/2023 10:00 AM] name, and the text on the lines below
    kakaotalk  [name] [오전 10:15] text, or 2023년 1월 1일 오전 10:15, name : text
    line       10:15, tab, name, tab, text, below lines with the date
    imessage   Jan 01, 2023 10:00:00 AM, a line with the name, and the text on the lines below

Lines without such a beginning continue a message.
"""

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from chatbot.corpus.reading.chat_messages import NOTICES, Message, pairs_of_messages, with_line
from chatbot.corpus.reading.files.lines import lines
from chatbot.corpus.reading.files.text_file import TextFile
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report

MESSAGES = 2  # at least
SHARE = 0.1  # of the lines: a message may have many
PREAMBLE = 12  # lines, such as a title and the name of the channel, before the first message
LONGEST_HEADER = 200  # characters

_CLOCK = r"(?:(?P<half>오전|오후|午前|午後|上午|下午)\s?)?(?P<hour>\d{1,2}):(?P<minute>\d{2})(?:\s?(?P<late>[AP]M))?"
_DATE = r"(?P<year>\d{4})\s?[년/.年-]\s?(?P<month>\d{1,2})\s?[월/.月-]\s?(?P<day>\d{1,2})"
_KAKAOTALK_MEDIA = re.compile(
    r"<?(?:사진|동영상|이모티콘|음성메시지)(?: \d+장)?(?: 읽지 않음)?>?|파일: .*|삭제된 메시지입니다\."
)
_DISCORD_TIMES = tuple(
    f"{date} {clock}"
    for date in ("%m/%d/%Y", "%d/%m/%Y", "%d-%b-%y", "%d-%b-%Y", "%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y")
    for clock in ("%I:%M %p", "%H:%M", "%H:%M:%S")
)


class _Layout(NamedTuple):
    """The lines of one application's export."""

    header: "re.Pattern[str]"  # of a message; without the group "name", the name is the line below
    date: "re.Pattern[str] | None" = None  # of a line with a date for the messages below
    notice: "re.Pattern[str] | None" = None  # of lines that the application wrote, beside those of NOTICES
    no_text: "re.Pattern[str] | None" = None  # of texts that stand for pictures
    is_quoted: bool = False  # whether a text of several lines stands in quotes


LAYOUTS = {
    "discord": _Layout(
        re.compile(
            r"\[(?P<time>\d{1,4}[-/.](?:\d{1,2}|[A-Z][a-z]{2})[-/.]\d{2,4} \d{1,2}:\d{2}(?::\d{2})?(?: [AP]M)?)\] "
            r"(?P<name>[^:：]{1,60}?)(?: \(pinned\))?(?P<text>)"
        ),
        notice=re.compile(r"\{(?:Reactions|Attachments|Embed|Stickers)\}|={20,}|Exported [\d,]+ message\(s\)"),
    ),
    "kakaotalk": _Layout(
        re.compile(rf"\[(?P<name>[^\]]{{1,60}})\] \[{_CLOCK}\] (?P<text>.*)"),
        date=re.compile(rf"-{{5,}} {_DATE}.{{0,20}} -{{5,}}"),
        notice=re.compile(r".{1,60}님이 .{0,60}(?:들어왔|나갔|초대|내보냈).{0,20}"),
        no_text=_KAKAOTALK_MEDIA,
    ),
    "kakaotalk_mobile": _Layout(
        re.compile(rf"{_DATE}[일.]? {_CLOCK}, (?P<name>.{{1,60}}?) : (?P<text>.*)"),
        date=re.compile(rf"{_DATE}일 (?:.요일|{_CLOCK})"),
        notice=re.compile(
            rf"{_DATE}[일.]? {_CLOCK}[,:] .*|.{{1,60}}님이 .{{0,60}}(?:들어왔|나갔|초대|내보냈).{{0,20}}"
        ),
        no_text=_KAKAOTALK_MEDIA,
    ),
    "line": _Layout(
        re.compile(rf"{_CLOCK}\t(?P<name>[^\t]{{1,60}})\t(?P<text>.*)"),
        date=re.compile(rf"{_DATE}\s?(?:[（(].{{1,3}}[)）]|.{{2,3}})?|[A-Z][a-z]{{2}}, \d\d/\d\d/\d{{4}}"),
        notice=re.compile(rf"{_CLOCK}\t.*"),
        is_quoted=True,
    ),
    "line_desktop": _Layout(
        re.compile(rf"{_CLOCK} (?P<name>\S{{1,60}}) (?P<text>.*)"),
        date=re.compile(rf"{_DATE}.{{0,12}}"),
        no_text=re.compile(r"\[?(?:貼圖|圖片|照片|影片|Stickers|Photos|Videos|スタンプ|写真|動画)\]?"),
        is_quoted=True,
    ),
    "imessage": _Layout(
        re.compile(
            r"(?P<time>[A-Z][a-z]{2} \d{2}, \d{4}\s+\d{1,2}:\d{2}:\d{2} [AP]M)"
            r"(?: \((?:Read|Delivered|Edited).{0,60}\))?"
        ),
        notice=re.compile(r"Tapbacks:|This message responded to an earlier message\."),
        no_text=re.compile(r"(?:Attachment missing!|/.{0,200}\.\w{2,5}|.{0,80}/Attachments/.{0,200})"),
    ),
}
# The layouts of a format, of which the first that fits is read.
FORMATS = {
    "discord": ("discord",),
    "kakaotalk": ("kakaotalk", "kakaotalk_mobile"),
    "line": ("line", "line_desktop"),
    "imessage": ("imessage",),
}
DOUBTFUL = ("line_desktop",)  # whose messages may be lines of other texts


def chat_log_of(sample: Sequence[str]) -> str | None:
    """Return the name of the layout of a chat's export, None for any other text."""
    filled = [line.rstrip("\r\n") for line in sample if line.strip()]
    for name, layout in LAYOUTS.items():
        places = [place for place, line in enumerate(filled) if _match(layout.header, line)]
        dated = layout.date is None or any(_match(layout.date, line) for line in filled)
        if len(places) >= MESSAGES and places[0] < PREAMBLE and len(places) >= SHARE * len(filled) and dated:
            return name
    return None


def format_of(layout: str) -> str:
    """Return the name of the format that a layout belongs to."""
    return next(name for name, layouts in FORMATS.items() if layout in layouts)


def reader_of(format_name: str) -> Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]:
    """Return the reader of the exports of one application."""

    def read(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
        found = [line.rstrip("\r\n") for line in text.sample.split("\n")]
        layouts = [LAYOUTS[name] for name in FORMATS[format_name]]
        layout = max(layouts, key=lambda each: sum(_match(each.header, line) is not None for line in found))
        return pairs_of_messages(_messages(text, layout, report), options, report, text.place)

    return read


def _match(pattern: "re.Pattern[str] | None", line: str) -> "re.Match[str] | None":
    return pattern.fullmatch(line[:LONGEST_HEADER].strip("\u200e\ufeff ")) if pattern else None


def _messages(text: TextFile, layout: _Layout, report: Report) -> Iterator[Message | None]:
    current: Message | None = None
    date: datetime.date | None = None
    awaits_name = in_notice = False
    for number, line in lines(text, report):
        if line is None:
            current, awaits_name = None, False
            yield None  # a line is missing
        elif awaits_name and current is not None:
            current, awaits_name = current._replace(sender=line.strip(), names=(line.strip(),)), False
        elif header := _match(layout.header, line):
            if current is not None:
                yield _finished(current, layout)
            groups = header.groupdict()
            name = (groups.get("name") or "").strip()
            content = line.strip("\u200e\ufeff ")[header.start("text") :] if "text" in groups else ""
            awaits_name, in_notice = "name" not in groups, False
            current = Message(name, (name,), _time(groups, date), content)
        elif found := _match(layout.date, line):
            date = _date(found.groupdict()) or date
        elif _match(layout.notice, line):
            report.drop(NOTICES, f"{text.place}, line {number}")
            in_notice = True
        elif not line.strip():
            in_notice = False
        elif in_notice:
            continue
        elif current is not None:
            current = with_line(current, line)
        else:
            report.drop("lines before the first message", f"{text.place}, line {number}")
    if current is not None:
        yield _finished(current, layout)


def _finished(message: Message, layout: _Layout) -> Message:
    text = message.text.strip()
    if layout.is_quoted and "\n" in text and text[0] == text[-1] == '"':
        text = text[1:-1]
    return message._replace(text="" if layout.no_text and layout.no_text.fullmatch(text) else text)


def _date(groups: dict[str, str | None]) -> datetime.date | None:
    with suppress(ValueError, TypeError, KeyError):
        return datetime.date(*(int(groups[part] or "") for part in ("year", "month", "day")))
    return None


def _time(groups: dict[str, str | None], date: datetime.date | None) -> float | None:
    """Return the seconds of a message; None if its date is not known or does not exist."""
    text = groups.get("time")
    for layout in _DISCORD_TIMES if text and text[0].isdecimal() else ("%b %d, %Y %I:%M:%S %p",) if text else ():
        with suppress(ValueError):
            return datetime.datetime.strptime(f"{text} +0000", f"{layout} %z").timestamp()
    date = _date(groups) or date
    if date is None or not groups.get("hour"):
        return None
    hour, half = int(groups["hour"] or 0), groups.get("half") or groups.get("late")
    if half:
        hour = hour % 12 + 12 * (half in ("오후", "午後", "下午", "PM"))
    with suppress(ValueError):
        clock = datetime.time(hour, int(groups["minute"] or 0), tzinfo=datetime.timezone.utc)
        return datetime.datetime.combine(date, clock).timestamp()
    return None

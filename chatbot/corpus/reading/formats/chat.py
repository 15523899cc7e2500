"""From the messages of a chat export to pairs.

Consecutive messages of one person are one turn, and adjacent turns are a pair. A conversation ends with the chat, or
with a pause.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair, Turn, pairs_of_turns
from chatbot.corpus.reading.display import CHINESE_OR_KANA, listing, one_line
from chatbot.corpus.reading.open.text_file import TextFile, lines
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

PAUSE = 3 * 60 * 60  # seconds without a message, after which the next one begins a conversation
MAX_TURN = 10_000  # characters; a longer turn is no reply
FIRST = 50  # messages, whose times tell whether the newest comes first
MAX_HELD = 100_000  # messages that are turned around at once; a longer chat is divided there
MAX_NAMES = 1000  # of people, for the message about a name that does not occur
NO_TEXT = "messages without text, such as pictures"
NOTICES = "notices of the application, such as calls and deleted messages"
ME = "me"  # the name for --me where an export marks the messages of the user, but has no name for them

# Names of what the application wrote, in place of a sender's or as the kind of a message, in Discord's, Slack's,
# Messenger's and WeChat's exports.
SYSTEM = frozenset({"系统消息", "系統消息", "系统通知"})
NOTICE_KINDS = SYSTEM.union(
    ("call", "guildmemberjoin", "channelpinnedmessage", "recipientadd", "recipientremove", "threadcreated"),
    ("channelnamechange", "channeliconchange", "subscribe", "unsubscribe", "service", "system"),
    ("系统", "拍一拍", "10000", "10002"),
)
# Media as they are shown within a message.
_MEDIA = re.compile(
    r"\[(?:图片|圖片|照片|表情|动画表情|動畫表情|自定义表情|语音|語音|视频|視頻|影片|文件|位置|链接|红包|QQ红包|转账|名片"
    r"|聊天记录|合并转发|小程序|音乐|闪照|戳一戳|卡片消息|视频通话|语音通话|貼圖|贴纸"
    r"|スタンプ|写真|動画|ボイスメッセージ|アルバム"
    r"|Photo|Image|Picture|Sticker|Video|Voice|Audio|File|GIF|Location)\]"
    r"|!\[[^\[\]]{0,200}\]\([^()\s]{1,300}\)|\[[^\[\]]{0,200}\]\(\./media/[^()]{1,300}\)",
    re.IGNORECASE,
)
# Messages that the application wrote, in full.
_NOTICE = re.compile(
    r".{0,40}(?:撤回了一条|已收回|收回了)(?:成员)?(?:消息|訊息).{0,20}|.{0,40}加入(?:了)?(?:本群|群聊|群组).{0,10}|对方已成功接收了你发送的离线文件.*|你已下载文件.*"
    r"|(?:此|這則|您已|你已)(?:消息|訊息)?(?:已)?(?:删除|刪除)(?:此|這則)?(?:消息|訊息)?"
    r"|未接(?:语音|视频|語音|視訊)(?:通话|通話).{0,20}|(?:☎ ?)?(?:通话时长|通話時間).{0,12}|☎ ?\D{0,20}"
    r"|对方已取消|已取消|对方已拒绝|已拒绝|对方无应答|通话中断"
    r"|(?:This message was|You) deleted(?: this message)?\.?|Missed (?:group )?(?:voice|video) call.{0,20}"
    r"|[\"“「].{1,40}[\"”」] ?拍了拍.{1,40}|.{1,40}拍了拍 ?(?:[\"“「].{1,40}|[我你您]|自己)"
    r"|[你您]已?[删刪]除了?(?:此|这条|這則)(?:消息|訊息)。?|(?:此|这条|這則)(?:消息|訊息)已被?[删刪]除。?"
    r"|Diese Nachricht wurde gelöscht\.?|Du hast diese Nachricht gelöscht\.?"
    r"|Verpasster (?:Gruppen-)?(?:Sprach|Video)anruf.{0,20}"
    r"|(?:Se eliminó|Eliminaste) este mensaje\.?|Ce message a été supprimé\.?|Vous avez supprimé ce message\.?"
    r"|Es[st]a mensagem foi apagada\.?|Você apagou esta mensagem\.?"
    r"|Questo messaggio è stato eliminato\.?|Hai eliminato questo messaggio\.?"
    r"|Liked a message|Reacted .{1,20} to your message|.{1,60} sent an attachment\.|A aimé un message"
    r"|Hat eine Nachricht mit .Gefällt mir. markiert|Le gust[aó] un mensaje|Curtiu uma mensagem"
    r"|Waiting for this message.*|null",
    re.IGNORECASE,
)
# The levels of a program's log, which stand where a chat has a name: "INFO", "local.ERROR".
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_LONGEST_NOTICE = 120  # characters
_XML = re.compile(r"\s*(?:<\?xml|<msg|<sysmsg|<appmsg)")
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")


class Message(NamedTuple):
    """A message of a chat."""

    sender: str  # the same for all messages of a person
    names: tuple[str, ...]  # what --me may give: the name first, then numbers and addresses
    time: float | None  # seconds, for pauses
    text: str


def is_log_level(name: str) -> bool:
    """Return whether a name contains the level of a program's log."""
    return _LEVEL.search(name) is not None


def pairs_of_messages(
    messages: Iterable[Message | None], options: ReadOptions, report: Report, place: str
) -> Iterator[Pair]:
    """Yield the pairs of messages, which come in the order of their times or in reverse; None ends a chat.

    With `options.me`, only pairs whose answer that person wrote.
    Raises UserError at the end if that person wrote no message.
    """
    me = options.me.strip().casefold() if options.me else None
    people: dict[str, None] = {}  # their names, in order of appearance
    has_written = False
    pairs = 0

    def turns() -> Iterator[Turn | None]:
        nonlocal has_written
        for turn in _turns(_oldest_first(messages), report, place):
            if turn is None:
                yield None
                continue
            names, text = turn
            if len(people) < MAX_NAMES:
                people.setdefault(names[0])
            mine = me is None or me in map(str.casefold, names)
            has_written = has_written or mine
            yield Turn(text, answers=mine)

    for pair in pairs_of_turns(turns()):
        pairs += 1
        yield pair
    if has_written and not pairs:
        report.drop("chats in which nobody answers", place)
    if people and not has_written:
        problem = f"{place}: nobody is called {one_line(options.me or '', 30)}; give --me one of: "
        raise UserError(listing(problem, [one_line(name, 30) for name in people]))


def _oldest_first(messages: Iterable[Message | None]) -> Iterator[Message | None]:
    """Yield the messages, in reverse if the times of the first ones fall; at most MAX_HELD are held."""
    messages = iter(messages)
    block = list(islice(messages, FIRST))
    steps = [b.time - a.time for a, b in pairwise(block) if a and b and a.time is not None and b.time is not None]
    if not steps or max(steps) > 0 or min(steps) == 0:
        yield from chain(block, messages)
        return
    while block:
        block += islice(messages, MAX_HELD - len(block))
        yield from (*reversed(block), None)
        block = list(islice(messages, FIRST))


def _turns(
    messages: Iterable[Message | None], report: Report, place: str
) -> Iterator[tuple[tuple[str, ...], str] | None]:
    """Yield (names of the person, text) of each turn, and None after each conversation."""
    usable = _usable(messages, report, place)
    for sender, group in groupby(usable, lambda message: message.sender if message else None):
        names: tuple[str, ...] = ()
        parts: list[str] = []
        characters = 0
        for message in group if sender is not None else ():
            assert message is not None
            names = message.names
            characters += len(message.text)
            if characters <= MAX_TURN:
                parts.append(message.text)
        if characters > MAX_TURN:
            report.drop(f"turns of more than {MAX_TURN:,} characters", place)
        yield (names, joined(parts)) if 0 < characters <= MAX_TURN else None


def _usable(messages: Iterable[Message | None], report: Report, place: str) -> Iterator[Message | None]:
    """Yield the messages with text, and None after each conversation and before a message that follows a pause."""
    last: float | None = None  # time of the last message
    for message in messages:
        if message is None:
            last = None
            yield None
        elif (text := _usable_text(message, report, place)) is not None:
            if last is not None and message.time is not None and abs(message.time - last) > PAUSE:
                yield None
            last = message.time if message.time is not None else last
            yield message._replace(text=text)


def _usable_text(message: Message, report: Report, place: str) -> str | None:
    """Return the text of a message without media; None, which the report counts, for a message without any."""
    text = message.text.strip()
    if _XML.match(text):
        text = ""
    elif "[" in text:
        text = _MEDIA.sub(" ", text).strip()
    if not text:
        report.drop(NO_TEXT, place)
        return None
    if message.names[0] in SYSTEM or (len(text) <= _LONGEST_NOTICE and _NOTICE.fullmatch(text)):
        report.drop(NOTICES, place)
        return None
    return text


class Mark(Enum):
    """What a line is that belongs to no message."""

    NOTICE = "written by the application, with the lines up to the next message"
    DATE = "of the messages below"
    END = "of a conversation"


LineKind = Callable[[str], "Message | Mark | None"]  # the message that a line begins, a mark, or None


def messages_of_lines(
    text: TextFile, report: Report, kind_of: LineKind, finished: Callable[[Message], Message] = lambda m: m
) -> Iterator[Message | None]:
    """Yield the messages, and None where a conversation ends or a line is missing."""
    current: Message | None = None
    in_notice = False
    for number, line in lines(text, report):
        kind = kind_of(line) if line is not None else None
        if line is None:
            current = None
            yield None
        elif kind is None:
            if current is not None:
                current = with_line(current, line)
            elif line.strip() and not in_notice:
                report.drop("lines before the first message", f"{text.place}, line {number}")
        elif kind is not Mark.DATE:
            if current is not None:
                yield finished(current)
            current = kind if isinstance(kind, Message) else None
            in_notice = kind is Mark.NOTICE
            if in_notice:
                report.drop(NOTICES, f"{text.place}, line {number}")
            elif current is None:
                yield None
    if current is not None:
        yield finished(current)


def with_line(message: Message, line: str) -> Message:
    """Return the message with another line, unless it is too long to be used already."""
    return message._replace(text=f"{message.text}\n{line}") if len(message.text) <= MAX_TURN else message


def joined(parts: Iterable[str]) -> str:
    """Join messages or lines to one utterance.

    A comma separates Chinese that has no punctuation, nothing separates Chinese that has, and a space everything else.
    """
    text = ""
    for part in parts:
        for line in part.splitlines():
            line = line.strip()
            if text and line:
                chinese = _CHINESE.match(line) is not None
                if chinese and _CHINESE.match(text[-1]):
                    text += "，"
                elif not (chinese and not text[-1].isascii() and not text[-1].isalnum()):
                    text += " "
            text += line
    return text


def time_of(cell: str) -> float | None:
    """Return the seconds of a Unix time, in seconds or milliseconds, or of a date; None for anything else."""
    cell = cell.strip()
    try:
        if cell.replace(".", "", 1).isdecimal():
            return float(cell) / (1000 if len(cell.split(".")[0]) > 11 else 1) if len(cell) > 8 else None
        return datetime.fromisoformat(cell.replace("/", "-").replace("Z", "+00:00")).timestamp() if cell else None
    except (ValueError, OverflowError, OSError):
        return None

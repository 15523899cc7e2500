"""From the messages of a chat to pairs: what is text in a message, whose turn it is, where a conversation ends.

Consecutive messages of one person are one turn, and adjacent turns are a pair. A turn without text, such as a picture,
stands between the turns around it, which therefore are no pair. A conversation ends with the chat, or with a pause.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile, groupby, islice, pairwise
from typing import NamedTuple, TypeVar

from chatbot.corpus.reading.conversation import Pair, Turn, nobody_is, pairs_of_turns
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.times import PAUSE, form_of, seconds
from chatbot.display import CHINESE_OR_KANA

MAX_TURN = 10_000  # characters; a longer turn is no reply
FIRST = 200  # messages, whose times tell their form, and whether the newest comes first
MAX_HELD = 100_000  # messages that are turned around, or sorted by their chats, at once
MAX_NAMES = 1000  # of people, for the message about a name that does not occur
NO_TEXT = "messages without text, such as pictures"
NOTICES = "notices of the application, such as calls and deleted messages"
ME = "me"  # the name for --me where an export marks the messages of the user, but has no name for them

SYSTEM = frozenset(
    {"系统消息", "系統消息", "系统通知", "System Message"}
)  # what an application writes in place of a sender
# The words that exporters and applications write in brackets in place of what is no text, often with a name, a number
# or a text after them: [图片], [图片: a.jpg], [语音消息], [文件|a.doc](http://...), [Photo].
_MEDIA_WORDS = (
    "图片|圖片|照片|表情|动画表情|動畫表情|自定义表情|商城表情|表情包|语音|語音|语音信息|語音訊息|视频|視頻|影片|文件|檔案|位置|位置情報"
    "|链接|红包|QQ红包|微信红包|转账|转账收款|名片|个人名片|视频号名片|聊天记录|合并转发|转发|转发的聊天记录|小程序|音乐|闪照|戳一戳"
    "|窗口抖动|卡片|视频通话|语音通话|视频/语音通话|通话|通话记录|贴纸|貼圖|贴图|拍一拍|实时位置共享|地理位置|群公告|接龙|视频号|视频号直播"
    "|笔记|分享|礼物|GIF表情|红包封面|图文|其他|不支持|解析失败|未知|未知类型|JSON|Markdown|长|日历|系统|表情气泡|引用"
    "|スタンプ|写真|動画|ボイスメッセージ|アルバム|ファイル|ノート"
    "|Photo|Image|Picture|Sticker|Video|Voice|Voice message|Audio|File|GIF|Location|Emoji|Link"
)
_MEDIA = re.compile(
    rf"!?\[(?:{_MEDIA_WORDS})(?:消息)?(?:\s*[-:：|\s][^\[\]]{{0,300}})?\](?:\([^()\s]{{0,300}}\))?"
    r"|!\[[^\[\]]{0,200}\]\([^()\s]{1,300}\)|\[[^\[\]]{0,200}\]\(\./media/[^()]{1,300}\)",
    re.IGNORECASE,
)
# A message in which a call or a picture comes first, and then its length, its size or the place of the file.
_MEDIA_FIRST = re.compile(
    rf"\[(?:{_MEDIA_WORDS})(?:消息)?\]\s*(?:\d{{1,2}}(?::\d{{2}}){{1,2}}|[\d.]+ ?[KMG]?B|\S+\.\w{{2,5}}\b.*)?"
    r"|【(?:图片|视频|语音|表情包|文件|分享链接|音视频通话|位置分享|名片|红包|笔记|视频号|合并转发的聊天记录|发起转账|已收款|已退还)】.*"
    r"|\[(?:链接|文件|音乐|小程序|位置|转账|转发的聊天记录|群公告|接龙|名片|语音消息|图文)\] ?.+"
    r"|语音/视频通话\[.{0,40}\]|\[(?:语音|视频)?通话\].{0,40}|(?:语音|视频)通话 - .{1,20}|通话时长.{0,12}",
    re.IGNORECASE | re.DOTALL,
)
# What a reply repeats of the message that it answers.
_QUOTE = re.compile(
    r"\n*\[引用\]\([^()]{0,40}\).*|「[^「」]{1,60}[:：][^「」]{0,2000}」\n(?:[-—]\s?){5,}\n|\[回复消息\]"
    r"|\[回复 [^\[\]\n]{0,200}\]\n?|\[被引用的消息\]\[[^\[\]]{1,10}\][^\n]*\n?|\[引用 [^\[\]]{1,60}：.{0,2000}\]\s*$"
    r"|\n引用[:：][^:：\n]{1,60}[:：][^\n]*$|\n+\s*↳ ?回复[^\n]*",
    re.DOTALL,
)
_MENTION = re.compile(r"<[@#][!&]?\w{1,30}(?:\|([^<>]{1,60}))?>|<!(?:here|channel|everyone)>")
_LINK = re.compile(r"<((?:https?://|mailto:)[^<>|\s]{1,500})(?:\|([^<>]{1,300}))?>")
# Messages that the application wrote, in full. A text that a person may write, such as 已取消, is none.
_NOTICE = re.compile(
    r".{0,40}(?:撤回了一条|已收回|收回了)(?:成员)?(?:消息|訊息).{0,20}|.{0,40}加入(?:了)?(?:本群|群聊|群组).{0,10}"
    r"|对方已成功接收了你发送的离线文件.*|你已下载文件.*|你已添加了.{1,40}，现在可以开始聊天了。"
    r"|(?:此|這則|您已|你已)(?:消息|訊息)?(?:已)?(?:删除|刪除)(?:此|這則)?(?:消息|訊息)?"
    r"|未接(?:语音|视频|語音|視訊)(?:通话|通話).{0,20}|(?:☎ ?)?(?:通话时长|通話時間).{0,12}|☎ ?\D{0,20}"
    r"|(?:This message was|You) deleted(?: this message)?\.?|Missed (?:group )?(?:voice|video) call.{0,20}"
    r"|[\"“「].{1,40}[\"”」] ?拍了拍.{1,40}|.{1,40}拍了拍 ?(?:[\"“「].{1,40}|[我你您]|自己)"
    r"|[你您]已?[删刪]除了?(?:此|这条|這則)(?:消息|訊息)。?|(?:此|这条|這則)(?:消息|訊息)已被?[删刪]除。?"
    r"|Diese Nachricht wurde gelöscht\.?|Du hast diese Nachricht gelöscht\.?"
    r"|Verpasster (?:Gruppen-)?(?:Sprach|Video)anruf.{0,20}"
    r"|(?:Se eliminó|Eliminaste) este mensaje\.?|Ce message a été supprimé\.?|Vous avez supprimé ce message\.?"
    r"|Es[st]a mensagem foi apagada\.?|Você apagou esta mensagem\.?"
    r"|(?:Mensagem|Esta mensagem) apagada|Данное сообщение удалено|Вы удалили данное сообщение"
    r"|You deleted a message\.|They deleted a message\."
    r"|.{1,60}님이 (?:들어왔|나갔)습니다\.|.{1,60}님을 (?:초대|내보냈).{1,20}"
    r"|Questo messaggio è stato eliminato\.?|Hai eliminato questo messaggio\.?"
    r"|Liked a message|Reacted .{1,20} to your message|.{1,60} (?:sent an attachment|unsent a message)\."
    r"|A aimé un message|Hat eine Nachricht mit .Gefällt mir. markiert|Le gust[aó] un mensaje|Curtiu uma mensagem"
    r"|Waiting for this message.*",
    re.IGNORECASE,
)
_LONGEST_NOTICE = 120  # characters
_XML = re.compile(r"\s*(?:<\?xml|<msg|<sysmsg|<appmsg)")
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")


class Message(NamedTuple):
    """A message of a chat."""

    sender: str  # the same for all messages of a person
    names: tuple[str, ...]  # what --me may give: the name first, then numbers and addresses
    time: str  # as the file has it; "" without one
    text: str  # "" for a message that is no text


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
        for turn in _turns(_timed(messages, report, place), report, place):
            if turn is None:
                yield None
                continue
            names, text = turn
            if len(people) < MAX_NAMES:
                people.setdefault(names[0])
            mine = me is None or me in map(str.casefold, names)
            has_written = has_written or mine
            yield Turn(text, bool(text), mine and bool(text))

    for pair in pairs_of_turns(turns()):
        pairs += 1
        yield pair
    if has_written and not pairs:
        report.drop("chats in which nobody answers", place)
    if people and not has_written:
        raise nobody_is(options.me or "", people, place)


def _timed(
    messages: Iterable[Message | None], report: Report, place: str
) -> Iterator[tuple[Message, float | None] | None]:
    """Yield each message with the seconds of its time, the oldest first; at most MAX_HELD are held."""
    messages = iter(messages)
    block = list(islice(messages, FIRST))
    form, unknown = form_of(message.time for message in block if message)
    if unknown:
        report.warn(unknown, place)
    timed = (m and (m, seconds(m.time, form) if form else None) for m in chain(block, messages))
    first = list(islice(timed, FIRST))
    known = [(a[1], b[1]) for a, b in pairwise(first) if a and b]
    steps = [b - a for a, b in known if a is not None and b is not None]
    if not steps or max(steps) > 0 or min(steps) == 0:
        yield from chain(first, timed)
        return
    while first:
        first += islice(timed, MAX_HELD - len(first))
        yield from (*reversed(first), None)
        first = list(islice(timed, FIRST))


def _turns(
    messages: Iterable[tuple[Message, float | None] | None], report: Report, place: str
) -> Iterator[tuple[tuple[str, ...], str] | None]:
    """Yield (names of the person, text) of each turn, and None after each conversation."""
    usable = _usable(messages, report, place)
    for sender, group in groupby(usable, lambda message: message.sender if message else None):
        names: tuple[str, ...] = ("",)
        parts: list[str] = []
        characters = 0
        for message in group if sender is not None else ():
            assert message is not None
            names = message.names
            characters += len(message.text)
            if characters <= MAX_TURN and message.text:
                parts.append(message.text)
        if characters > MAX_TURN:
            report.drop(f"turns of more than {MAX_TURN:,} characters", place)
            parts = []
        yield None if sender is None else (names, joined(parts))


def _usable(
    messages: Iterable[tuple[Message, float | None] | None], report: Report, place: str
) -> Iterator[Message | None]:
    """Yield the messages with their text alone, without notices, and None after each conversation and at a pause."""
    last: float | None = None  # time of the last message
    for timed in messages:
        if timed is None:
            last = None
            yield None
            continue
        message, time = timed
        text = plain_text(message.text)
        if message.names[0] in SYSTEM or (text and len(text) <= _LONGEST_NOTICE and _NOTICE.fullmatch(text)):
            report.drop(NOTICES, place)
            continue
        if not text:
            report.drop(NO_TEXT, place)
        if last is not None and time is not None and abs(time - last) > PAUSE:
            yield None
        last = time if time is not None else last
        yield message._replace(text=text)


def plain_text(text: str) -> str:
    """Return what a person wrote in a message: without media, quotes of other messages and marks of mentions."""
    text = text.strip()
    if _XML.match(text):
        return ""
    if "<" in text:
        text = shown_marks(text)
    if text.startswith("> "):
        text = without_quotes(text)
    if "[" in text or "「" in text or "【" in text or "引用" in text or "通话" in text:
        text = _QUOTE.sub("", text).strip()
        text = "" if _MEDIA_FIRST.fullmatch(text) else _MEDIA.sub(" ", text).strip()
    return text


def shown_marks(text: str) -> str:
    """Return the text with mentions and links as people see them in Slack and Discord."""
    return _LINK.sub(lambda link: link[2] or link[1], _MENTION.sub(lambda mention: mention[1] or "", text)).strip()


def without_quotes(text: str) -> str:
    """Return the text below the lines of another message that it begins with, each with > before it."""
    return "\n".join(dropwhile(lambda line: line.startswith(">") or not line.strip(), text.splitlines()))


_M = TypeVar("_M")  # a message, or a turn


def by_chat(messages: Iterable[tuple[str, _M] | None]) -> Iterator[_M | None]:
    """Yield the messages of each chat together, with None after it. messages: (chat, message); None ends all chats.

    When MAX_HELD messages are held, those of all chats but the present one are yielded.
    """
    chats: dict[str, list[_M]] = {}  # in the order of their first messages
    count = 0
    for item in messages:
        if item is None:
            yield from _released(chats)
            count = 0
            yield None
            continue
        chat, message = item
        if not chat:
            yield message  # there is a single chat
            continue
        if count >= MAX_HELD:
            present = chats.pop(chat, [])
            yield from _released(chats)
            chats[chat], count = present, len(present)
            if count >= MAX_HELD // 2:
                yield from _released(chats)
                count = 0
        chats.setdefault(chat, []).append(message)
        count += 1
    yield from _released(chats)


def _released(chats: dict[str, list[_M]]) -> Iterator[_M | None]:
    for conversation in chats.values():
        yield from (*conversation, None)
    chats.clear()


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

"""Tables with one message on each row, such as WeChat's: who sent it, its text, often its time, kind and chat.

Rows of several chats may be mixed: each chat's conversation is collected until it pauses.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.formats.chat import (
    ME,
    NO_TEXT,
    NOTICE_KINDS,
    NOTICES,
    PAUSE,
    Message,
    pairs_of_messages,
    time_of,
)
from chatbot.corpus.reading.formats.columns import key_of, named
from chatbot.corpus.reading.formats.dialect import Dialect, rows_of, rows_of_text
from chatbot.corpus.reading.formats.fields import CHATS, TIMES
from chatbot.corpus.reading.open.text_file import UNDECODABLE, TextFile, refuse_if_mostly_bad
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

TEXTS = (
    *("strcontent", "content", "message", "msg", "text", "body", "utterance"),
    *("消息内容", "聊天内容", "内容", "消息", "发言"),
)
MINE = ("issender", "is_sender", "issend", "is_send", "isself", "is_self", "is_from_me", "from_me", "is_me")
NAMES = (
    *("nickname", "sender_name", "sendername", "from_nickname", "from_name", "author", "username", "user_name"),
    *("sender", "speaker", "speaker_id", "speaker_idx", "talker", "user", "from", "name", "remark"),
    *("发送者", "发送人", "发言人", "昵称", "用户名", "用户", "姓名"),
)
OTHER_NAMES = ("remark", "sender", "talker", "wxid", "qq", "qq号", "from_id", "authorid", "user_id", "发送者id")
KINDS = ("type_name", "type", "msg_type", "content_type", "消息类型", "类型")
YES = frozenset({"1", "true", "yes", "是"})
# WeChat's numbers of kinds other than text, and words for them.
_NO_TEXT = frozenset(
    {
        *("3", "34", "42", "43", "47", "48", "49", "50", "图片", "语音", "视频", "表情", "动画表情", "文件", "位置"),
        *("名片", "红包", "转账", "image", "picture", "photo", "voice", "audio", "video", "sticker", "emoji", "file"),
        "location",
    }
)
MAX_OPEN = 100_000  # messages that are collected, of all chats


class _Columns(NamedTuple):
    """The indices of the columns; None for those that the table lacks."""

    text: int
    mine: int | None
    name: int | None
    others: tuple[int, ...]
    time: int | None
    kind: int | None
    chat: int | None


def message_columns(header: Sequence[str]) -> _Columns | None:
    """Return the columns of a table of messages, or None for any other table."""
    places = {key_of(name): index for index, name in reversed(list(enumerate(header)))}

    def find(names: Iterable[str]) -> int | None:
        return next((places[name] for name in names if name in places), None)

    text, mine, name, chat = find(TEXTS), find(MINE), find(NAMES), find(CHATS)
    if text is None or len(header) < 2 or (mine is None and name is None and chat is None):
        return None
    if named(tuple(header)) is not None:
        return None  # a table of pairs
    others = tuple(places[other] for other in OTHER_NAMES if other in places and places[other] != name)
    return _Columns(text, mine, name, others, find(TIMES), find(KINDS), chat)


def is_messages(text: TextFile) -> bool:
    """Return whether the text is a table with a header of messages."""
    return delimiter_of_messages(text.first_lines) is not None


def delimiter_of_messages(sample: Sequence[str]) -> str | None:
    """Return the separator of a table of messages: a comma, a semicolon or a tab; None for any other text."""
    for delimiter in ",;\t":
        row = next((row for _, row, _ in rows_of(sample[:20], Dialect(delimiter)) if row), None)
        if row and message_columns(row):
            return delimiter
    return None


def read_message_rows(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of all chats. Raises UserError if `options.me` wrote no message."""
    return pairs_of_messages(_by_chat(_messages(text, report)), options, report, text.place)


def _messages(text: TextFile, report: Report) -> Iterator[tuple[str, Message | None]]:
    """Yield (chat, message), with None where a row is missing."""
    sample = text.first_lines
    delimiter = delimiter_of_messages(sample) or "\t"
    columns: _Columns | None = None
    needed = bad = count = 0

    for number, row, _ in rows_of_text(text, report, Dialect(delimiter)):
        count += 1
        place = f"{text.place}, line {number}"
        if columns is None:
            columns = message_columns(row)
            if columns is None:
                raise UserError(
                    f"{place}: no header names the text of messages and who sent them; add a first line such as "
                    "time,sender,content"
                )
            needed = 1 + max(columns.text, columns.mine or 0, columns.name or 0, columns.chat or 0)
            continue
        if len(row) < needed:
            report.drop("rows with too few columns", place)
        elif UNDECODABLE in row[columns.text]:
            bad += 1
            report.drop(f"rows not {text.charset}", place)
            yield _cell(row, columns.chat), None
        elif (kind := _cell(row, columns.kind).casefold()) in _NO_TEXT or kind in NOTICE_KINDS:
            report.drop(NOTICES if kind in NOTICE_KINDS else NO_TEXT, place)
        else:
            yield _cell(row, columns.chat), _message(row, columns, number)
    refuse_if_mostly_bad(text, report, bad, count)


def _cell(row: Sequence[str], column: int | None) -> str:
    return row[column].strip() if column is not None and column < len(row) else ""


def _message(row: Sequence[str], columns: _Columns, number: int) -> Message:
    mine = _cell(row, columns.mine).casefold() in YES
    name = _cell(row, columns.name) or (ME if mine else "")
    named_rows = columns.mine is not None or columns.name is not None  # in others, every row is a turn
    sender = f"{mine:d}{name}" if named_rows else str(number)  # the name may be the chat's, the same for both sides
    names = (name, *filter(None, (_cell(row, index) for index in columns.others)), *([ME] if mine else []))
    return Message(sender, names, time_of(_cell(row, columns.time)), row[columns.text])


def _by_chat(messages: Iterable[tuple[str, Message | None]]) -> Iterator[Message | None]:
    """Yield the messages of each conversation together, with None after it.

    When MAX_OPEN messages are held, those of all chats but the present one are yielded.
    """
    waiting: dict[str, list[Message]] = {}  # by chat, in order of their first message
    held = 0
    for chat, message in messages:
        if not chat:
            yield message  # the table has a single chat
            continue
        own = waiting.setdefault(chat, [])
        if message is None or (own and _is_pause(own[-1], message)):
            held -= len(own)
            yield from (*own, None)
            own.clear()
        if message is not None:
            own.append(message)
            held += 1
        if held > MAX_OPEN:
            for other in [other for other in waiting if other != chat]:
                held -= len(waiting[other])
                yield from (*waiting.pop(other), None)
    for own in waiting.values():
        yield from (*own, None)


def _is_pause(first: Message, second: Message) -> bool:
    return first.time is not None and second.time is not None and abs(second.time - first.time) > PAUSE

"""The names of fields in nested values, and the text, the speaker and the side of a message.

One table of synonyms serves all products: a chat of OpenAI, an export of Discord and a corpus of dialogues differ in
the names of their fields, and hardly in anything else.
"""

import functools
import html
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.display import SHOWN_NAME, listing, one_line
from chatbot.corpus.reading.report import ALONE, ReadOptions, Report
from chatbot.errors import UserError

ASKING = frozenset({"user", "human", "usr", "prompter", "用户", "人类", "问"})
ANSWERING = frozenset(
    {"assistant", "gpt", "bot", "chatbot", "chatgpt", "model", "sys", "ai", "bing", "bard", "claude", "moss"}
    | {"助手", "机器人", "答"}
)
TOOLS = frozenset({"tool", "function", "function_call", "function_response", "observation", "ipython"})
SPEAKERS = (
    *("role", "nickname", "sender_name", "sendername", "from_nickname", "from_name", "from", "sender", "speaker"),
    *("author", "agent", "username", "user_name", "user", "user_id", "name", "participant", "from_id"),
    *("sender_full_name", "senderdisplayname", "sendernickname", "senderusername", "creator"),
    *("speaker_id", "speaker_idx", "talker"),
    *("发送者", "发送人", "发言人", "说话人", "昵称", "角色", "用户名", "用户", "姓名"),
)
# What --me may give beside the speaker.
OTHER_NAMES = (
    *("user_profile", "sender_id", "from_id", "remark", "sender", "talker", "wxid", "qq", "qq号"),
    *("authorid", "user_id", "发送者id"),
)
# Whether the user of the application wrote a message.
MINE = ("issender", "is_sender", "issend", "is_send", "isself", "is_self", "is_from_me", "from_me", "is_me")
# A text, in order of preference; a message of Topical-Chat has both "message" and others.
TEXTS = (
    *("body", "selftext", "strcontent", "content", "value", "text", "message", "utterance", "sentence", "parts"),
    *("msg", "turn", "transcript", "消息内容", "聊天内容", "内容", "消息", "发言", "文本"),
)
KINDS = ("type_name", "type", "msg_type", "content_type", "消息类型", "类型")
# Lists of the turns of one conversation, and of several conversations or records.
CONVERSATION = (
    *("messages", "conversations", "conversation", "dialog", "dialogue", "dialogs", "dialogues", "utterances"),
    *("turns", "chat_messages", "contents", "chat", "log", "data", "content", "items", "对话"),
    *("MessageList", "value"),  # of Skype and of Microsoft Teams
)
SEPARATE = frozenset({"conversations", "dialogs", "dialogues", "data", "items", "value"})  # of several conversations
TIMES = (
    *("ts", "timestamp_ms", "createtime", "create_time", "strtime", "timestamp", "date_unixtime", "createdat"),
    *("created_utc", "createddatetime", "originalarrivaltime", "datetime", "created_at", "time", "date"),
    *("时间", "发送时间", "日期"),
)
CHATS = (
    *("talkerid", "strtalker", "room_name", "group_id", "chat_id", "chat", "conversation_id", "conv_id"),
    *("conversation", "dialogue_id", "dialog_id", "dialogue", "dialog", "session_id", "channel", "channel_id"),
    *("thread_ts", "thread_id", "会话", "群名", "对话", "会话id", "会话编号", "工单号"),
)
# Of messages that name the message they answer.
IDS = ("id", "message_id", "comment_id", "post_id", "msg_id", "_id", "id_str", "name")
PARENTS = (
    *("parent_id", "parent", "parentid", "parent_message_id", "parent_uuid", "in_reply_to_id", "reply_to"),
    *("in_reply_to_status_id", "in_reply_to_status_id_str", "in_reply_to", "reply_to_id"),
)


class MessageFields(NamedTuple):
    """The names of the fields of a message; None for what it has not."""

    speaker: str | None
    text: str
    time: str | None
    chat: str | None
    mine: str | None
    kind: str | None
    names: tuple[str, ...]  # others of the speaker
    key: str | None
    parent: str | None
    title: str | None


def by_lower(names: tuple[str, ...]) -> dict[str, str]:
    """Return the names by their small letters; of two, the first."""
    return {name.strip().casefold(): name for name in reversed(names)}


@functools.lru_cache(maxsize=256)  # the messages of a file have the same fields
def message_fields(names: tuple[str, ...]) -> MessageFields | None:
    """Return the fields of a message, None for an object without text."""
    by_name = by_lower(names)

    def first(choice: tuple[str, ...]) -> str | None:
        return next((by_name[name] for name in choice if name in by_name), None)

    text = first(TEXTS)
    if text is None:
        return None
    speaker, time, chat, mine, kind = map(first, (SPEAKERS, TIMES, CHATS, MINE, KINDS))
    others = tuple(by_name[name] for name in OTHER_NAMES if by_name.get(name, speaker) != speaker)
    return MessageFields(speaker, text, time, chat, mine, kind, others, first(IDS), first(PARENTS), first(("title",)))


def text_of(value: object) -> str | None:
    """Return the text of a value: a text, a number, or the texts of several parts; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict):
        name = next((name for name in ("text", "parts", "content", "value", "body") if name in value), None)
        return text_of(value[name]) if name else None
    if isinstance(value, list):
        parts = (part for part in value if isinstance(part, str) or (isinstance(part, dict) and _is_said(part)))
        texts = [text for part in parts if (text := text_of(part)) is not None]
        return "\n".join(texts) if texts else None
    return None


def text_of_html(markup: str) -> str:
    """Return the text of a message in HTML: without tags, and with the characters that entities mean."""
    return html.unescape(_TAG.sub("", _BREAK.sub("\n", markup))).strip()


def _is_said(part: Mapping[str, object]) -> bool:
    """Return whether a part of a message is neither the result of a tool nor the reasoning of a model."""
    return part.get("type") not in ("tool_result", "tool_use", "thinking", "reasoning") and not part.get("thought")


def speaker_of(value: object) -> str:
    """Return the name of a speaker: a text, a number, or an object with a name, such as Discord's author."""
    if isinstance(value, dict):
        names = ("role", "name", "nickname", "username", "display_name", "displayName", "id", "user")
        value = next((value[name] for name in names if value.get(name)), "")
        if isinstance(value, dict):  # {"user": {"displayName": ...}}
            return speaker_of(value)
    return str(value).strip() if isinstance(value, str | int) else ""


_BREAK, _TAG = re.compile(r"<br\b[^<>]*>|</(?:p|div|li|h\d)>", re.IGNORECASE), re.compile(r"</?[A-Za-z][^<>]*>")
_TWICE = re.compile("[\u00c2-\u00f4][\u0080-\u00bf]")


def repaired(text: str) -> str:
    """Return a text of Facebook's exports, which write each byte of UTF-8 as a character, as it was meant."""
    if _TWICE.search(text) is None:
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def scalar(record: Mapping[str, object], name: str | None) -> str:
    """Return the text or number in a field, "" if there is none."""
    value = record.get(name) if name else None
    return str(value) if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool) else ""


MAX_DEPTH = 16  # of nested lists and objects
HEAD, MAX_HEAD = 50, 4 * 2**20  # values and bytes of a list that decide how it is read
NO_PAIR = "records without question and answer"
DOUBTFUL = "records whose reading is in doubt"


class UnknownFieldsError(UserError):
    """A file has no pairs, but objects of texts with unknown fields."""


@dataclass
class Walk:
    """The state of reading the values of one file."""

    options: ReadOptions
    report: Report
    place: str  # of the file, for messages
    locate: Callable[[], str]  # the place of the current value: "a.json, item 3"
    before: int = -1  # pairs in the report when the file was begun
    fields: tuple[str, ...] = ()  # of the first object of texts whose fields are not known

    def __post_init__(self) -> None:
        self.before = self.report.pairs if self.before < 0 else self.before

    def drop(self, reason: str, count: int = 1) -> None:
        """Count parts without pairs, with the place of the first."""
        self.report.drop(reason, self.locate(), count)

    def drop_alone(self, turns: int) -> None:
        """Count a conversation without pairs."""
        self.drop(ALONE if turns == 1 else "conversations without a question and its answer")

    def doubts(self, question: str) -> bool:
        """Return whether to read on in doubt. question: why the reading may be wrong, and the flag that settles it.

        At the beginning of a file the user is asked, who sees the pairs as they would be read; later, it is too late
        to ask, and the value is counted and left out.
        """
        if self.report.pairs == self.before:
            self.report.doubt = self.report.doubt or question
            return True
        self.drop(DOUBTFUL)
        return False

    def checked(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs. Raises UnknownFieldsError at the end if there were none, but objects of texts."""
        has_pairs = False
        for pair in pairs:
            has_pairs = True
            yield pair
        if not has_pairs and self.fields and not self.options.columns:
            problem = f"{self.place}: no known question and answer; give --columns and two of: "
            raise UnknownFieldsError(listing(problem, [one_line(name, SHOWN_NAME) for name in self.fields]))


class Ahead(Iterator[object]):
    """A stream of values whose first ones can be looked at before they are taken."""

    def __init__(self, values: Iterable[tuple[int, int, object]]) -> None:
        """values: (its number, its size in bytes, a value)."""
        self._values = iter(values)
        self._first: deque[tuple[int, int, object]] = deque()
        self.number = 0  # of the value taken last

    def __next__(self) -> object:
        self.number, _, value = self._first.popleft() if self._first else next(self._values)
        return value

    def head(self) -> list[object]:
        """Return the first values, before any is taken: at most HEAD, and not many more than MAX_HEAD bytes."""
        size = 0
        while len(self._first) < HEAD and size < MAX_HEAD and (item := next(self._values, None)) is not None:
            self._first.append(item)
            size += item[1]
        return [value for _, _, value in self._first]

"""The names of fields in nested values, and the text, the speaker and the side of a message.

One table of synonyms serves all products: a chat of OpenAI, an export of Discord and a corpus of dialogues differ in
the names of their fields, and hardly in anything else.
"""

import functools
import html
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

ASKING = frozenset({"user", "human", "usr", "prompter", "用户", "人类", "问"})
ANSWERING = frozenset(
    {"assistant", "gpt", "bot", "chatbot", "chatgpt", "model", "sys", "ai", "bing", "bard", "claude", "moss"}
    | {"助手", "机器人", "答"}
)
TOOLS = frozenset({"tool", "function", "function_call", "function_response", "observation", "ipython"})
SPEAKERS = (
    *("role", "from", "sender", "speaker", "author", "agent", "sender_name", "nickname", "username", "user_name"),
    *("user", "user_id", "name", "participant", "from_id", "sendername", "sender_full_name"),
    *("senderdisplayname", "sendernickname", "senderusername", "creator"),
    *("发送者", "发送人", "发言人", "说话人", "昵称", "角色"),
)
# A text, in order of preference; a message of Topical-Chat has both "message" and others.
TEXTS = (
    *("content", "value", "text", "message", "utterance", "body", "sentence", "parts", "msg", "turn", "transcript"),
    *("内容", "消息", "消息内容", "发言", "文本"),
)
# Lists of the turns of one conversation, and of several conversations or records.
CONVERSATION = (
    *("messages", "conversations", "conversation", "dialog", "dialogue", "dialogs", "dialogues", "utterances"),
    *("turns", "chat_messages", "contents", "chat", "log", "data", "content", "items", "对话"),
    *("MessageList", "value"),  # of Skype and of Microsoft Teams
)
SEPARATE = frozenset({"conversations", "dialogs", "dialogues", "data", "items", "value"})  # of several conversations
TIMES = (
    *("ts", "timestamp_ms", "timestamp", "date_unixtime", "created_at", "createdat", "create_time", "createtime"),
    *("created_utc", "createddatetime", "originalarrivaltime", "datetime", "date", "time", "时间", "发送时间"),
)
CHATS = (
    *("dialog_id", "dialogue_id", "conversation_id", "conv_id", "chat_id", "session_id", "thread_ts", "thread_id"),
    *("channel_id", "talkerid"),
)


class MessageFields(NamedTuple):
    """The names of the fields of a message; None for what it has not."""

    speaker: str | None
    text: str
    time: str | None
    chat: str | None


def by_lower(names: tuple[str, ...]) -> dict[str, str]:
    """Return the names by their small letters; of two, the first."""
    return {name.strip().casefold(): name for name in reversed(names)}


@functools.lru_cache(maxsize=256)  # the messages of a file have the same fields
def message_fields(names: tuple[str, ...]) -> MessageFields | None:
    """Return the fields of a message, None for an object without text."""
    found = by_lower(names)

    def first(choice: tuple[str, ...]) -> str | None:
        return next((found[name] for name in choice if name in found), None)

    text = first(TEXTS)
    return None if text is None else MessageFields(first(SPEAKERS), text, first(TIMES), first(CHATS))


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

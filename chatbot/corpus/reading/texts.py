"""The text in a value: of its parts, of a message without what programs add, and as each exporter writes it.

A row of layouts.yaml may name the functions in FUNCTIONS: `finish`, from a text to what a person wrote, and `unfold`,
from a value to what the map reads.
"""

import html
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import dropwhile
from typing import Any

import orjson

from chatbot.corpus.reading.names import pattern

YES = frozenset({"1", "true", "yes", "是", "1.0", "send", "发", "发送"})
NO = frozenset({"0", "false", "no", "否", "0.0"})
MAX_DEPTH = 8  # of the parts of a text
_MENTION = re.compile(r"<[@#][!&]?\w{1,30}(?:\|([^<>]{1,60}))?>|<!(?:here|channel|everyone)>")
_LINK = re.compile(r"<((?:https?://|mailto:)[^<>|\s]{1,500})(?:\|([^<>]{1,300}))?>")
_LEFT_OUT, _NO_TEXT, _QUOTE, _CODE = map(pattern, ("left_out", "no_text", "quotes", "codes"))
_QUOTED = re.compile(r'<(quote|blockquote|mx-reply)\b.*?</\1>|<p><span class="user-mention silent".*?</p>', re.DOTALL)
_BREAK = re.compile(r"<(?:br|p)\b[^<>]*>|</(?:p|div|li|h\d)>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_TWICE = re.compile("[\u00c2-\u00f4][\u0080-\u00bf]")


def text_of(value: object, depth: int = 0) -> str:
    """Return the text of a value: a text, a number, or the texts of several parts; "" for anything else."""
    if isinstance(value, str):
        return value
    if value is None or depth > MAX_DEPTH:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict):
        if value.get("thought") or value.get("type") in ("tool_result", "tool_use", "thinking", "reasoning"):
            return ""
        name = next((name for name in ("text", "content", "parts", "value") if name in value), "")
        return text_of(value.get(name), depth + 1)
    return "\n".join(filter(None, (text_of(part, depth + 1) for part in value))) if isinstance(value, list) else ""


def said_by(speakers: Iterable[object]) -> list[str]:
    """Return what speakers are called."""
    return [str(each) if isinstance(each, bool) else text_of(each) for each in speakers]


def alternatives(value: object) -> list[str]:
    """Return the texts of a question or an answer: one, or several that mean the same."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # as datasets has them, of SQuAD the first
        value = value["text"][: 1 if "answer_start" in value else None]
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "answer_start" in value[0]:
            value = value[:1]  # the same span as several people marked it
        parts = [part for each in value for part in (each if isinstance(each, list) else [each])]
        return list(dict.fromkeys(filter(None, map(text_of, parts))))
    return [text_of(value)] if text_of(value) else []


def plain_text(text: str) -> str:
    """Return what a person wrote in a message: without media, quotes of other messages and marks of mentions."""
    text = text.strip()
    if text.startswith(("<?xml", "<msg", "<sysmsg", "<appmsg")):
        return ""
    if "<" in text:
        text = shown_marks(text)
    if text.startswith("> "):
        text = without_quotes(text)
    if "[" in text or "「" in text or "【" in text or "引用" in text or "通话" in text:
        text = _QUOTE.sub("", text).strip()
        text = "" if _NO_TEXT.fullmatch(text) else _LEFT_OUT.sub(" ", text).strip()
    return text


def have_codes(texts: Iterable[str]) -> bool:
    """Return whether what is left of messages still has codes of a messenger, which nobody wrote."""
    return any(map(_CODE.search, map(plain_text, texts)))


def shown_marks(text: str) -> str:
    """Return the text with mentions and links as people see them in Slack and Discord."""
    return _LINK.sub(lambda link: link[2] or link[1], _MENTION.sub(lambda mention: mention[1] or "", text)).strip()


def without_quotes(text: str) -> str:
    """Return the text below the lines of another message that it begins with, each with > before it."""
    return "\n".join(dropwhile(lambda line: line.startswith(">") or not line.strip(), text.splitlines()))


def without_html(markup: str) -> str:
    """Return the text of a message in HTML: without quotes and tags, and with the characters that entities mean."""
    return html.unescape(_TAG.sub("", _BREAK.sub("\n", _QUOTED.sub("", markup)))).strip()


def repaired(text: str) -> str:
    """Return a text of Facebook's exports, which write each byte of UTF-8 as a character, as it was meant."""
    if _TWICE.search(text) is None:
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def shown_branch(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages that ChatGPT, DeepSeek or Open WebUI showed last, from the tree of a conversation."""
    history = value.get("chat", {}).get("history", {}) if "chat" in value else value
    nodes = history.get("mapping") or history.get("messages")
    nodes = {key: node for key, node in nodes.items() if isinstance(node, dict)} if isinstance(nodes, dict) else {}
    key = history.get("current_node", history.get("currentId"))
    if not isinstance(key, str) or key not in nodes:  # the last message that has no reply
        key = next(
            (key for key in reversed(nodes) if not nodes[key].get("children", nodes[key].get("childrenIds"))), ""
        )
    branch: list[Any] = []
    while isinstance(key, str) and key in nodes:
        node = nodes.pop(key)
        message = node.get("message", node)
        if isinstance(message, dict):
            branch += reversed(message.get("fragments") or [message])
        key = node.get("parent", node.get("parentId"))
    return branch[::-1]


def tree_of_replies(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages of a tree, each with the id of its parent as parent_id."""
    found: list[Any] = []
    waiting = [(root, "") for root in value.get("messagesTree") or [value.get("prompt") or value]]
    while waiting:
        node, parent = waiting.pop()
        if isinstance(node, dict):
            key = text_of(node.get("message_id", node.get("rpid", node.get("messageId"))))
            found.append({**node, "parent_id": parent, "message_id": key})
            replies = node.get("replies") or node.get("children")
            waiting += [(reply, key) for reply in reversed(replies)] if isinstance(replies, list) else []
    return found


def with_senders(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages of WeFlow's compact file, each with its entry in the list of senders."""
    senders = {each.get("senderID"): each for each in value["senders"] if isinstance(each, dict)}
    messages = [each for each in value["messages"] if isinstance(each, dict)]
    return [{**each, "sender": senders.get(each.get("senderID"), {})} for each in messages]


def _without_details(markup: str) -> str:
    while "<details" in markup:  # the reasoning of a model
        before, _, rest = markup.partition("<details")
        markup = before + rest.partition("</details>")[2]
    return markup.strip()


def _without_marks(text: str) -> str:
    """Return a text of MOSS without the marks around it."""
    text = text.partition("|>:")[2] or text
    return text.rpartition("<eo")[0].strip() if "<eo" in text else text.strip()


def _of_json(text: str) -> str:
    """Return the text in an object of JSON, as some programs write it in a cell."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text_of(value.get("msg", value.get("text"))) if isinstance(value, dict) else text


def _of_post(text: str) -> str:
    return without_quotes(html.unescape(text))


def _of_slack(text: str) -> str:
    return html.unescape(shown_marks(text))


_DISCORD = re.compile(  # what Discord writes in place of a text
    r"Pinned a message\.|Joined the server\.|Started a (?:thread\.|call that lasted .*)|Left the group\."
    r"|Changed the channel (?:name|icon)\b.*|(?:Added|Removed) .{1,60} (?:to|from) the group\."
)


def of_discord(text: str) -> str:
    """Return a text of Discord, "" for what it wrote itself."""
    return "" if _DISCORD.fullmatch(text) else text


KAKAOTALK = re.compile(
    r"<?(?:사진|동영상|이모티콘|음성메시지)(?: \d+장)?(?: 읽지 않음)?>?|파일: .*|삭제된 메시지입니다\."
)


def _of_kakaotalk(text: str) -> str:
    return "" if KAKAOTALK.fullmatch(text) else text


def _alternating(value: Mapping[str, Any]) -> list[Any]:
    """Return the texts of a user and an assistant, who take turns, as messages."""
    return [{"role": ("user", "assistant")[n % 2], "text": text} for n, text in enumerate(value["data"])]


def _without_name(text: str) -> str:
    """Return a reply to a reply without 回复 @name : before it."""
    return text.partition(":")[2].strip() if text.startswith("回复 @") and ":" in text else text


def _with_outer(value: Mapping[str, Any]) -> list[Any]:
    """Return the objects in the lists of an object, each with the fields around it, such as questions of a passage."""
    lists = [part for part in value.values() if isinstance(part, list)]
    return [{**value, **each} for part in lists for each in part if isinstance(each, dict)]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "shown_branch": shown_branch,
    "tree_of_replies": tree_of_replies,
    "with_senders": with_senders,
    "with_outer": _with_outer,
    "without_details": _without_details,
    "without_marks": _without_marks,
    "without_name": _without_name,
    "without_html": without_html,
    "repaired": repaired,
    "of_json": _of_json,
    "of_post": _of_post,
    "of_slack": _of_slack,
    "of_discord": of_discord,
    "of_kakaotalk": _of_kakaotalk,
    "alternating": _alternating,
}

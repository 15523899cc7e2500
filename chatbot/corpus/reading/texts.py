"""Extracts texts from JSON values, and removes the media, quotes and mentions that messengers add to messages.

FUNCTIONS contains the functions that layouts.yaml and heads.yaml refer to by name. `finish` functions extract what a
person wrote from a text. `unfold` functions convert a value before the map of its layout is applied.
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
MAX_DEPTH = 8  # maximum nesting depth of a text that is stored in parts
_MENTION = re.compile(r"<[@#][!&]?\w{1,30}(?:\|([^<>]{1,60}))?>|<!(?:here|channel|everyone)>")
_LINK = re.compile(r"<((?:https?://|mailto:)[^<>|\s]{1,500})(?:\|([^<>]{1,300}))?>")
_LEFT_OUT, _NO_TEXT, _QUOTE, _CODE = map(pattern, ("left_out", "no_text", "quotes", "codes"))
_QUOTED = re.compile(r'<(quote|blockquote|mx-reply)\b.*?</\1>|<p><span class="user-mention silent".*?</p>', re.DOTALL)
_BREAK = re.compile(r"<(?:br|p)\b[^<>]*>|</(?:p|div|li|h\d)>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


def text_of(value: object, depth: int = 0) -> str:
    """Convert a string, a number, or a list or object of text parts to text. Other values become ""."""
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


def speaker_names(speakers: Iterable[object]) -> list[str]:
    """Convert the values of a speaker field to names."""
    return [str(each) if isinstance(each, bool) else text_of(each) for each in speakers]


def alternatives(value: object) -> list[str]:
    """Return all phrasings of a question, or all answers to a question."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # the structure in Hugging Face data sets
        value = value["text"][: 1 if "answer_start" in value else None]
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and "answer_start" in value[0]:
            value = value[:1]  # In SQuAD, the answers are the same answer, marked by several people.
        parts = [part for each in value for part in (each if isinstance(each, list) else [each])]
        return list(dict.fromkeys(filter(None, map(text_of, parts))))
    return [text_of(value)] if text_of(value) else []


def plain_text(text: str) -> str:
    """Return what a person wrote in a message. Placeholders of media, quoted messages and mentions are removed."""
    text = text.strip()
    if text.startswith(("<?xml", "<msg", "<sysmsg", "<appmsg")):
        return ""
    if "<" in text:
        text = show_marks(text)
    if text.startswith("> "):
        text = strip_quotes(text)
    if "[" in text or "「" in text or "【" in text or "引用" in text or "通话" in text:
        text = _QUOTE.sub("", text).strip()
        text = "" if _NO_TEXT.fullmatch(text) else _LEFT_OUT.sub(" ", text).strip()
    return text


def have_codes(texts: Iterable[str]) -> bool:
    """Return whether messages contain codes of a messenger that `plain_text` does not remove."""
    return any(map(_CODE.search, map(plain_text, texts)))


def show_marks(text: str) -> str:
    """Replace the codes of mentions and links in a Slack or Discord message with the text that users see."""
    return _LINK.sub(lambda link: link[2] or link[1], _MENTION.sub(lambda mention: mention[1] or "", text)).strip()


def strip_quotes(text: str) -> str:
    """Remove a quoted message, i.e. lines that begin with ">", at the beginning of a text."""
    return "\n".join(dropwhile(lambda line: line.startswith(">") or not line.strip(), text.splitlines()))


def strip_html(markup: str) -> str:
    """Convert a message in HTML to plain text. Quoted messages are removed."""
    return html.unescape(_TAG.sub("", _BREAK.sub("\n", _QUOTED.sub("", markup)))).strip()


def repair_text(text: str) -> str:
    """Repair a text from a Facebook export. These exports write each byte of the UTF-8 encoding as a character."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def find_shown_branch(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages that the user saw last in a ChatGPT, DeepSeek or Open WebUI conversation.

    The exports contain a tree of messages, because edited and regenerated messages begin new branches.
    """
    history = value.get("chat", {}).get("history", {}) if "chat" in value else value
    nodes = history.get("mapping") or history.get("messages")
    nodes = {key: node for key, node in nodes.items() if isinstance(node, dict)} if isinstance(nodes, dict) else {}
    key = history.get("current_node", history.get("currentId"))
    if not isinstance(key, str) or key not in nodes:  # If the export does not name the branch, use the last one.
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


def flatten_replies(value: Mapping[str, Any]) -> list[Any]:
    """Convert a tree of messages to a list. Each message gets the id of its parent message as `parent_id`."""
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


def join_senders(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages of an export in WeFlow's compact format. Each is merged with the entry of its sender."""
    senders = {each.get("senderID"): each for each in value["senders"] if isinstance(each, dict)}
    messages = [each for each in value["messages"] if isinstance(each, dict)]
    return [{**each, "sender": senders.get(each.get("senderID"), {})} for each in messages]


def _strip_details(markup: str) -> str:
    while "<details" in markup:  # In Open WebUI, this element contains the reasoning of the model.
        before, _, rest = markup.partition("<details")
        markup = before + rest.partition("</details>")[2]
    return markup.strip()


def _strip_moss_marks(text: str) -> str:
    """Remove the marks that surround a text in the format of the MOSS corpus."""
    text = text.partition("|>:")[2] or text
    return text.rpartition("<eo")[0].strip() if "<eo" in text else text.strip()


def _json_text(text: str) -> str:
    """Extract the text from a string that contains a JSON object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text_of(value.get("msg", value.get("text"))) if isinstance(value, dict) else text


def _post_text(text: str) -> str:
    return strip_quotes(html.unescape(text))


def _slack_text(text: str) -> str:
    return html.unescape(show_marks(text))


def _alternate_roles(value: Mapping[str, Any]) -> list[Any]:
    """Convert a list of texts to messages. The odd ones are the user's, the even ones the assistant's."""
    return [{"role": ("user", "assistant")[n % 2], "text": text} for n, text in enumerate(value["data"])]


def _strip_reply_name(text: str) -> str:
    """Remove the prefix "回复 @name :" (reply to @name) from a reply."""
    return text.partition(":")[2].strip() if text.startswith("回复 @") and ":" in text else text


def _join_outer(value: Mapping[str, Any]) -> list[Any]:
    """Return the objects in the lists of an object. Each is merged with the fields of the outer object."""
    lists = [part for part in value.values() if isinstance(part, list)]
    return [{**value, **each} for part in lists for each in part if isinstance(each, dict)]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "find_shown_branch": find_shown_branch,
    "flatten_replies": flatten_replies,
    "join_senders": join_senders,
    "join_outer": _join_outer,
    "strip_details": _strip_details,
    "strip_moss_marks": _strip_moss_marks,
    "strip_reply_name": _strip_reply_name,
    "strip_html": strip_html,
    "repair_text": repair_text,
    "json_text": _json_text,
    "post_text": _post_text,
    "slack_text": _slack_text,
    "alternate_roles": _alternate_roles,
}

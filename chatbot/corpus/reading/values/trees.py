"""Messages that name the message they answer: rows of Reddit and of OpenAssistant, nested replies, ChatGPT's mapping.

A message and each reply to it are a pair; where messages have roles, only the replies of an assistant are learned. Of
ChatGPT's exports only the branch is read that was shown last: its user has left the others.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from chatbot.corpus.reading.pair import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.reading.values.fields import (
    ANSWERING,
    ASKING,
    TEXTS,
    by_lower,
    message_fields,
    scalar,
    speaker_of,
    text_of,
)
from chatbot.corpus.reading.values.walk import Walk

IDS = ("id", "message_id", "comment_id", "post_id", "msg_id", "_id", "id_str", "name")
PARENTS = (
    *("parent_id", "parent", "parentid", "parent_message_id", "parent_uuid", "in_reply_to_id", "reply_to"),
    *("in_reply_to_status_id", "in_reply_to_status_id_str", "in_reply_to", "reply_to_id"),
)
FRAGMENTS = {"REQUEST": "user", "RESPONSE": "assistant"}  # of DeepSeek's messages, beside searches and thoughts
MAX_HELD = 100_000  # messages; a reply to an older one than twice as many is not found
MAX_TEXT = 10_000  # characters of a message; a longer one is no reply
ABSENT = "replies to a message that is not in the file"
REMOVED = "messages that were deleted"
_REMOVED = frozenset({"[deleted]", "[removed]", ""})
_KIND = re.compile(r"t[1-6]_")  # before the ids of Reddit


class _Names(NamedTuple):
    key: str
    parent: str
    text: str
    title: str | None
    speaker: str | None


class _Node(NamedTuple):
    key: str
    parent: str
    text: str  # "" for a message that was deleted
    role: str


@functools.lru_cache(maxsize=256)
def _names_of(names: tuple[str, ...]) -> _Names | None:
    found = by_lower(names)
    key = next((found[name] for name in IDS if name in found), None)
    parent = next((found[name] for name in PARENTS if name in found), None)
    texts = (*(name for name in ("body", "selftext") if name in found), *TEXTS)
    text = next((found[name] for name in texts if name in found), None)
    if key is None or parent is None or text is None:
        return None
    fields = message_fields(names)
    return _Names(key, parent, text, found.get("title"), fields.speaker if fields else None)


def are_replies(head: Sequence[object]) -> bool:
    """Return whether these objects are messages that name the message they answer, and some do."""
    rows = [row for row in head if isinstance(row, dict)]
    nodes = [_node(row) for row in rows]
    if not rows or not all(nodes) or not any(node.parent for node in nodes if node):
        return False
    return all(_is_said(row) for row in rows)


def _is_said(row: Mapping[str, object]) -> bool:
    """Return whether a message has an author or a time, unlike a category with its parent."""
    fields = message_fields(tuple(row))
    speaker = (fields.speaker or "name").casefold() if fields else "name"
    return "body" in row or "selftext" in row or speaker != "name" or bool(fields and fields.time)


def pairs_of_replies(rows: Iterable[object], walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of rows of messages in any order; holds at most 2 x MAX_HELD of them."""
    before: dict[str, _Node] = {}
    held: dict[str, _Node] = {}
    for row in rows:
        node = _node(row) if isinstance(row, dict) else None
        if node is None:
            walk.drop("values that are not a message")
            continue
        if not node.text:
            walk.drop(REMOVED)
        held[node.key] = node
        if len(held) >= MAX_HELD:
            yield from _pairs_of_nodes(held, before, walk)
            before, held = held, {}
    yield from _pairs_of_nodes(held, before, walk)


def _node(row: Mapping[str, object]) -> _Node | None:
    names = _names_of(tuple(row))
    if names is None:
        if "title" in row and "selftext" in row and "id" in row:  # a submission of Reddit, which answers nothing
            return _Node(scalar(row, "id"), "", f"{row['title']}\n{row['selftext'] or ''}".strip(), "")
        return None
    text = text_of(row[names.text])
    key, parent = (_KIND.sub("", scalar(row, name), count=1) for name in (names.key, names.parent))
    if text is None or not key:
        return None
    if names.title and isinstance(row[names.title], str):
        text = f"{row[names.title]}\n{text}"
    usable = text.strip() not in _REMOVED and len(text) <= MAX_TEXT and not row.get("deleted")
    return _Node(key, parent, text if usable else "", speaker_of(row.get(names.speaker or "")).casefold())


def _pairs_of_nodes(held: Mapping[str, _Node], before: Mapping[str, _Node], walk: Walk) -> Iterator[Pair]:
    children: dict[str, list[_Node]] = {}
    roots: list[_Node] = []
    for node in held.values():
        if node.parent in held and node.parent != node.key:
            children.setdefault(node.parent, []).append(node)
        else:
            roots.append(node)
            if node.parent and node.parent not in before:
                walk.drop(ABSENT)
    last = ""  # the answer of the previous pair
    waiting = roots[::-1]
    while waiting:
        node = waiting.pop()
        waiting += reversed(children.get(node.key, ()))
        parent = held.get(node.parent) or before.get(node.parent)
        if parent is None or parent is node or not node.text or not parent.text:
            continue
        if not node.role or not ({node.role, parent.role} & (ASKING | ANSWERING)):
            yield parent.text, node.text, OVERLAP if last == parent.key else NEW
            last = node.key
        elif parent.role in ASKING and node.role in ANSWERING:
            yield parent.text, node.text, NEXT if last and last == parent.parent else NEW
            last = node.key


def nested_replies(value: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the first message of a tree in which each message has a list of its replies, None for other objects."""
    root = value.get("prompt", value)
    if isinstance(root, dict) and isinstance(root.get("replies"), list) and message_fields(tuple(root)):
        replies = [reply for reply in root["replies"] if isinstance(reply, dict)]
        if len(replies) == len(root["replies"]) and all(message_fields(tuple(reply)) for reply in replies):
            return root
    return None


def pairs_of_nested(root: Mapping[str, object], walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of a tree of nested replies, such as OpenAssistant's."""
    held: dict[str, _Node] = {}
    waiting: list[tuple[str, Mapping[str, object]]] = [("", root)]
    while waiting:
        parent, message = waiting.pop()
        fields = message_fields(tuple(message))
        text = text_of(message[fields.text]) if fields else None
        if fields is None or text is None:
            walk.drop("values that are not a message")
            continue
        usable = text.strip() not in _REMOVED and len(text) <= MAX_TEXT and not message.get("deleted")
        key = str(len(held) + 1)
        role = speaker_of(message.get(fields.speaker or "")).casefold()
        held[key] = _Node(key, parent, text if usable else "", role)
        replies = message.get("replies")
        if isinstance(replies, list):
            waiting += [(key, reply) for reply in reversed(replies) if isinstance(reply, dict)]
    yield from _pairs_of_nodes(held, {}, walk)


def shown_branch(value: Mapping[str, object]) -> list[object] | None:
    """Return the messages that ChatGPT or DeepSeek showed last, from its export of a conversation; None without one."""
    mapping = value.get("mapping")
    if not isinstance(mapping, dict) or not all(isinstance(node, dict) for node in mapping.values()):
        return None
    if not all("message" in node and ("parent" in node or "children" in node) for node in mapping.values()):
        return None
    key = value.get("current_node")
    if key not in mapping:  # the last message that has no reply
        key = next((key for key in reversed(mapping) if not mapping[key].get("children")), None)
    branch: list[object] = []
    seen: set[object] = set()
    while isinstance(key, str) and key in mapping and key not in seen:
        seen.add(key)
        message = mapping[key]["message"]
        if isinstance(message, dict) and isinstance(fragments := message.get("fragments"), list):  # DeepSeek
            for part in reversed(fragments):
                if isinstance(part, dict) and (role := FRAGMENTS.get(scalar(part, "type"))):
                    branch.append({"role": role, "content": part.get("content")})
        elif isinstance(message, dict) and not _is_hidden(message):
            branch.append({"role": speaker_of(message.get("author")), "content": message.get("content")})
        key = mapping[key].get("parent")
    return branch[::-1]


def _is_hidden(message: Mapping[str, object]) -> bool:
    """Return whether a message is none of a person or the assistant: a tool's, a call of a tool, or without text."""
    content = message.get("content")
    kind = content.get("content_type", "text") if isinstance(content, dict) else ""
    to_tool = message.get("recipient", "all") != "all"
    return speaker_of(message.get("author")) == "tool" or to_tool or kind not in ("text", "multimodal_text")

"""Lists of messages: of a user and an assistant, of people in a chat, and replies that name the message they answer."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, Pair, Turn, pairs_of_turns
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
from chatbot.corpus.reading.formats.columns import named
from chatbot.corpus.reading.formats.fields import (
    ANSWERING,
    ASKING,
    TOOLS,
    MessageFields,
    Walk,
    message_fields,
    repaired,
    scalar,
    speaker_of,
    text_of,
    text_of_html,
)
from chatbot.corpus.reading.report import UNUSED_TURNS

# These begin the kinds of messages of Skype and Teams that nobody wrote.
_PROGRAM = ("event", "threadactivity", "systemevent")
# Fields of Messenger's and Instagram's messages whose text may be a notice that begins with the name of the sender.
_ATTACHED = frozenset({"share", "photos", "videos", "audio_files", "gifs", "sticker", "files", "call_duration"})
# Sub-types of Slack's messages; those of WeChat are numbers.
_SPOKEN = frozenset({"", "bot_message", "me_message", "thread_broadcast", "file_share"})
_UNUSUAL = _ATTACHED.union(("subtype", "messagetype", "messageType"))  # fields that notices have
NOT_TEXT = "utterances that are not text"
# WeChat's numbers of kinds other than text, and words for them.
_NO_TEXT = frozenset(
    {
        *("3", "34", "42", "43", "47", "48", "49", "50", "图片", "语音", "视频", "表情", "动画表情", "文件", "位置"),
        *("名片", "红包", "转账", "image", "picture", "photo", "voice", "audio", "video", "sticker", "emoji", "file"),
        "location",
    }
)
_YES = frozenset({"1", "true", "yes", "是"})
MAX_OPEN = 100_000  # messages that are collected, of all chats


def fields_of_message(value: object) -> MessageFields | None:
    """Return the fields of an object with a speaker and a text, None for anything else."""
    fields = fields_of_row(tuple(value)) if isinstance(value, dict) else None
    return fields if fields and (fields.speaker or fields.mine) else None


@functools.lru_cache(maxsize=256)  # the messages of a file have the same fields
def fields_of_row(names: tuple[str, ...]) -> MessageFields | None:
    """Return the fields of a message with its speaker or its chat, None for anything else."""
    fields = message_fields(names)
    if fields is None or not (fields.speaker or fields.mine or fields.chat) or named(names) is not None:
        return None
    return fields if fields.speaker != fields.text else None


def as_message(value: object) -> object:
    """Return {"user": text} or [speaker, text] as a message with a speaker; any other value as it is."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, text),) = value.items()
        return said_by(name, text) if name.strip().casefold() in ASKING | ANSWERING else value
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str):
        return said_by(value[0], value[1])
    return value


def are_short(head: Sequence[object], inside: bool) -> bool:
    """Return whether all of these are messages as `as_message` knows them. inside: as `kind_of` has it."""
    if len(head) < 2 or as_message(head[0]) is head[0]:
        return False
    messages = [as_message(value) for value in head]
    if any(message is value for message, value in zip(messages, head, strict=True)):
        return False
    names = [message["role"].strip().casefold() for message in messages if isinstance(message, dict)]
    few = inside and len({*names}) * 2 <= len(names) and len({*names}) > 1
    letters = inside and {*names} == {"a", "b"}
    return few or letters or bool({*names} <= ASKING | ANSWERING | {"system"} and len({*names}) > 1)


def asks(value: object) -> bool:
    """Return whether a value is a message of a user."""
    fields = fields_of_message(value)
    return fields is not None and _role(value, fields) in ASKING


def kind_of(head: Sequence[object], inside: bool) -> str:
    """Return "roles" or "people" for a list of messages that begins with these, "" for any other list.

    inside: whether the list stands where a conversation is expected. Elsewhere, texts with an author may be posts or
    reviews: only those are a chat in which people write more than once, with a time.
    """
    if head and asks(head[0]):
        return "roles"
    fields = [fields_of_message(value) for value in head]
    messages = [(field, value) for field, value in zip(fields, head, strict=True) if field and isinstance(value, dict)]
    if not messages or len(messages) * 2 < len(head):
        return ""
    names = [_role(value, field) for field, value in messages]
    if set(names) & (ASKING | ANSWERING):
        return "roles"
    times = sum(field.time is not None for field, _ in messages)
    repeated = len(set(names)) > 1 and (len(set(names)) * 2 <= len(names))
    return "people" if inside or (times * 2 > len(messages) and repeated) or _are_turns(messages, names) else ""


def _are_turns(messages: Sequence[tuple[MessageFields, Mapping[str, object]]], names: Sequence[str]) -> bool:
    """Return whether rows of messages name their conversation, and conversations have several speakers."""
    chats: dict[str, set[str]] = {}
    for (field, value), name in zip(messages, names, strict=True):
        chats.setdefault(scalar(value, field.chat), set()).add(name)
    chats.pop("", None)
    return bool(chats) and len(chats) * 2 <= len(messages) and sum(len(people) > 1 for people in chats.values()) > 0


def said_by(role: str, text: object) -> dict[str, object]:
    """Return a message."""
    return {"role": role, "content": text}


def pairs_of_roles(values: Iterable[object], head: Sequence[object], walk: Walk) -> Iterator[Pair]:
    """Yield each message of a user with the answer of the assistant that follows it. head: the first values."""
    answering = ANSWERING
    roles = [_role(value, fields) for value in head[:4] if (fields := fields_of_message(value))]
    if "system" in roles[1:] and ANSWERING.isdisjoint(roles):
        answering = ANSWERING | {"system"}  # of a dialogue system, as in MultiWOZ
    turns = pairs = 0

    def said() -> Iterator[Turn | None]:
        nonlocal turns
        chat = ""
        for value in values:
            fields = fields_of_message(value)
            if fields is None or not isinstance(value, dict):
                walk.drop(NOT_TEXT)
                yield None
                continue
            role = _role(value, fields)
            if fields.chat is not None and scalar(value, fields.chat) != chat:
                chat = scalar(value, fields.chat)
                yield None
            content = value[fields.text]
            called = value.get("tool_calls") and not content
            if (role == "system" and role not in answering) or role in TOOLS or called:
                continue
            turns += 1
            text = text_of(content)
            if text is None and fields.text == "content" and "text" in value:
                text = text_of(value["text"])
            if text is None:
                walk.drop(NOT_TEXT)
                yield None
            else:
                yield Turn(text, role in ASKING, role in answering)

    for pair in pairs_of_turns(said()):
        pairs += 1
        yield pair
    if turns and not pairs:
        walk.drop_alone(turns)
    elif turns > 2 * pairs:
        walk.drop(UNUSED_TURNS, turns - 2 * pairs)


def _role(value: object, fields: MessageFields) -> str:
    name = value.get(fields.speaker) if isinstance(value, dict) else None
    return name.casefold() if isinstance(name, str) else speaker_of(name).casefold()


def pairs_of_people(values: Iterable[object], walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of messages of chats. Raises UserError if `options.me` wrote none."""
    return pairs_of_messages(_by_chat(_messages(values, walk)), walk.options, walk.report, walk.place)


def _messages(values: Iterable[object], walk: Walk) -> Iterator[tuple[str, Message]]:
    """Yield (chat, message)."""
    for number, value in enumerate(values):
        fields = fields_of_row(tuple(value)) if isinstance(value, dict) else None
        if fields is None or not isinstance(value, dict):
            walk.drop(NOTICES if isinstance(value, dict) else NOT_TEXT)
            continue
        kind = scalar(value, fields.kind).strip().casefold()
        message = _message(value, fields, number)
        if kind in NOTICE_KINDS or (not _UNUSUAL.isdisjoint(value) and _is_notice(value, message)):
            walk.drop(NOTICES)
        elif kind in _NO_TEXT:
            walk.drop(NO_TEXT)
        else:
            yield scalar(value, fields.chat).strip(), message


def _is_notice(value: Mapping[str, object], message: Message) -> bool:
    """Return whether Slack, Skype, Teams or Messenger wrote the message, such as "Ann sent an attachment."."""
    program = (scalar(value, "messagetype") or scalar(value, "messageType")).casefold()
    subtype = scalar(value, "subtype")
    attached = not _ATTACHED.isdisjoint(value) and message.text.startswith(message.names[0])
    return attached or program.startswith(_PROGRAM) or not (subtype in _SPOKEN or subtype.isdecimal())


def _message(value: Mapping[str, object], fields: MessageFields, number: int) -> Message:
    """Return the message in an object. number: that of the object, since without speakers every one is a turn."""
    mine = fields.mine is not None and str(value.get(fields.mine)).strip().casefold() in _YES
    speaker = value[fields.speaker] if fields.speaker else None
    name = speaker_of(speaker) or (ME if mine else "")
    names = [name]
    if fields.names or not isinstance(speaker, str):
        names += (synonym for part in (speaker, *map(value.get, fields.names)) for synonym in _names_of(part))
    if mine:
        names.append(ME)
    content = value[fields.text]
    text = text_of(content) or ""
    kind = content.get("contentType") if isinstance(content, dict) else value.get("content_type")
    if "messagetype" in value or kind in ("html", "text/html"):
        text = text_of_html(text)
    if "timestamp_ms" in value:
        text, *names = map(repaired, (text, *names))
    # In a chat of two, both may have the name of the chat.
    sender = f"{mine:d}{name}" if fields.speaker or fields.mine else str(number)
    return Message(sender, tuple(names), time_of(scalar(value, fields.time)), text)


def _names_of(part: object) -> list[str]:
    if isinstance(part, dict):
        keys = ("name", "nickname", "real_name", "display_name", "id")
        return [str(part[key]) for key in keys if isinstance(part.get(key), str | int) and part[key]]
    return [str(part)] if isinstance(part, str | int) and part != "" else []


def _by_chat(messages: Iterable[tuple[str, Message]]) -> Iterator[Message | None]:
    """Yield the messages of each conversation together, with None after it.

    When MAX_OPEN messages are count, those of all chats but the present one are yielded.
    """
    chats: dict[str, list[Message]] = {}  # in the order of their first messages
    count = 0
    for chat, message in messages:
        if not chat:
            yield message  # there is a single chat
            continue
        conversation = chats.setdefault(chat, [])
        if conversation and _is_pause(conversation[-1], message):
            count -= len(conversation)
            yield from (*conversation, None)
            conversation.clear()
        conversation.append(message)
        count += 1
        if count > MAX_OPEN:
            for name in [name for name in chats if name != chat]:
                count -= len(chats[name])
                yield from (*chats.pop(name), None)
    for conversation in chats.values():
        yield from (*conversation, None)


def _is_pause(first: Message, second: Message) -> bool:
    return first.time is not None and second.time is not None and abs(second.time - first.time) > PAUSE


FRAGMENTS = {"REQUEST": "user", "RESPONSE": "assistant"}  # of DeepSeek's messages, beside searches and thoughts
MAX_HELD = 100_000  # messages; a reply to an older one than twice as many is not found
MAX_TEXT = 10_000  # characters of a message; a longer one is no reply
ABSENT = "replies to a message that is not in the file"
REMOVED = "messages that were deleted"
_REMOVED = ("[deleted]", "[removed]")
_KIND = re.compile(r"t[1-6]_")  # before the ids of Reddit


class _Node(NamedTuple):
    key: str
    parent: str
    text: str  # "" for a message that was deleted
    role: str


def are_replies(head: Sequence[object]) -> bool:
    """Return whether these objects are messages that name the message they answer, and some do."""
    rows = [row for row in head if isinstance(row, dict)]
    nodes = [_node(row) for row in rows]
    if not rows or not all(nodes) or not any(node.parent for node in nodes if node):
        return False
    return all(map(_is_said, rows))


def _is_said(row: Mapping[str, object]) -> bool:
    """Return whether a message has an author or a time, unlike a category with its parent."""
    fields = message_fields(tuple(row))
    speaker = (fields.speaker or "name").casefold() if fields else "name"
    return "body" in row or "selftext" in row or speaker != "name" or bool(fields and fields.time)


def pairs_of_replies(rows: Iterable[object], walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of rows of messages in any order; holds at most 2 x MAX_HELD of them."""
    before: dict[str, _Node] = {}
    nodes: dict[str, _Node] = {}
    for row in rows:
        node = _node(row) if isinstance(row, dict) else None
        if node is None:
            walk.drop("values that are not a message")
            continue
        if not node.text:
            walk.drop(REMOVED)
        nodes[node.key] = node
        if len(nodes) >= MAX_HELD:
            yield from _pairs_of_nodes(nodes, before, walk)
            before, nodes = nodes, {}
    yield from _pairs_of_nodes(nodes, before, walk)


def _node(row: Mapping[str, object]) -> _Node | None:
    fields = message_fields(tuple(row))
    if fields is None or (fields.parent is None and "selftext" not in row):  # of Reddit, which answers nothing
        return None
    text, title = text_of(row[fields.text]), row.get(fields.title or "")
    key, parent = (_KIND.sub("", scalar(row, name), count=1) for name in (fields.key, fields.parent))
    if not key or (text is None and not title):
        return None
    usable = text not in _REMOVED and not row.get("deleted")
    text = f"{title}\n{text or ''}".strip() if isinstance(title, str) else text or ""
    role = speaker_of(row.get(fields.speaker or "")).casefold()
    return _Node(key, parent, text if usable and len(text) <= MAX_TEXT else "", role)


def _pairs_of_nodes(nodes: Mapping[str, _Node], before: Mapping[str, _Node], walk: Walk) -> Iterator[Pair]:
    children: dict[str, list[_Node]] = {}
    roots: list[_Node] = []
    for node in nodes.values():
        if node.parent in nodes and node.parent != node.key:
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
        parent = nodes.get(node.parent) or before.get(node.parent)
        if parent is None or parent is node or not node.text or not parent.text:
            continue
        if not node.role or not ({node.role, parent.role} & (ASKING | ANSWERING)):
            yield parent.text, node.text, OVERLAP if last == parent.key else NEW
            last = node.key
        elif parent.role in ASKING and node.role in ANSWERING:
            yield parent.text, node.text, NEXT if last and last == parent.parent else NEW
            last = node.key


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
    visited: set[object] = set()
    while isinstance(key, str) and key in mapping and key not in visited:
        visited.add(key)
        message = mapping[key]["message"]
        if isinstance(message, dict) and isinstance(fragments := message.get("fragments"), list):  # DeepSeek
            for part in reversed(fragments):
                if isinstance(part, dict) and (role := FRAGMENTS.get(scalar(part, "type"))):
                    branch.append(said_by(role, part.get("content")))
        elif isinstance(message, dict) and not _is_hidden(message):
            branch.append(said_by(speaker_of(message.get("author")), message.get("content")))
        key = mapping[key].get("parent")
    return branch[::-1]


def _is_hidden(message: Mapping[str, object]) -> bool:
    """Return whether a message is none of a person or the assistant: a tool's, a call of a tool, or without text."""
    content = message.get("content")
    kind = content.get("content_type", "text") if isinstance(content, dict) else ""
    to_tool = message.get("recipient", "all") != "all"
    return speaker_of(message.get("author")) == "tool" or to_tool or kind not in ("text", "multimodal_text")

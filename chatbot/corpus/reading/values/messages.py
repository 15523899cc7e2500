"""Lists of messages: of a user and an assistant, whose roles say who asks, or of people in a chat."""

import datetime
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from chatbot.corpus.reading.chat_messages import NOTICE_KINDS, NOTICES, Message, pairs_of_messages
from chatbot.corpus.reading.pair import NEW, NEXT, Pair
from chatbot.corpus.reading.report import UNUSED_TURNS
from chatbot.corpus.reading.tables.columns import named
from chatbot.corpus.reading.values.fields import (
    ANSWERING,
    ASKING,
    TOOLS,
    MessageFields,
    message_fields,
    repaired,
    scalar,
    speaker_of,
    text_of,
    text_of_html,
)
from chatbot.corpus.reading.values.walk import Walk

_PROGRAM = (
    "event",
    "threadactivity",
    "systemevent",
)  # begin the kinds of messages of Skype and Teams that nobody wrote
# Fields of Messenger's and Instagram's messages whose text may be a notice that begins with the name of the sender.
_ATTACHED = frozenset({"share", "photos", "videos", "audio_files", "gifs", "sticker", "files", "call_duration"})
_SPOKEN = frozenset(
    {"", "bot_message", "me_message", "thread_broadcast", "file_share"}
)  # sub-types of Slack's messages
NOT_TEXT = "utterances that are not text"


def fields_of_message(value: object) -> MessageFields | None:
    """Return the fields of an object with a speaker and a text, None for anything else."""
    return _fields_of(tuple(value)) if isinstance(value, dict) else None


@functools.lru_cache(maxsize=256)  # the messages of a file have the same fields
def _fields_of(names: tuple[str, ...]) -> MessageFields | None:
    fields = message_fields(names)
    return fields if fields and fields.speaker and fields.speaker != fields.text and named(names) is None else None


def as_message(value: object) -> object:
    """Return {"user": text} or [speaker, text] as a message with a speaker; any other value as it is."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, text),) = value.items()
        return {"role": name, "content": text} if name.strip().casefold() in ASKING | ANSWERING else value
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str):
        return {"role": value[0], "content": value[1]}
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


def kind_of(head: Sequence[object], inside: bool) -> str:
    """Return "roles" or "people" for a list of messages that begins with these, "" for any other list.

    inside: whether the list stands where a conversation is expected. Elsewhere, texts with an author may be posts or
    reviews: only those are a chat in which people write more than once, with a time.
    """
    if head and (first := fields_of_message(head[0])) and _role(head[0], first) in ASKING:
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


def pairs_of_roles(values: Iterable[object], head: Sequence[object], walk: Walk) -> Iterator[Pair]:
    """Yield each message of a user with the answer of the assistant that follows it. head: the first values."""
    asking, answering = ASKING, ANSWERING
    roles = [_role(value, fields) for value in head[:4] if (fields := fields_of_message(value))]
    if "system" in roles[1:] and ANSWERING.isdisjoint(roles):
        answering = ANSWERING | {"system"}  # of a dialogue system, as in MultiWOZ
    asked: str | None = None
    turns = pairs = used = 0
    link = NEW
    chat = ""
    for value in values:
        fields = fields_of_message(value)
        if fields is None or not isinstance(value, dict):
            walk.drop(NOT_TEXT)
            asked, link = None, NEW
            continue
        role = _role(value, fields)
        if fields.chat is not None and scalar(value, fields.chat) != chat:
            asked, link, chat = None, NEW, scalar(value, fields.chat)
        content = value[fields.text]
        if (role == "system" and role not in answering) or role in TOOLS or (value.get("tool_calls") and not content):
            continue
        turns += 1
        text = content if isinstance(content, str) else text_of(content)
        if text is None and fields.text == "content" and "text" in value:
            text = text_of(value["text"])
        if text is None:
            walk.drop(NOT_TEXT)
            asked, link = None, NEW
        elif role in asking:
            asked = text
        else:
            if role in answering and asked is not None:
                pairs, used = pairs + 1, used + 2
                yield asked, text, link
                link = NEXT
            asked = None
    if turns and not pairs:
        walk.drop("conversations of one utterance" if turns == 1 else "conversations without a question and its answer")
    elif turns > used:
        walk.drop(UNUSED_TURNS, turns - used)


def _role(value: object, fields: MessageFields) -> str:
    name = value.get(fields.speaker) if isinstance(value, dict) else None
    return name.casefold() if isinstance(name, str) else speaker_of(name).casefold()


def pairs_of_people(values: Iterable[object], walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of a chat's messages."""
    return pairs_of_messages(_messages(values, walk), walk.options, walk.report, walk.place)


def _messages(values: Iterable[object], walk: Walk) -> Iterator[Message | None]:
    chat = ""
    for value in values:
        fields = fields_of_message(value)
        if fields is None or not isinstance(value, dict):
            walk.drop(NOTICES if isinstance(value, dict) else NOT_TEXT)
            continue
        kind, sub = scalar(value, "type").casefold(), scalar(value, "subtype")
        program = scalar(value, "messagetype" if "messagetype" in value else "messageType").casefold()
        if kind in NOTICE_KINDS or sub not in _SPOKEN or program.startswith(_PROGRAM):
            walk.drop(NOTICES)
            continue
        if (own := scalar(value, fields.chat)) != chat:
            chat = own
            yield None
        message = _message(value, fields)
        if _ATTACHED & value.keys() and message.text.startswith(message.sender):  # "Ann sent an attachment."
            walk.drop(NOTICES)
        else:
            yield message


def _message(value: Mapping[str, object], fields: MessageFields) -> Message:
    speaker = value[fields.speaker or ""]
    name = speaker_of(speaker)
    others = (value.get("user_profile"), value.get("sender_id"), value.get("from_id"))
    names = [name, *(other for part in (speaker, *others) for other in _names_of(part) if other != name)]
    content = value[fields.text]
    text = text_of(content) or ""
    kind = content.get("contentType") if isinstance(content, dict) else value.get("content_type")
    if "messagetype" in value or kind in ("html", "text/html"):
        text = text_of_html(text)
    text = repaired(text) if "timestamp_ms" in value else text
    names = [repaired(part) if "timestamp_ms" in value else part for part in names]
    return Message(names[0], tuple(names), _time(value, fields), text)


def _names_of(part: object) -> list[str]:
    if isinstance(part, dict):
        keys = ("name", "nickname", "real_name", "display_name", "id")
        return [str(part[key]) for key in keys if isinstance(part.get(key), str | int) and part[key]]
    return [str(part)] if isinstance(part, str | int) and part != "" else []


def _time(value: Mapping[str, object], fields: MessageFields) -> float | None:
    """Return the seconds of a Unix time, in seconds or milliseconds, or of a date; None for anything else."""
    cell = scalar(value, fields.time).strip()
    try:
        if cell.replace(".", "", 1).isdecimal():
            return float(cell) / (1000 if len(cell.split(".")[0]) > 11 else 1) if len(cell) > 8 else None
        cell = cell.replace("/", "-").replace("Z", "+00:00")
        return datetime.datetime.fromisoformat(cell).timestamp() if cell else None
    except (ValueError, OverflowError, OSError):
        return None

"""From who said what to pairs: the only way, for every layout.

Consecutive messages of one speaker are one turn. A turn that answers makes a pair with the turn before it if that asks.
A message without text, such as a picture, stands between the turns around it, which therefore are no pair. Speakers are
known by their roles (`pairs_of_roles`), or by their names (`pairs_of_messages`); then a pause ends a conversation.
Replies that name the message which they answer are brought behind it (`behind_parents`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple, TypeVar

from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, Pair, nobody_is
from chatbot.corpus.reading.names import ANSWERING, ASKING, ROLES, UNHEARD, key_of, pattern
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.texts import plain_text
from chatbot.corpus.reading.times import PAUSE, form_of, seconds
from chatbot.display import CHINESE_OR_KANA
from chatbot.errors import UserError

MAX_TURN = 10_000  # characters of several messages; a longer turn is no reply
FIRST = 200  # messages, whose times tell their form, and whether the newest comes first
MAX_HELD = 100_000  # messages that are turned around, or sorted by their chats or ids, at once
MAX_NAMES = 1000  # of people, for the message about a name that does not occur
SYSTEM = frozenset({"系统消息", "系統消息", "系统通知", "System Message"})  # what stands in place of a sender
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")
_NOTICE = pattern("notices")
_LONGEST_NOTICE = 120  # characters
_DELETED = ("", "[deleted]", "[removed]")

# What is counted as left out.
TOO_LONG = f"turns of more than {MAX_TURN:,} characters"
NO_TEXT = "messages without text, such as pictures"
NOTICES = "notices of the application, such as calls and deleted messages"
NOT_TEXT = "utterances that are not text"
OF_PROGRAMS = "messages of systems, developers and tools"
UNKNOWN_ROLES = "messages of roles that are not known"
ABSENT = "replies to a message that is not in the file"
REMOVED = "messages that were deleted"

Drop = Callable[[str], None]  # counts a part without pairs, by the reason


class Said(NamedTuple):
    """What somebody says at once: a message, or an utterance."""

    text: str  # without one, such as a picture, a message stands between the turns around it
    speaker: str | None = None  # the same for all messages of one; None for an utterance, which is a turn by itself
    asks: bool = True  # whether the next turn may answer it
    answers: bool = True  # whether it is to be learned as an answer


def pairs_of_turns(said: Iterable[Said | None], drop: Drop) -> Iterator[Pair]:
    """Yield each turn that answers, with the turn before it if that asks. None ends a conversation."""
    before: Said | None = None
    link = NEW
    for key, messages in groupby(said, _key):
        turn = _turn(filter(None, messages), drop) if key else None
        if turn is None:
            link = NEW
        elif before is not None and before.asks and turn.answers:
            yield before.text, turn.text, link
            link = OVERLAP
        elif link == OVERLAP:
            link = NEXT
        before = turn


def _key(said: Said | None) -> object:
    """Return what is equal for the messages of a turn; None where a conversation ends."""
    return said and (object() if said.speaker is None else (said.speaker,))


def _turn(messages: Iterator[Said], drop: Drop) -> Said:
    """Return the messages of one speaker as one, which without text, or with too much, neither asks nor answers."""
    first = next(messages)
    second = next(messages, None)
    if second is None and (first.speaker is None or first.text.strip()):
        return first
    said: list[Said] = []
    characters = count = 0
    for message in chain((first, second), messages):
        if message and message.text.strip():
            count += 1
            characters += len(message.text)
            if count == 1 or characters <= MAX_TURN:
                said.append(message)
    if count > len(said):
        drop(TOO_LONG)
        said = []
    text = said[0].text if count == 1 else joined(message.text for message in said)
    return Said(text, first.speaker, any(each.asks for each in said), any(each.answers for each in said))


def pairs_of_roles(
    messages: Iterable[tuple[str, str] | None], drop: Drop, are_accepted: bool = False, me: str = ""
) -> Iterator[Pair]:
    """Yield the pairs of messages of (role, text), without those of programs. None ends a conversation.

    are_accepted: whether the user accepted roles that are not known, which then ask and answer.
    me: the role that answers all others; "" for those that are known to answer.
    """

    def said() -> Iterator[Said | None]:
        for message in messages:
            if message is None:
                yield None
                continue
            role = key_of(message[0])
            text = message[1]
            is_known = are_accepted or role in ROLES
            if role in UNHEARD:
                drop(OF_PROGRAMS)
                continue
            if not text.strip() or not is_known:
                drop(NOT_TEXT if is_known else UNKNOWN_ROLES)
            asks, answers = (role != me, role == me) if me else (role not in ANSWERING, role not in ASKING)
            yield Said(text if is_known else "", role, asks, answers)

    return pairs_of_turns(said(), drop)


def pairs_of_texts(texts: Iterable[str]) -> list[Pair]:
    """Return each utterance with the one after it: the pairs of a conversation in which everybody answers."""
    return [*pairs_of_turns(map(Said, texts), lambda reason: None)]


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

    def said() -> Iterator[Said | None]:
        nonlocal has_written
        usable = _usable(_timed(messages, options.dates, report, place), report, place)
        for message in usable:
            if message is None:
                yield None
                continue
            if len(people) < MAX_NAMES:
                people.setdefault(message.names[0])
            mine = me is None or me in map(str.casefold, message.names)
            has_written = has_written or mine
            yield Said(joined(message.text.splitlines()), message.sender, answers=mine)

    pairs = pairs_of_turns(said(), lambda reason: report.drop(reason, place))
    first = [*islice(pairs, 1)]
    yield from chain(first, pairs)
    if has_written and not first:
        report.drop("chats in which nobody answers", place)
    if people and not has_written:
        raise nobody_is(options.me or "", people, place)


def _timed(
    messages: Iterable[Message | None], order: str | None, report: Report, place: str
) -> Iterator[tuple[Message, float | None] | None]:
    """Yield each message with the seconds of its time, the oldest first; at most MAX_HELD are held.

    Raises UserError if pauses depend on whether the day or the month comes first, and no time tells.
    """
    messages = iter(messages)
    block = list[Message | None]()
    form = ""
    unknown = ""
    is_either = True
    while is_either and len(block) < MAX_HELD and (more := list(islice(messages, len(block) or FIRST))):
        block += more
        form, unknown, is_either = form_of((message.time for message in block if message), order)
    if is_either and unknown:
        times = [*dict.fromkeys(message.time for message in block if message)]
        raise UserError(f"{place}: {unknown}, and pauses depend on it; give --dates dmy or --dates mdy", times[:3])
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
        if not text or len(text) > MAX_TURN:
            report.drop(TOO_LONG if text else NO_TEXT, place)
            text = ""
        if last is not None and time is not None and abs(time - last) > PAUSE:
            yield None
        if time is None and last is not None and message.time.strip():
            report.warn("some times are not understood, and so no pause is before them", place)
        last = time if time is not None else last
        yield message._replace(text=text)


_M = TypeVar("_M")  # a message, or a turn


def by_chat(messages: Iterable[tuple[str, _M] | None]) -> Iterator[_M | None]:
    """Yield the messages of each chat together, with None after it. messages: (chat, message); None ends all chats.

    When MAX_HELD messages are held, the conversations of all chats end there.
    """
    chats: dict[str, list[_M]] = {}  # in the order of their first messages
    count = 0
    for item in chain(messages, (None,)):
        if item is None or count >= MAX_HELD:
            for conversation in chats.values():
                yield from (*conversation, None)
            chats.clear()
            count = 0
        if item is None:
            yield None
        elif item[0]:
            chats.setdefault(item[0], []).append(item[1])
            count += 1
        else:
            yield item[1]  # there is a single chat


class Reply(NamedTuple):
    """A message that names the one that it answers."""

    key: str
    parent: str  # the key of that message; "" for the first one of a thread
    text: str
    role: str = ""


def behind_parents(replies: Iterable[Reply], drop: Drop) -> Iterator[tuple[str, str] | None]:
    """Yield (role, text) of replies in any order, each after its parent, and None where another parent begins.

    Holds at most 2 x MAX_HELD of them; a reply to an older one is not found.
    """
    before: dict[str, Reply] = {}
    held: dict[str, Reply] = {}
    for reply in replies:
        if reply.text in _DELETED:
            drop(REMOVED)
            reply = reply._replace(text="")
        held[reply.key] = reply
        if len(held) >= MAX_HELD:
            yield from _threads(held, before, drop)
            before = held
            held = {}
    yield from _threads(held, before, drop)


def _threads(held: Mapping[str, Reply], before: Mapping[str, Reply], drop: Drop) -> Iterator[tuple[str, str] | None]:
    """Yield each answer to the message before it directly, and to another one after None and that one again."""
    children: dict[str, list[Reply]] = {}
    roots: list[Reply] = []
    for reply in held.values():
        if reply.parent in held and reply.parent != reply.key:
            children.setdefault(reply.parent, []).append(reply)
        else:
            roots.append(reply)
            if reply.parent not in ("", "0", "root") and reply.parent not in before:
                drop(ABSENT)
    last: Reply | None = None
    waiting = roots[::-1]
    while waiting:
        reply = waiting.pop()
        waiting += reversed(children.get(reply.key, ()))
        parent = held.get(reply.parent) or before.get(reply.parent)
        if parent is None or parent is reply or not reply.text or not parent.text:
            continue
        if parent is not last:
            yield from (None, (parent.role, parent.text))
        yield reply.role, reply.text
        last = reply


def joined(parts: Iterable[str]) -> str:
    """Join messages or lines to one utterance.

    A comma separates Chinese that has no punctuation, nothing separates Chinese that has, and a space everything else.
    """
    text = ""
    for part in filter(None, map(str.strip, parts)):
        if text:
            chinese = _CHINESE.match(part) is not None
            if chinese and _CHINESE.match(text[-1]):
                text += "，"
            elif not (chinese and not text[-1].isascii() and not text[-1].isalnum()):
                text += " "
        text += part
    return text

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
from chatbot.corpus.reading.wordings import pattern
from chatbot.display import CHINESE_OR_KANA

MAX_TURN = 10_000  # characters; a longer turn is no reply
FIRST = 200  # messages, whose times tell their form, and whether the newest comes first
MAX_HELD = 100_000  # messages that are turned around, or sorted by their chats, at once
MAX_NAMES = 1000  # of people, for the message about a name that does not occur
NO_TEXT = "messages without text, such as pictures"
NOTICES = "notices of the application, such as calls and deleted messages"
ME = "me"  # the name for --me where an export marks the messages of the user, but has no name for them

# What an application writes in place of a sender.
SYSTEM = frozenset({"系统消息", "系統消息", "系统通知", "System Message"})
_MENTION = re.compile(r"<[@#][!&]?\w{1,30}(?:\|([^<>]{1,60}))?>|<!(?:here|channel|everyone)>")
_LINK = re.compile(r"<((?:https?://|mailto:)[^<>|\s]{1,500})(?:\|([^<>]{1,300}))?>")
_LEFT_OUT, _NO_TEXT, _QUOTE, _NOTICE = map(pattern, ("left_out", "no_text", "quotes", "notices"))
_LONGEST_NOTICE = 120  # characters
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

    def turns() -> Iterator[Turn | None]:
        nonlocal has_written
        usable = _usable(_timed(messages, report, place), report, place)
        for sender, group in groupby(usable, lambda message: message.sender if message else None):
            if sender is None:
                yield None
                continue
            names, text = _turn(filter(None, group), report, place)
            if len(people) < MAX_NAMES:
                people.setdefault(names[0])
            mine = me is None or me in map(str.casefold, names)
            has_written = has_written or mine
            yield Turn(text, bool(text), mine and bool(text))

    pairs = pairs_of_turns(turns())
    first = [*islice(pairs, 1)]
    yield from chain(first, pairs)
    if has_written and not first:
        report.drop("chats in which nobody answers", place)
    if people and not has_written:
        raise nobody_is(options.me or "", people, place)


def _turn(messages: Iterable[Message], report: Report, place: str) -> tuple[tuple[str, ...], str]:
    """Return the names of a person, and what that person says in consecutive messages; "" for too much."""
    names: tuple[str, ...] = ()
    parts: list[str] = []
    characters = 0
    for message in messages:
        names = message.names
        characters += len(message.text)
        if characters <= MAX_TURN:
            parts.append(message.text)
    if characters > MAX_TURN:
        report.drop(f"turns of more than {MAX_TURN:,} characters", place)
        return names, ""
    return names, joined(parts)


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


def shown_marks(text: str) -> str:
    """Return the text with mentions and links as people see them in Slack and Discord."""
    return _LINK.sub(lambda link: link[2] or link[1], _MENTION.sub(lambda mention: mention[1] or "", text)).strip()


def without_quotes(text: str) -> str:
    """Return the text below the lines of another message that it begins with, each with > before it."""
    return "\n".join(dropwhile(lambda line: line.startswith(">") or not line.strip(), text.splitlines()))


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

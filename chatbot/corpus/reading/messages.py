"""From the messages of a chat to pairs: what is text in a message, whose turn it is, where a conversation ends.

A message without text, such as a picture, stands between the turns around it, which therefore are no pair. A
conversation ends with the chat, or with a pause.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import NamedTuple, TypeVar

from chatbot.corpus.reading.conversation import Pair, nobody_is
from chatbot.corpus.reading.names import pattern
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.texts import plain_text
from chatbot.corpus.reading.times import PAUSE, form_of, seconds
from chatbot.corpus.reading.turns import MAX_TURN, TOO_LONG, Said, joined, pairs_of_turns
from chatbot.errors import UserError

FIRST = 200  # messages, whose times tell their form, and whether the newest comes first
MAX_HELD = 100_000  # messages that are turned around, or sorted by their chats, at once
MAX_NAMES = 1000  # of people, for the message about a name that does not occur
NO_TEXT = "messages without text, such as pictures"
NOTICES = "notices of the application, such as calls and deleted messages"
ME = "me"  # the name for --me where an export marks the messages of the user, but has no name for them

# What an application writes in place of a sender.
SYSTEM = frozenset({"系统消息", "系統消息", "系统通知", "System Message"})
_NOTICE = pattern("notices")
_LONGEST_NOTICE = 120  # characters


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

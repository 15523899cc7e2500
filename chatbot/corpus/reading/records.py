"""Converts the results of a map to pairs. The results are question-answer records, conversations or messages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from typing import Any, NamedTuple, TypeVar

from chatbot.corpus.reading.layouts import NO_PAIR, PAIRS, REPLIES, TURNS, UNDECLARED, Layout
from chatbot.corpus.reading.marked_text import split_by_speaker, split_dialogue, split_utterances, strip_mark
from chatbot.corpus.reading.names import IN_MESSENGERS, ROLES, UNHEARD, key_of
from chatbot.corpus.reading.report import ALONE, UNUSED_FIELDS, Location, ReadOptions
from chatbot.corpus.reading.texts import YES, alternatives, plain_text, text_of
from chatbot.corpus.reading.turns import (
    MAX_HELD,
    NEW,
    NOTICES,
    Drop,
    Message,
    Pair,
    Utterance,
    pairs_of_messages,
    pairs_of_roles,
    pairs_of_texts,
    pairs_of_turns,
    unknown_person_error,
)

MAX_PAIRS = 1_000  # maximum number of combinations of a question's phrasings and answers per record
ME = "me"  # name of the user who exported a chat, if the export only marks the user's messages

_REDDIT_KIND = re.compile(r"t[1-6]_")  # prefix of Reddit ids

_DELETED = ("", "[deleted]", "[removed]")
ABSENT = "replies to a message that is not in the file"
REMOVED = "deleted messages"


Entries = Iterable[Any]  # the results of a map; None ends a conversation


def pairs_by_layout(
    values: Iterable[Any], layout: Layout, options: ReadOptions, location: Location, are_items: bool = False
) -> Iterator[Pair]:
    """Yield the pairs of values that have the same layout.

    Args:
        values: The values; None ends a conversation.
        layout: The layout of all values.
        options: Read options, whose `me` selects the person whose answers are learned.
        location: Location of the current value, for messages.
        are_items: Whether the values are items of the list that the map iterates over.

    Raises:
        UserError: If nobody in the file is called `options.me`.
    """
    drop = location.drop
    entries = _entries(values, layout, drop, are_items)
    if layout.map.kind is PAIRS:
        return (pair for entry in entries if entry is not None for pair in pairs_of_record(entry, drop))
    if layout.map.kind is REPLIES:
        replies = order_by_parents((_reply(entry, layout) for entry in entries if entry is not None), drop)
        if "role" in layout.map.names:
            return pairs_of_roles(replies, drop, layout.name == UNDECLARED)
        return pairs_of_turns((reply and Utterance(reply[1]) for reply in replies), drop)
    if layout.map.kind is TURNS:
        return _pairs_of_conversations(entries, layout, options, location)
    location.report.has_names = True
    if "role" in layout.map.names:
        return _pairs_in_roles(entries, layout, options, location)
    return pairs_of_messages(group_by_chat(_messages(entries, layout, drop)), options, location.report, location.place)


def _entries(values: Iterable[Any], layout: Layout, drop: Drop, are_items: bool) -> Entries:
    """Yield the results of applying a map to each value. None is yielded after each conversation."""
    for value in values:
        if value is None:
            yield None
            continue
        if layout.unfold and isinstance(value, dict):
            try:
                value = layout.unfold(value)
            except (AttributeError, KeyError, TypeError):  # The value has an unexpected structure.
                value = None
        results = layout.map.results(value, are_items)
        if not results and not are_items:
            drop(layout.rejected)
        yield from results
        if layout.map.is_list and not are_items:
            yield None


def pairs_of_record(entry: Mapping[str, Any], drop: Drop) -> list[Pair]:
    """Return the pairs of a record. Its keys are question, answer, input and history.

    The pairs of the history come first. If the question has several phrasings, or there are several answers, each
    phrasing is combined with each answer.
    """
    questions = alternatives(entry.get("question"))
    answers = alternatives(entry.get("answer"))
    history = entry.get("history") if isinstance(entry.get("history"), list) else []
    added = text_of(entry.get("input")).strip()
    if history and not questions:
        *history, last = history
        questions = alternatives(last)
    if added:
        questions = [f"{question}\n{added}" if question.strip() else added for question in questions or [""]]
    if not any(map(str.strip, answers)) or not any(map(str.strip, questions)):
        drop(NO_PAIR)
        return []
    if len(questions) * len(answers) > MAX_PAIRS:
        drop(f"records of more than {MAX_PAIRS:,} pairs")
        return []
    if history and len(questions) == len(answers) == 1:
        turns = [part if isinstance(part, list | dict) else text_of(part) for part in history]  # Converts null to "".
        if len({*map(type, turns)}) == 1:
            return [*_pairs_of_history(turns, questions[0], answers[0], drop)]
        drop(f"{UNUSED_FIELDS}: histories of texts among lists or objects")
    return [pair for each in product(questions, answers) for pair in _pairs_of_texts(*each, drop)]


def _pairs_of_texts(question: str, answer: str, drop: Drop) -> list[Pair]:
    """Return the pair of a question and its answer. If the question contains a whole dialogue, return all its pairs."""
    if (turns := split_dialogue(question)) is not None:
        if turns[-1] == ("assistant", ""):
            turns.pop()
        return [*pairs_of_roles([*turns, ("assistant", strip_mark(answer))], drop)]
    if "__eo" in question:
        mark = "__eot__" if "__eot__" in question else "__eou__"
        return pairs_of_texts(split_utterances(f"{question} {mark} {answer}") or [])
    return [(question, answer, NEW)]


def _pairs_of_history(history: list[Any], question: str, answer: str, drop: Drop) -> Iterable[Pair]:
    """Return the pairs of a conversation that ends with a question and its answer.

    The items of the history, i.e. the earlier turns, are texts, [question, answer] lists or messages with roles.
    """
    if all(isinstance(turn, str) for turn in history):
        return pairs_of_texts([*history, question, answer])
    turns = []
    for part in history:
        role = text_of(part.get("role") or part.get("from")) if isinstance(part, dict) else ""
        sides = part if isinstance(part, list) else [part] if role or "content" in part else [*part.values()]
        turns += [("assistant" if n else role or "user", text_of(side)) for n, side in enumerate(sides[:2])]
    return pairs_of_roles([*turns, ("user", question), ("assistant", answer)], drop)


def _pairs_of_conversations(
    entries: Entries, layout: Layout, options: ReadOptions, location: Location
) -> Iterator[Pair]:
    turns: list[str] = []  # turns of the current conversation; only used if each entry is a single turn
    for entry in chain(entries, (None,)):
        value = entry["turns"] if isinstance(entry, dict) and "turns" in entry else entry
        if layout.map.is_list and isinstance(value, str):
            turns.append(value)
            continue
        for conversation in (turns, value) if turns else (value,):
            if conversation is None:
                continue
            pairs = _pairs_of_conversation(conversation, options, location)
            if not pairs:
                location.drop(ALONE if isinstance(conversation, list) and len(conversation) == 1 else NO_PAIR)
            yield from pairs
        turns = []


def _pairs_of_conversation(value: object, options: ReadOptions, location: Location) -> list[Pair]:
    """Return the pairs of a conversation, which is a text with role marks or a list of utterances."""
    is_text = isinstance(value, str)
    if isinstance(value, str):
        if dialogue := split_dialogue(value):
            return [*pairs_of_roles(dialogue, location.drop)]
        if utterances := split_utterances(value):
            return pairs_of_texts(utterances)
        value = value.strip().splitlines()
    if not isinstance(value, list) or len(value) < 2:
        return []
    value = list[Any]("" if turn is None else turn for turn in value)
    kinds = {*map(type, value)}
    turns: list[tuple[str, str]] | None = None
    if kinds == {str}:
        turns = split_by_speaker(value, is_text) if ":" in value[0] or "：" in value[0] else None
        if turns is None:
            return pairs_of_texts(value)
    elif kinds == {list} and all(len(turn) == 2 for turn in value):
        turns = [(text_of(name), text_of(text)) for name, text in value]
    if turns is None:
        return []
    location.report.has_names = True
    if not ROLES.isdisjoint(key_of(name) for name, _ in turns):
        return [*pairs_of_roles(turns, location.drop, bool(options.map or location.report.doubt))]
    messages = (Message(name, (name,), "", text) for name, text in turns)
    return [*pairs_of_messages(messages, options, location.report, location.place)]


def _pairs_in_roles(entries: Entries, layout: Layout, options: ReadOptions, location: Location) -> Iterator[Pair]:
    """Yield the pairs of messages with roles."""
    me = key_of(options.me or "")
    roles: set[str] = set()

    def messages() -> Iterator[tuple[str, tuple[str, str]] | None]:
        for entry in entries:
            if entry is None:
                yield None
                continue
            role = text_of(entry.get("role")).strip()
            text = layout.text_of(entry.get("text"))
            if key_of(role) in IN_MESSENGERS:
                text = plain_text(text)
            roles.add(role)
            yield text_of(entry.get("chat")), (role, text)

    are_accepted = bool(options.map or location.report.doubt)
    yield from pairs_of_roles(group_by_chat(messages()), location.drop, are_accepted, me)
    people = [role for role in sorted(roles) if key_of(role) not in UNHEARD]
    if me and people and me not in map(key_of, people):
        raise unknown_person_error(options.me or "", people, location.place)


def _messages(entries: Entries, layout: Layout, drop: Drop) -> Iterator[tuple[str, Message] | None]:
    """Yield the chat id and the message for each entry. None is yielded after each conversation."""
    has_kind, has_mine, has_names, has_time = (name in layout.map.names for name in ("kind", "mine", "names", "time"))
    for entry in entries:
        if entry is None:
            yield None
            continue
        kind = text_of(entry["kind"]).strip().casefold() if has_kind else ""
        if kind in layout.notices:
            drop(NOTICES)
            continue
        mine = has_mine and (entry["mine"] is True or text_of(entry["mine"]).strip().casefold() in YES)
        name = text_of(entry.get("speaker")).strip() or (ME if mine else "")
        names: tuple[str, ...] = (name,)
        if has_names or mine:
            others = entry.get("names")
            all_names = [name, *map(text_of, others if isinstance(others, list) else [others]), ME if mine else ""]
            names = tuple(filter(None, all_names)) or ("",)
        text = layout.text_of(entry["text"]) if not layout.texts or kind in layout.texts else ""
        sender = f"{mine:d}{name}"  # Some exports give both people the same name, so the own messages are marked.
        time = text_of(entry["time"]) if has_time else ""
        yield text_of(entry.get("chat")), Message(sender, names, time, text)


class Reply(NamedTuple):
    """A message that refers to the message it answers, its parent."""

    key: str
    parent: str  # key of the message that is answered; "" for the first message of a thread
    text: str
    role: str = ""


def _reply(entry: Mapping[str, Any], layout: Layout) -> Reply:
    key, parent = (_REDDIT_KIND.sub("", text_of(entry.get(name)), count=1) for name in ("id", "parent"))
    text = layout.text_of(entry.get("text")).strip()
    return Reply(key, parent, text, text_of(entry.get("role")).casefold())


_M = TypeVar("_M")  # type of a message or a turn


def group_by_chat(messages: Iterable[tuple[str, _M] | None]) -> Iterator[_M | None]:
    """Sort interleaved messages by chat. None is yielded after each chat.

    Args:
        messages: Pairs of a chat id and a message. None ends all chats, and so does every MAX_HELD-th message, to
            limit the memory used.
    """
    chats: dict[str, list[_M]] = {}  # messages by chat id
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
            yield item[1]  # A file without chat ids contains a single chat.


def order_by_parents(replies: Iterable[Reply], drop: Drop) -> Iterator[tuple[str, str] | None]:
    """Sort replies so that each directly follows its parent, i.e. the message it answers.

    To limit memory, at most 2 x MAX_HELD replies are stored. Replies whose parent is no longer stored are dropped.

    Yields:
        The role and the text of each message. If several replies have the same parent, it is repeated. None ends a
        conversation.
    """
    previous: dict[str, Reply] = {}
    stored: dict[str, Reply] = {}
    for reply in replies:
        if reply.text in _DELETED:
            drop(REMOVED)
            reply = reply._replace(text="")
        stored[reply.key] = reply
        if len(stored) >= MAX_HELD:
            yield from _threads(stored, previous, drop)
            previous = stored
            stored = {}
    yield from _threads(stored, previous, drop)


def _threads(
    stored: Mapping[str, Reply], previous: Mapping[str, Reply], drop: Drop
) -> Iterator[tuple[str, str] | None]:
    """Yield the replies in depth-first order. If a reply does not follow its parent, None and the parent come first."""
    children: dict[str, list[Reply]] = {}
    roots: list[Reply] = []
    for reply in stored.values():
        if reply.parent in stored and reply.parent != reply.key:
            children.setdefault(reply.parent, []).append(reply)
        else:
            roots.append(reply)
            if reply.parent not in ("", "0", "root") and reply.parent not in previous:
                drop(ABSENT)
    last: Reply | None = None
    waiting = roots[::-1]
    while waiting:
        reply = waiting.pop()
        waiting += reversed(children.get(reply.key, ()))
        parent = stored.get(reply.parent) or previous.get(reply.parent)
        if parent is None or parent is reply or not reply.text or not parent.text:
            continue
        if parent is not last:
            yield from (None, (parent.role, parent.text))
        yield reply.role, reply.text
        last = reply

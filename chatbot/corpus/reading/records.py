"""From what a map gives to pairs: records of a question and its answer, conversations, messages, replies by parent."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from typing import Any

from chatbot.corpus.reading import mapping
from chatbot.corpus.reading.conversation import NEW, Pair, nobody_is
from chatbot.corpus.reading.layouts import NO_PAIR, UNDECLARED, Layout
from chatbot.corpus.reading.marked_text import labelled, said_in, separated, without_mark
from chatbot.corpus.reading.names import IN_MESSENGERS, ROLES, UNHEARD, key_of
from chatbot.corpus.reading.report import ALONE, UNUSED_FIELDS, Located, ReadOptions
from chatbot.corpus.reading.texts import YES, alternatives, plain_text, text_of
from chatbot.corpus.reading.turns import (
    NOTICES,
    Drop,
    Message,
    Reply,
    Said,
    behind_parents,
    by_chat,
    pairs_of_messages,
    pairs_of_roles,
    pairs_of_texts,
    pairs_of_turns,
)

MOST_PAIRS = 1_000  # of the phrasings and answers of one record
ME = "me"  # the name for --me where an export marks the messages of the user, but has no name for them

_REDDIT_KIND = re.compile(r"t[1-6]_")  # before its ids


Entries = Iterable[Any]  # what a map gives, with None after each conversation


def pairs_of_entries(entries: Entries, layout: Layout, options: ReadOptions, located: Located) -> Iterator[Pair]:
    """Yield the pairs. Raises UserError if `options.me` names nobody."""
    drop = located.drop
    if layout.map.kind is mapping.PAIRS:
        return (pair for entry in entries if entry is not None for pair in pairs_of_record(entry, drop))
    if layout.map.kind is mapping.REPLIES:
        replies = behind_parents((_reply(entry, layout) for entry in entries if entry is not None), drop)
        if "role" in layout.map.names:
            return pairs_of_roles(replies, drop, layout.name == UNDECLARED)
        return pairs_of_turns((reply and Said(reply[1]) for reply in replies), drop)
    if layout.map.kind is mapping.TURNS:
        return _pairs_of_conversations(entries, layout, options, located)
    located.report.has_names = True
    if "role" in layout.map.names:
        return _pairs_in_roles(entries, layout, options, located)
    return pairs_of_messages(by_chat(_messages(entries, layout, drop)), options, located.report, located.place)


def pairs_of_record(entry: Mapping[str, Any], drop: Drop) -> list[Pair]:
    """Return the pairs of {question, input, answer, history}, those of the history first.

    Each may be a text; of several phrasings and answers, each makes a pair with each.
    """
    questions = alternatives(entry.get("question"))
    answers = alternatives(entry.get("answer"))
    history = entry.get("history")
    added = text_of(entry.get("input")).strip()
    if isinstance(history, list) and history and not questions:
        *history, last = history
        questions = alternatives(last)
    if added:
        questions = [f"{question}\n{added}" if question.strip() else added for question in questions or [""]]
    if not any(map(str.strip, answers)) or not any(map(str.strip, questions)):
        drop(NO_PAIR)
        return []
    if len(questions) * len(answers) > MOST_PAIRS:
        drop(f"records of more than {MOST_PAIRS:,} pairs")
        return []
    if isinstance(history, list) and history and len(questions) == len(answers) == 1:
        turns = [part if isinstance(part, list | dict) else text_of(part) for part in history]  # "" for null
        if len({*map(type, turns)}) == 1:
            return [*_pairs_after(turns, questions[0], answers[0], drop)]
        drop(f"{UNUSED_FIELDS}: histories of texts among lists or objects")
    return [pair for each in product(questions, answers) for pair in _pairs_of_texts(*each, drop)]


def _pairs_of_texts(question: str, answer: str, drop: Drop) -> list[Pair]:
    """Return the pair, or the pairs of a question that is a dialogue with marks."""
    if (said := said_in(question)) is not None:
        if said[-1] == ("assistant", ""):
            said.pop()
        return [*pairs_of_roles([*said, ("assistant", without_mark(answer))], drop)]
    if "__eo" in question:
        mark = "__eot__" if "__eot__" in question else "__eou__"
        return pairs_of_texts(separated(f"{question} {mark} {answer}") or [])
    return [(question, answer, NEW)]


def _pairs_after(history: list[Any], question: str, answer: str, drop: Drop) -> Iterable[Pair]:
    """Return the pairs of a history - of texts, of [question, answer], of messages with roles - and of the question."""
    if all(isinstance(turn, str) for turn in history):
        return pairs_of_texts([*history, question, answer])
    said = []
    for part in history:
        role = text_of(part.get("role") or part.get("from")) if isinstance(part, dict) else ""
        sides = part if isinstance(part, list) else [part] if role or "content" in part else [*part.values()]
        said += [("assistant" if n else role or "user", text_of(side)) for n, side in enumerate(sides[:2])]
    return pairs_of_roles([*said, ("user", question), ("assistant", answer)], drop)


def _pairs_of_conversations(entries: Entries, layout: Layout, options: ReadOptions, located: Located) -> Iterator[Pair]:
    turns: list[str] = []  # of the conversation, if each comes by itself
    for entry in chain(entries, (None,)):
        value = entry["turns"] if isinstance(entry, dict) and "turns" in entry else entry
        if layout.map.is_list and isinstance(value, str):
            turns.append(value)
            continue
        for conversation in (turns, value) if turns else (value,):
            if conversation is None:
                continue
            pairs = _pairs_of_conversation(conversation, options, located)
            if not pairs:
                located.drop(ALONE if isinstance(conversation, list) and len(conversation) == 1 else NO_PAIR)
            yield from pairs
        turns = []


def _pairs_of_conversation(value: object, options: ReadOptions, located: Located) -> list[Pair]:
    """Return the pairs of a conversation in one value: utterances, with names or without, or a text with marks."""
    is_text = isinstance(value, str)
    if isinstance(value, str):
        if turns := said_in(value):
            return [*pairs_of_roles(turns, located.drop)]
        if utterances := separated(value):
            return pairs_of_texts(utterances)
        value = value.strip().splitlines()
    if not isinstance(value, list) or len(value) < 2:
        return []
    value = list[Any]("" if turn is None else turn for turn in value)
    kinds = {*map(type, value)}
    said: list[tuple[str, str]] | None = None
    if kinds == {str}:
        said = labelled(value, is_text) if ":" in value[0] or "：" in value[0] else None
        if said is None:
            return pairs_of_texts(value)
    elif kinds == {list} and all(len(turn) == 2 for turn in value):
        said = [(text_of(name), text_of(text)) for name, text in value]
    if said is None:
        return []
    located.report.has_names = True
    if not ROLES.isdisjoint(key_of(name) for name, _ in said):
        return [*pairs_of_roles(said, located.drop, bool(options.map or located.report.doubt))]
    messages = (Message(name, (name,), "", text) for name, text in said)
    return [*pairs_of_messages(messages, options, located.report, located.place)]


def _pairs_in_roles(entries: Entries, layout: Layout, options: ReadOptions, located: Located) -> Iterator[Pair]:
    """Yield each turn of a user with that of the assistant which follows it."""
    me = key_of(options.me or "")
    roles: set[str] = set()

    def messages() -> Iterator[tuple[str, tuple[str, str]] | None]:
        for entry in entries:
            if entry is None:
                yield None
                continue
            role = text_of(entry.get("role")).strip()
            text = layout.finish(text_of(entry.get("text")))
            if key_of(role) in IN_MESSENGERS:
                text = plain_text(text)
            roles.add(role)
            yield text_of(entry.get("chat")), (role, text)

    are_accepted = bool(options.map or located.report.doubt)
    yield from pairs_of_roles(by_chat(messages()), located.drop, are_accepted, me)
    heard = [role for role in sorted(roles) if key_of(role) not in UNHEARD]
    if me and heard and me not in map(key_of, heard):
        raise nobody_is(options.me or "", heard, located.place)


def _messages(entries: Entries, layout: Layout, drop: Drop) -> Iterator[tuple[str, Message] | None]:
    """Yield (chat, message), and None after each conversation."""
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
        text = layout.finish(text_of(entry["text"])) if not layout.texts or kind in layout.texts else ""
        sender = f"{mine:d}{name}"  # in a chat of two, both may have the name of the chat
        time = text_of(entry["time"]) if has_time else ""
        yield text_of(entry.get("chat")), Message(sender, names, time, text)


def _reply(entry: Mapping[str, Any], layout: Layout) -> Reply:
    key, parent = (_REDDIT_KIND.sub("", text_of(entry.get(name)), count=1) for name in ("id", "parent"))
    text = layout.finish(text_of(entry.get("text")).strip())
    return Reply(key, parent, text, text_of(entry.get("role")).casefold())

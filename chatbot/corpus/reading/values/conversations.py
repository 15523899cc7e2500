"""The pairs of a JSON or YAML value, in any of the known shapes.

A conversation is a list of utterances or of messages with a role; a record has named fields for question and answer.
Lists may contain them, and so may objects: under a known key, or if all values of the object are lists or objects.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, NEXT, OVERLAP, Pair, linked
from chatbot.corpus.reading.tables.columns import named
from chatbot.corpus.reading.values.records import pairs_of_record
from chatbot.corpus.reading.weights import weight_of

MAX_DEPTH = 8  # of nested lists and objects
MESSAGES = (("role", "content"), ("from", "value"))
ASKING = frozenset({"user", "human", "usr", "用户", "问"})
ANSWERING = frozenset({"assistant", "gpt", "bot", "chatbot", "chatgpt", "model", "sys", "助手", "机器人", "答"})
CONTAINERS = (
    *("messages", "conversations", "conversation", "dialog", "dialogue"),
    *("dialogs", "dialogues", "utterances", "turns", "chat", "log", "data", "content"),
)
SEPARATE = frozenset({"conversations", "dialogs", "dialogues", "data"})  # containers of several conversations
# Objects of one text in a conversation, as KdConv and MultiWOZ have them.
TEXTS = frozenset({"message", "text", "utterance", "sentence", "content"})
SENDERS = frozenset({"sender", "sender_name", "author", "user", "speaker", "from", "agent", "name"})
NO_PAIR = "records without question and answer"
REJECTED = "replies that were rated bad"  # records of data/ratings.jsonl, and of preferences, without a chosen reply
CHAT = "messages with a sender, as chat programs export them (write a CSV file with the columns sender and content)"

LINKS = (NEW, *(OVERLAP,) * 100)  # of a list of utterances

Drop = Callable[[str], None]


def pairs_of(value: object, options: ReadOptions, drop: Drop, depth: int = 0) -> Iterator[Pair]:
    """Yield the pairs of a value; call `drop` with the reason for each part without pairs."""
    if depth > MAX_DEPTH:
        drop("values nested too deeply")
    elif isinstance(value, list):
        if len(value) > 1 and set(map(type, value)) == {str}:
            links = LINKS if len(value) < len(LINKS) else chain((NEW,), repeat(OVERLAP))
            yield from zip(value, value[1:], links, strict=False)  # the fastest way
        else:
            yield from pairs_in(value, options, drop, depth)
    elif isinstance(value, dict):
        yield from _pairs_of_object(value, options, drop, depth)
    else:
        drop("values that are not a conversation")


def pairs_in(values: Iterable[object], options: ReadOptions, drop: Drop, depth: int = 0) -> Iterator[Pair]:
    """Yield the pairs of a list of any size, whose values are utterances, messages, or values with pairs."""
    asked: str | None = None  # the utterance that the next one may answer
    turns = pairs = 0
    link = NEW
    for value in values:
        if isinstance(value, str):
            turns += 1
            if asked is not None:
                pairs += 1
                yield asked, value, link
                link = OVERLAP
            asked = value
        elif (message := _message(value)) is not None:
            role, content = message
            if role == "system":
                continue
            turns += 1
            if not isinstance(content, str):
                drop("utterances that are not text")
                asked, link = None, NEW
            elif role in ASKING:
                asked = content
            else:
                if role in ANSWERING and asked is not None:
                    pairs += 1
                    yield asked, content, link
                    link = NEXT
                asked = None
        else:
            asked, link = None, NEW
            if isinstance(value, list | dict):
                yield from pairs_of(value, options, drop, depth + 1)
            else:
                drop("utterances that are not text")
    if turns and not pairs:
        drop("conversations of one utterance" if turns == 1 else "conversations without a question and its answer")


def _message(value: object) -> tuple[str, object] | None:
    if isinstance(value, dict):
        for role, content in MESSAGES:
            if role in value and content in value:
                return str(value[role]).casefold(), _text(value[content])
    return None


def _text(content: object) -> object:
    """Return the text of a content of several parts, which may also be pictures; any other content as it is."""
    if not isinstance(content, list):
        return content
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) or content


def _turn(value: object) -> object:
    """Return the text of an object that has no other text; any other value as it is."""
    if not isinstance(value, dict):
        return value
    texts = [name for name, part in value.items() if isinstance(part, str)]
    return value[texts[0]] if len(texts) == 1 and texts[0] in TEXTS else value


def _in_one_conversation(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for number, pair in enumerate(pairs):
        yield linked(pair, NEXT) if number and pair[2] == NEW else pair


def _pairs_of_object(value: dict[str, object], options: ReadOptions, drop: Drop, depth: int) -> Iterator[Pair]:
    if options.weight_column is not None and (field := _weight_field(value, options.weight_column)) is not None:
        weight = weight_of(value[field])
        rest = {name: inner for name, inner in value.items() if name != field}
        for pair in _pairs_of_object(rest, options, drop, depth):
            yield pair if len(pair) == 4 else (*pair, weight)
        return
    names = tuple(value)
    places = named(names, options.columns) if options.columns else None
    if places is not None:
        question, answer = value[names[places[0]]], value[names[places[1]]]
        if isinstance(question, str) and isinstance(answer, str):
            yield question, answer, NEW
        else:
            drop(NO_PAIR)
        return
    pairs = pairs_of_record(value, drop)
    if pairs is not None:
        yield from pairs
        return
    container = next((name for name in CONTAINERS if _contains(value.get(name))), None)
    if container is not None:
        inner = value[container]
        inner = [*inner.values()] if isinstance(inner, dict) else inner
        if isinstance(inner, list) and container not in SEPARATE:
            inner = [*map(_turn, inner)]
        pairs_inside = pairs_of(inner, options, drop, depth + 1)
        is_record = isinstance(inner, list) and all(
            isinstance(part, dict) and named(tuple(part)) is not None for part in inner
        )
        yield from _in_one_conversation(pairs_inside) if is_record and container not in SEPARATE else pairs_inside
    elif value and all(isinstance(part, list | dict) for part in value.values()):
        for part in value.values():
            yield from pairs_of(part, options, drop, depth + 1)
    else:
        fields = {name.casefold() for name in value}
        no_pair = REJECTED if "rejected" in fields else NO_PAIR
        drop(CHAT if fields & TEXTS and fields & SENDERS else no_pair)


def _weight_field(value: dict[str, object], name: str) -> str | None:
    return next((field for field in value if field.strip().casefold() == name.casefold()), None)


def _contains(value: object) -> bool:
    """Return whether a value contains conversations or turns: a list, or an object of objects."""
    if isinstance(value, dict):
        return bool(value) and all(isinstance(part, dict) for part in value.values())
    return isinstance(value, list)

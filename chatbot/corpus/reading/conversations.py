"""The pairs of a JSON or YAML value, in any of the known shapes.

A conversation is a list of utterances or of messages with a role; a record has named fields for question and answer.
Lists may contain them, and so may objects: under a known key, or if all values of the object are lists or objects.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

from chatbot.corpus.reading.columns import named
from chatbot.corpus.reading.pair import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.reading.records import pairs_of_record

MAX_DEPTH = 8  # of nested lists and objects
MESSAGES = (("role", "content"), ("from", "value"))
ASKING = frozenset({"user", "human", "usr", "用户", "问"})
ANSWERING = frozenset({"assistant", "gpt", "bot", "chatbot", "chatgpt", "model", "sys", "助手", "机器人", "答"})
CONTAINERS = (
    *("messages", "conversations", "conversation", "dialog", "dialogue"),
    *("dialogs", "dialogues", "utterances", "turns", "data"),
)

LINKS = (NEW, *(OVERLAP,) * 100)  # of a list of utterances

Drop = Callable[[str], None]


def pairs_of(value: object, columns: tuple[str, ...], drop: Drop, depth: int = 0) -> Iterator[Pair]:
    """Yield the pairs of a value; call `drop` with the reason for each part without pairs."""
    if depth > MAX_DEPTH:
        drop("values nested too deeply")
    elif isinstance(value, list):
        if len(value) > 1 and set(map(type, value)) == {str}:
            links = LINKS if len(value) < len(LINKS) else chain((NEW,), repeat(OVERLAP))
            yield from zip(value, value[1:], links, strict=False)  # the fastest way
        else:
            yield from pairs_in(value, columns, drop, depth)
    elif isinstance(value, dict):
        yield from _pairs_of_object(value, columns, drop, depth)
    else:
        drop("values that are not a conversation")


def pairs_in(values: Iterable[object], columns: tuple[str, ...], drop: Drop, depth: int = 0) -> Iterator[Pair]:
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
                yield from pairs_of(value, columns, drop, depth + 1)
            else:
                drop("utterances that are not text")
    if turns and not pairs:
        drop("conversations of one utterance" if turns == 1 else "conversations without a question and its answer")


def _message(value: object) -> tuple[str, object] | None:
    if isinstance(value, dict):
        for role, content in MESSAGES:
            if role in value and content in value:
                return str(value[role]).casefold(), value[content]
    return None


def _pairs_of_object(value: dict[str, object], columns: tuple[str, ...], drop: Drop, depth: int) -> Iterator[Pair]:
    names = tuple(value)
    places = named(names, columns) if columns else None
    if places is not None:
        question, answer = value[names[places[0]]], value[names[places[1]]]
        if isinstance(question, str) and isinstance(answer, str):
            yield question, answer, NEW
        else:
            drop("records without question and answer")
        return
    pairs = pairs_of_record(value, drop)
    if pairs is not None:
        yield from pairs
        return
    container = next((name for name in CONTAINERS if isinstance(value.get(name), list)), None)
    if container is not None:
        yield from pairs_of(value[container], columns, drop, depth + 1)
    elif value and all(isinstance(part, list | dict) for part in value.values()):
        for part in value.values():
            yield from pairs_of(part, columns, drop, depth + 1)
    else:
        drop("records without question and answer")

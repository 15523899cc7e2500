"""The pairs of a JSON or YAML value, in any of the known shapes.

A conversation is a list of utterances or of messages with a speaker; a record has named fields for question and answer.
Lists may contain them, and so may objects, at any depth. A list of texts under an unknown key is no conversation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, Pair, pairs_of_texts
from chatbot.corpus.reading.formats.columns import named
from chatbot.corpus.reading.formats.fields import (
    CONVERSATION,
    HEAD,
    MAX_DEPTH,
    NO_PAIR,
    SEPARATE,
    Ahead,
    Walk,
    message_fields,
    text_of,
)
from chatbot.corpus.reading.formats.marked_text import (
    labelled,
    pairs_of_dialogue,
    role_of,
    separated,
    turns_of,
)
from chatbot.corpus.reading.formats.messages import (
    NOT_TEXT,
    are_replies,
    are_short,
    as_message,
    kind_of,
    pairs_of_people,
    pairs_of_replies,
    pairs_of_roles,
    said_by,
    shown_branch,
)
from chatbot.corpus.reading.formats.records import (
    HISTORIES,
    QUESTION,
    pairs_of_entry,
    pairs_of_record,
    reading_of,
)


def header_of(head: Sequence[object]) -> list[str] | None:
    """Return the names of the columns, if these are the rows of a table and the first has the names of a pair."""
    rows = [row for row in head if isinstance(row, list)]
    if len(rows) < max(2, len(head)) or len({*map(len, rows)}) > 1 or not all(isinstance(n, str) for n in rows[0]):
        return None
    return rows[0] if named(tuple(rows[0])) else None


def pairs_of_columns(value: dict[str, object], walk: Walk, alone: bool) -> list[Pair] | None:
    """Return the pair of the fields that the user gave, None if the object lacks them."""
    names, columns = tuple(value), walk.options.columns
    places = named(names, columns)
    if places is None:
        if (not alone and len(value) > 1) or columns not in (("1", "2"), ("2", "1")) or reading_of(value) is None:
            return None
        pairs = [pair for key, answer in value.items() for pair in pairs_of_entry(key, answer)]
        return pairs if columns[0] == "1" else [(answer, question, NEW) for question, answer, *_ in pairs]
    question, answer = value[names[places[0]]], value[names[places[1]]]
    if isinstance(question, list) and isinstance(answer, list):
        both = [*zip(question, answer, strict=False)]
    else:
        both = [(question, answer)]
    texts = ((text_of(question), text_of(answer)) for question, answer in both)
    pairs = [(question, answer, NEW) for question, answer in texts if question is not None and answer is not None]
    if not pairs:
        walk.drop(NO_PAIR)
    return pairs


def records_of_columns(value: Mapping[str, object]) -> list[object] | None:
    """Return the records of a table as pandas writes it split; None for any other object."""
    columns, rows = value.get("columns"), value.get("data", value.get("rows"))
    if isinstance(columns, list) and isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows):
        names = [column.get("name") if isinstance(column, dict) else column for column in columns]
        if all(isinstance(name, str) for name in names):
            return [dict(zip(names, row, strict=False)) for row in rows]
    return None


def records_of_parent(value: Mapping[str, object]) -> list[object] | None:
    """Return the questions about a paragraph, as SQuAD has them, each with the paragraph; None for any other object."""
    questions, text = value.get("qas"), value.get("context")
    if not isinstance(questions, list):
        return None
    shared: dict[str, object] = {"context": text} if isinstance(text, str) else {}
    return [{**shared, **part} if isinstance(part, dict) else part for part in questions]


REJECTED = "replies that were rated bad"  # records of data/ratings.jsonl, and of preferences, without a chosen reply
NO_TEXTS = frozenset({"items", "log"})  # of MultiWOZ and ShareGPT, but elsewhere lists of anything
# Of a record without an answer, of Self-Instruct, and what text-generation-webui sends beside what it shows.
NO_CONVERSATIONS = frozenset((*HISTORIES, "rejected", "candidates", "knowledge", "instances", "internal"))


def pairs_of(value: object, walk: Walk, depth: int = 0, alone: bool = True) -> Iterator[Pair]:
    """Yield the pairs of a value; the report counts each part without pairs.

    alone: whether it is not one of a list, so that an object may be a map of questions.
    """
    if depth > MAX_DEPTH:
        walk.drop("values nested too deeply")
    elif isinstance(value, list):
        if len(value) > 1 and set(map(type, value)) == {str}:
            yield from _pairs_of_utterances(value, walk)
        else:
            yield from pairs_in(value, walk, depth)
    elif isinstance(value, dict):
        yield from _pairs_of_object(value, walk, depth, alone)
    elif isinstance(value, str) and (pairs := _pairs_of_text(value)):
        yield from pairs
    else:
        walk.drop("values that are not a conversation")


def _pairs_of_utterances(texts: Sequence[str], walk: Walk) -> Iterator[Pair]:
    """Yield the pairs of utterances, which may begin with the names of their speakers."""
    if (":" in texts[0] or "：" in texts[0]) and (messages := labelled(texts)) is not None:
        yield from pairs_in([said_by(role_of(name), text) for name, text in messages], walk, 0, True)
    else:
        yield from pairs_of_texts(texts)


def _pairs_of_text(text: str) -> list[Pair]:
    """Return the pairs of a text that is a dialogue with marks."""
    if turns := turns_of(text):
        return pairs_of_dialogue(turns)
    return pairs_of_texts(separated(text) or [])


def pairs_in(values: "Ahead | list[object]", walk: Walk, depth: int = 0, inside: bool = False) -> Iterator[Pair]:
    """Yield the pairs of a list of any size, whose values are utterances, messages, or values with pairs.

    inside: whether the list stands where a conversation is expected.
    """
    stream = iter(values)
    head = values.head() if isinstance(values, Ahead) else values[:HEAD]
    if are_short(head, inside):
        head, stream = [as_message(value) for value in head], map(as_message, stream)
        inside = True
    if any(isinstance(value, dict) for value in head):
        kind = kind_of(head, inside)
        if not inside and are_replies(head):
            yield from pairs_of_replies(stream, walk)
        elif kind == "roles":
            yield from pairs_of_roles(stream, head, walk)
        elif kind == "people":
            yield from pairs_of_people(stream, walk)
        else:
            yield from _pairs_of_values(stream, walk, depth)
    elif (header := header_of(head)) is not None:
        for row in islice(stream, 1, None):
            yield from pairs_of(dict(zip(header, row, strict=False)) if isinstance(row, list) else row, walk, depth + 1)
    else:
        yield from _pairs_of_values(stream, walk, depth)


def _pairs_of_values(values: Iterator[object], walk: Walk, depth: int) -> Iterator[Pair]:
    question: str | None = None  # the utterance that the next one may answer
    turns = pairs = 0
    link = NEW
    for value in values:
        if isinstance(value, str):
            turns += 1
            if question is not None:
                pairs += 1
                yield question, value, link
                link = OVERLAP
            question = value
        elif isinstance(value, list) and question is not None and turns == 1:  # a question and its answers
            pairs += 1
            for part in value:
                if isinstance(part, str):
                    yield question, part, NEW
                else:
                    walk.drop(NOT_TEXT)
            question = None
        else:
            question, link = None, NEW
            if isinstance(value, list | dict):
                yield from pairs_of(value, walk, depth + 1, alone=False)
            else:
                walk.drop(NOT_TEXT)
    if turns and not pairs:
        walk.drop_alone(turns)


def _turn(value: object) -> object:
    """Return the text of a turn without a speaker, as KdConv and MultiWOZ have it; any other value as it is."""
    if not isinstance(value, dict) or named(tuple(value)) is not None:
        return value
    fields = message_fields(tuple(value))
    if fields is None or fields.speaker is not None or not isinstance(value[fields.text], str):
        return value
    return value[fields.text]


def _in_one_conversation(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for number, pair in enumerate(pairs):
        yield (*pair[:2], NEXT) if number and pair[2] == NEW else pair


def _pairs_of_object(value: dict[str, object], walk: Walk, depth: int, alone: bool) -> Iterator[Pair]:
    if value.get("label", value.get("kto_tag")) is False and (value.keys() & {"completion", "messages", "kto_tag"}):
        walk.drop(REJECTED)
    elif walk.options.columns and (pairs := pairs_of_columns(value, walk, alone)) is not None:
        yield from pairs
    elif "mapping" in value and (branch := shown_branch(value)) is not None:
        yield from pairs_in(branch, walk, depth + 1, True)
    elif (records := records_of_columns(value)) is not None:
        yield from pairs_in(records, walk, depth + 1)
    elif (pairs_inside := pairs_of_record(value, walk)) is not None:
        yield from pairs_inside
    else:
        yield from _pairs_inside(value, walk, depth, alone)


def _pairs_inside(value: dict[str, object], walk: Walk, depth: int, alone: bool) -> Iterator[Pair]:
    """Yield the pairs of an object that is no record: of its conversation, its entries, or all values in it."""
    container = next((name for name in CONVERSATION if _contains(value.get(name))), None)
    reading = reading_of(value) if alone and container is None else None
    if container is not None:
        yield from _pairs_of_container(value[container], container, walk, depth)
    elif pairs := _pairs_of_only_text(value, walk):
        yield from pairs
    elif (records := records_of_parent(value)) is not None:
        yield from pairs_in(records, walk, depth + 1)
    elif reading == "map":
        for key, answer in value.items() if walk.doubts(QUESTION) else ():
            yield from pairs_of_entry(key, answer)
    else:
        has_pairs = False
        for name, part in value.items():
            if not isinstance(part, list | dict) or not part or name.casefold() in NO_CONVERSATIONS:
                continue
            for pair in pairs_of(part, walk, depth + 1) if reading or not _is_texts(part) else ():
                has_pairs = True
                yield pair
        if not has_pairs:
            _drop_object(value, walk)


def _pairs_of_container(inner: object, name: str, walk: Walk, depth: int) -> Iterator[Pair]:
    values = [*inner.values()] if isinstance(inner, dict) else inner
    assert isinstance(values, list)
    if isinstance(inner, dict) and name in SEPARATE:
        for part in values:
            yield from pairs_of(part, walk, depth + 1)
        return
    if name in NO_TEXTS and any(isinstance(part, str) for part in values):
        walk.drop(NO_PAIR)
        return
    if name not in SEPARATE:
        values = [*map(_turn, values)]
    texts = [part for part in values if isinstance(part, str)]
    if len(texts) == len(values) > 1:
        yield from _pairs_of_utterances(texts, walk)
    else:
        has_roles = name in SEPARATE and kind_of(values[:HEAD], True) == "roles"
        pairs = pairs_in(values, walk, depth + 1, name not in SEPARATE or has_roles)
        are_records = all(isinstance(part, dict) and named(tuple(part)) is not None for part in values)
        yield from _in_one_conversation(pairs) if are_records and name not in SEPARATE else pairs


def _pairs_of_only_text(value: Mapping[str, object], walk: Walk) -> list[Pair]:
    """Return the pairs of a dialogue with marks in a field, or with names in one for a conversation."""
    for name, part in value.items():
        if not isinstance(part, str):
            continue
        pairs = _pairs_of_text(part)
        if not pairs and name.strip().casefold() in CONVERSATION:
            messages = labelled(part.strip().splitlines(), sure=True) or ()
            pairs = [*pairs_in([said_by(role_of(who), text) for who, text in messages], walk, 0, True)]
        if pairs:
            return pairs
    return []


def _drop_object(value: Mapping[str, object], walk: Walk) -> None:
    fields = {name.casefold() for name in value}
    if "rejected" in fields:
        walk.drop(REJECTED)
    else:
        texts = [name for name, part in value.items() if isinstance(part, str)]
        if len(texts) > 1:
            walk.fields = walk.fields or tuple(texts)
        walk.drop(NO_PAIR)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _contains(value: object) -> bool:
    """Return whether a value contains conversations or turns: a list, or an object of objects."""
    if isinstance(value, dict):
        return bool(value) and all(isinstance(part, dict) for part in value.values())
    return isinstance(value, list)

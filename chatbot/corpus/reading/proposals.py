"""Which layout values have: a declared one, or what their names say; and where in a document these values stand.

What names alone cannot tell is a doubt: the first pairs are shown, with the flag that reads them so.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.layouts import declared
from chatbot.corpus.reading.mapping import PAIRS, compiled, flag, quoted, written
from chatbot.corpus.reading.marked_text import labelled, separated, turns_of
from chatbot.corpus.reading.objects import ANY, ITEM, Place
from chatbot.corpus.reading.records import Layout, alternatives, text_of

_ID = re.compile(r"(?=\S*\d)[\w.:/#-]+", re.ASCII)  # a name of a field that is the id of its value
MAX_DEPTH = 8  # of lists and objects around the values
# Fields in which a list of texts is a conversation; under another name it may be a list of anything.
SURE = ("dialog", "dialogue", "conversation", "conversations", "utterances", "turns", "messages", "对话")
MARKED = ("text", "plain_text", "chat", *SURE)  # fields with a conversation in one text
Proposal = tuple[str, str] | None  # a map, and the doubt
_KNOWN_ROLES = names.ASKING | names.ANSWERING | names.UNHEARD


class Found(NamedTuple):
    """How values are read."""

    place: Place
    layout: Layout
    doubt: str = ""  # why it may be wrong, and the flag that settles it
    shape: object = None  # of the values
    unused: tuple[str, ...] = ()  # fields with text beside the question and the answer


def _items(value: Any) -> list[list[Any]]:
    return [[key, part] for key, part in value.items()] if isinstance(value, dict) else []


# The layouts of an object whose keys are questions, by the columns of the question and the answer.
ENTRIES = {
    ("1", "2"): Layout(compiled("[*].{question: [0], answer: [1]}"), unfold=_items),
    ("2", "1"): Layout(compiled("[*].{question: [1], answer: [0]}"), unfold=_items),
}


def are_entries(group: Sequence[Any]) -> bool:
    """Return whether the keys of a single object may be questions, with an answer or several as the value of each."""
    parts = [*group[0].values()] if len(group) == 1 and isinstance(group[0], dict) else []
    texts = [text for part in parts for text in (part if isinstance(part, list) and part else [part])]
    return len(parts) > 1 and all(isinstance(text, str) for text in texts)


def find(values: Sequence[Any], place: Place = ()) -> list[Found]:
    """Return the layouts of these values, or of those in them; one for each shape of value that has one."""
    found: dict[Found, None] = {}
    if len(place) > MAX_DEPTH:
        return []
    shapes: dict[object, list[Any]] = {}
    for value in values:
        shapes.setdefault(shape_of(value), []).append(value)
    for group in shapes.values():
        found |= dict.fromkeys(_found(group, place))
    if not found and not place and are_entries(values):
        doubt = (
            "the keys may be questions or the names of fields: give --columns 1 2 to learn each key as a question and "
            "its value as the answer"
        )
        return [Found(place, ENTRIES["1", "2"], doubt, shape_of(values[0]))]
    return [*found]


def _from_document(place: Place, expression: str) -> str:
    """Return the expression of a whole document, or of each item of a list, from that of the values at a place."""
    steps = place[1:] if place[:1] == (ITEM,) else place
    path = "".join("[*]" if step is ITEM else ".*" if step is ANY else f".{quoted(step)}" for step in steps)
    if "[*]" in path:
        expression = expression.replace("[].{", "[*].{", 1)  # keeps the conversations apart
    return f"{path}.{expression}".removeprefix(".") if path else expression


def _in_doubt(found: Found, doubt: str) -> Found:
    """Return this layout with a doubt, unless it has one, and with the flag that settles it."""
    settled = flag(_from_document(found.place, found.layout.map.expression))
    return found if found.doubt else found._replace(doubt=f"{doubt}; if the pairs above are right, give {settled}")


def shape_of(value: Any) -> object:
    """Return what decides the layout of a value: the names of its fields, or the types of its items."""
    if isinstance(value, dict):
        return tuple(value)
    return frozenset(map(type, value)) if isinstance(value, list) else type(value)


def _found(group: Sequence[Any], place: Place) -> list[Found]:
    """Return the layouts of values of one shape."""
    layouts = declared(group)
    if len(layouts) > 1:
        named = " or ".join(layout.name for layout in layouts)
        doubt = f"it may be of {named}; give {flag(_from_document(place, layouts[0].map.expression))}"
        return [Found(place, layouts[0], doubt, shape_of(group[0]))]
    if layouts:
        return [Found(place, layouts[0], "", shape_of(group[0]))]
    expression, doubt = proposed(group)
    if expression:
        layout = Layout(compiled(expression))
        texts = [name for name, part in group[0].items() if isinstance(part, str)] if layout.map.kind is PAIRS else []
        unused = tuple(name for name in texts if f": {quoted(name)}" not in expression)
        found = Found(place, layout, "", shape_of(group[0]), unused)
        return [_in_doubt(found, doubt) if doubt else found]
    if isinstance(group[0], list):
        return find([item for value in group for item in value], (*place, ITEM))
    if not isinstance(group[0], dict):
        return []
    are_ids = all(map(_ID.fullmatch, group[0]))
    inside = []
    has_texts = False  # whether a list is passed over, such as ChatterBot's categories
    for name in group[0]:
        parts = [value[name] for value in group]
        are_texts = isinstance(parts[0], list) and all(isinstance(text, str) for text in parts[0])
        if (not are_texts or are_ids or name in SURE) and (founds := find(parts, (*place, name))):
            inside.append(founds)
        has_texts = has_texts or (are_texts and name not in SURE)
    if len(inside) == 1 and not are_ids and (has_texts or len({*map(type, group[0].values())}) > 1):
        texts_beside = {names.key_of(name): name for name, part in group[0].items() if isinstance(part, str)}
        beside = names.first_of((*names.QUESTIONS, *names.ANSWERS), texts_beside)
        return [_in_doubt(found, f"{beside!r} beside it has a text, too") if beside else found for found in inside[0]]
    return [each._replace(place=(*place, ANY, *each.place[len(place) + 1 :])) for founds in inside for each in founds]


def proposed(group: Sequence[Any]) -> tuple[str, str]:
    """Return the map that the names of values of one shape suggest, and the doubt; ("", "") without one."""
    first = group[0]
    if isinstance(first, list):
        are_texts = len(first) > 1 and all(isinstance(text, str) for value in group for text in value)
        return ("@", "") if are_texts else ("", "")
    if isinstance(first, str):
        return ("@", "") if all(turns_of(text) or separated(text) for text in group) else ("", "")
    if not isinstance(first, dict):
        return "", ""
    fields = {names.key_of(name): name for name in reversed(first)}
    return (
        _split_table(first)
        or _conversation(group, fields)
        or _record(group, fields)
        or marked(group, fields)
        or message(group, fields)
        or _reply(group, fields)
        or ("", "")
    )


class Record(NamedTuple):
    """The fields of a question and its answer."""

    fields: dict[str, str]  # from question, input, answer and history to a field
    phrasings: list[str]  # fields with other questions
    doubt: str

    @property
    def expression(self) -> str:
        """The map of these fields."""
        if not self.phrasings:
            return written(self.fields)
        asked = ", ".join(map(quoted, filter(None, [self.fields["question"], *self.phrasings])))
        others = written({**self.fields, "question": ""}).removeprefix("{")
        return "{question: [" + asked + "][], " + others


def record(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Record | None:
    """Return the fields of a question and an answer, if both are named. fields: names as `names.key_of` has them."""
    answer = names.first_of(names.ANSWERS, fields)
    question, person = (names.first_of(choice, fields) for choice in (names.QUESTIONS, names.ASKING_PEOPLE))
    if not answer:
        question, answer = person, names.first_of(names.ANSWERING_PEOPLE, fields)
        return Record({"question": question, "answer": answer}, [], "") if question and answer else None
    history, context = fields.get(names.HISTORY, ""), fields.get("context", "")
    if context and isinstance(group[0].get(context), list):
        history = context
    phrasings = [fields[name] for name in names.PHRASINGS if name in fields]
    doubt = ""
    if not question and not history and not phrasings:
        text = names.first_of(names.TEXTS, {key: field for key, field in fields.items() if field != answer})
        question = text or person
        doubt = f"the question may be {text!r} or {person!r}" if text and person else ""
    if not (question or history or phrasings) or not _are_texts(group, question, answer):
        return None
    verdict = names.first_of(names.VERDICTS, fields)
    if verdict and len({text_of(value.get(verdict)) for value in group}) > 1:
        doubt = f"{verdict!r} may say which answers are right"
    inputs = [fields[name] for name in names.INPUTS if fields.get(name, answer) not in (question, answer, history)]
    inputs = [name for name in inputs if all(isinstance(value.get(name), str | None) for value in group)][:1]
    given = {"question": question, "input": "".join(inputs), "answer": answer, "history": history}
    return Record(given, phrasings, doubt)


def _are_texts(group: Sequence[Mapping[str, Any]], question: str, answer: str) -> bool:
    """Return whether these fields have texts, and lists only where they can be phrasings and answers."""
    asked, answers = [value.get(question) for value in group], [value.get(answer) for value in group]
    if not any(map(alternatives, answers)) or (question and not any(isinstance(each, str | list) for each in asked)):
        return False
    if any(isinstance(each, int | float) for each in answers) and names.key_of(answer) in ("target", "tgt"):
        return False  # labels
    if not isinstance(asked[0], list):
        return True
    are_columns = isinstance(answers[0], list) and len(group) == 1 and len(asked[0]) == len(answers[0]) > 1
    return names.key_of(question) in names.SEVERAL and (names.key_of(question) != "question" or not are_columns)


def _record(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    found = record(group, fields)
    return (found.expression, found.doubt) if found else None


def _conversation(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    """Propose the list of turns in a field with a known name."""
    for name in names.CONVERSATIONS:
        lists = [value[fields[name]] for value in group if name in fields]
        turns = [turn for each in lists if isinstance(each, list) for turn in each]
        if not turns:
            continue
        field = quoted(fields[name])
        if all(isinstance(turn, str) for turn in turns):
            return (field, "") if name in SURE else None
        are_twos = all(isinstance(turn, list) and [*map(type, turn)] == [str, str] for turn in turns)
        if are_twos and name != "conversations":  # several conversations, in ChatterBot's corpus
            return f"{field}[*].{{speaker: [0], text: [1]}}", "two texts may be a name and what it says, or a pair"
        if all(isinstance(turn, dict) for turn in turns):
            inner = {names.key_of(key): key for turn in turns for key in reversed(turn)}
            if name in SURE and (sides := record(turns, inner)):
                question, answer = (quoted(sides.fields[side]) for side in ("question", "answer"))
                user, assistant = (
                    f'{{role: `"{role}"`, text: {text}}}' for role, text in (("user", question), ("assistant", answer))
                )
                return f"{field}[].[{user}, {assistant}][]", sides.doubt
            expression, doubt = message(turns, inner, name in SURE) or ("", "")
            if expression and "chat:" not in expression:
                return f"{field}[].{expression}", doubt
    return None


def message(group: Sequence[Mapping[str, Any]], fields: dict[str, str], is_conversation: bool = False) -> Proposal:
    """Propose {speaker, text}, or {role, text} where the roles of a user and an assistant are known.

    is_conversation: whether they stand where a conversation is expected.
    """
    speaker = names.first_of(names.SPEAKERS, fields)
    text = names.first_of((*names.TEXTS, "parts"), {k: v for k, v in fields.items() if v != speaker})
    if not speaker or not text or names.first_of(names.ANSWERS, fields):
        return None
    said = [text_of(value.get(speaker)).strip() for value in group]
    chat, time, mine = (names.first_of(choice, fields) for choice in (names.CHATS, names.TIMES, names.MINE))
    roles = {role.casefold() for role in said}
    if roles <= _KNOWN_ROLES and roles & names.ANSWERING and (roles & names.ASKING or not roles - names.ANSWERING):
        return written({"role": speaker, "text": text, "chat": chat}), ""
    given = {"speaker": speaker, "text": text, "time": time, "mine": mine, "chat": chat}
    known = {*given.values(), *(fields[name] for name in names.COUNTERS if name in fields)}
    others = dict.fromkeys(name for value in group for name in value if name not in known)
    are_said = names.key_of(speaker) in names.SENDERS or names.key_of(text) in names.SAID
    doubt = ""
    if not all(said):
        doubt = "some messages have no speaker"
    elif others:
        doubt = (
            f"nothing is known of {', '.join(name[:20] for name in [*others][:3])}{', ...' if len(others) > 3 else ''}"
        )
    elif not (is_conversation or chat or are_said):
        doubt = "these may be comments or posts"
    elif not (is_conversation or chat) and len({*said}) in (1, len(said)):
        doubt = "nobody writes twice, or nobody else"
    return written(given), doubt


def marked(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    """Propose the field with a conversation in one text: with the marks of a template, or with names."""
    for name in MARKED:
        texts = [value[fields[name]] for value in group if name in fields]
        if not texts or not all(isinstance(text, str) for text in texts):
            continue
        if all(turns_of(text) or separated(text) for text in texts):
            return written({"turns": fields[name]}), ""
        if name in SURE and all(labelled(text.strip().splitlines(), sure=True) for text in texts):
            return written({"turns": fields[name]}), ""
    return None


def _reply(group: Sequence[Mapping[str, Any]], fields: dict[str, str]) -> Proposal:
    """Propose messages that name the one that they answer, which only a declared layout is sure of."""
    key, parent, text = (names.first_of(choice, fields) for choice in (names.IDS, names.PARENTS, names.TEXTS))
    if not (key and parent and text) or not names.first_of((*names.SPEAKERS, *names.TIMES), fields):
        return None
    return written({"id": key, "parent": parent, "text": text}), f"each may answer the one that {parent!r} names"


def _split_table(value: Mapping[str, Any]) -> Proposal:
    """Propose the two columns of a table whose names and rows stand apart, as pandas writes it."""
    columns, rows = value.get("columns"), value.get("data")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(c, str) for c in columns):
        return None
    places = {names.key_of(column): f"[{place}]" for place, column in enumerate(columns)}
    question, answer = (names.first_of(choice, places) for choice in (names.QUESTIONS, names.ANSWERS))
    return (f"data[*].{{question: {question}, answer: {answer}}}", "") if question and answer else None

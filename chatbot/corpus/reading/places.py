"""Where in a document values stand, and by which layout they are read: a declared one, or what names or values suggest.

What names alone cannot tell is a doubt: the first pairs are shown, with the flag that reads them so.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.doubts import doubt_of, has_no_texts, suggested
from chatbot.corpus.reading.layouts import declared
from chatbot.corpus.reading.mapping import PAIRS, compiled, flag, quoted, written
from chatbot.corpus.reading.objects import ANY, ITEM, Place
from chatbot.corpus.reading.proposals import SURE, proposed
from chatbot.corpus.reading.records import UNDECLARED, Layout
from chatbot.corpus.reading.sources import PART_WORDS
from chatbot.corpus.reading.texts import text_of

_ID = re.compile(r"(?=\S*\d)[\w.:/#-]+", re.ASCII)  # a name of a field that is the id of its value
MAX_DEPTH = 8  # of lists and objects around the values
_PLACES = {*SURE, *names.CONVERSATIONS, *PART_WORDS}  # where a list of texts is a conversation
Propose = Callable[[Sequence[Any]], tuple[Layout | None, str]]


class Found(NamedTuple):
    """How values are read."""

    place: Place
    layout: Layout
    doubt: str = ""  # why it may be wrong, and the flag that settles it
    shape: object = None  # of the values; None for any
    unused: tuple[str, ...] = ()  # fields with text beside the question and the answer


def _items(value: Any) -> list[list[Any]]:
    return [[key, part] for key, part in value.items()] if isinstance(value, dict) else []


_ROWS = compiled("[*].{question: [0], answer: [1]}")
# The layouts of an object whose keys are questions, by the columns of the question and the answer.
ENTRIES = {
    ("1", "2"): Layout(_ROWS, unfold=_items),
    ("2", "1"): Layout(compiled("[*].{question: [1], answer: [0]}"), unfold=_items),
}


def by_columns(columns: tuple[str, ...]) -> Propose:
    """Return what proposes the two fields that the user named, by their names or numbers."""

    def propose(group: Sequence[Any]) -> tuple[Layout | None, str]:
        ordered = [*group[0]] if isinstance(group[0], dict) else []
        if columns in ENTRIES and (are_entries(group) or len(ordered) == 1):
            return ENTRIES[columns], ""
        fields = {names.key_of(name): name for name in reversed(ordered)}
        if all(map(str.isdecimal, columns)):
            fields = {str(number): name for number, name in enumerate(ordered, start=1)}
        named = [fields[name] for name in map(names.key_of, columns) if name in fields]
        return (_of_fields(named[0], named[1], group) if len(named) == 2 else None), ""

    return propose


def _of_fields(question: str, answer: str, group: Sequence[Any]) -> Layout:
    """Return the layout of two fields, or of two lists that are the columns of a table."""
    if all(isinstance(group[0][name], list) for name in (question, answer)):
        return Layout(_ROWS, unfold=lambda value: [*map(list, zip(value[question], value[answer], strict=False))])
    return Layout(compiled(written({"question": question, "answer": answer})))


def are_entries(group: Sequence[Any]) -> bool:
    """Return whether the keys of a single object may be questions, with an answer or several as the value of each."""
    parts = [*group[0].values()] if len(group) == 1 and isinstance(group[0], dict) else []
    texts = [text for part in parts for text in (part if isinstance(part, list) and part else [part])]
    return len(parts) > 1 and all(isinstance(text, str) for text in texts)


def find(values: Sequence[Any], place: Place = (), propose: Propose | None = None) -> list[Found]:
    """Return the layouts of these values, or of those in them; one for each shape of value that has one.

    propose: from values of one shape to a map and its doubt; without, declared layouts and known names are looked for.
    """
    found: dict[Found, None] = {}
    if len(place) > MAX_DEPTH:
        return []
    shapes: dict[object, list[Any]] = {}
    for value in values:
        shapes.setdefault(type(value) if propose else shape_of(value), []).append(value)
    known = 0  # values
    for group in shapes.values():
        founds = _found(group, place, propose)
        known += len(group) if founds else 0
        found |= dict.fromkeys(founds)
    if found and 2 * known < len(values):
        return [_in_doubt(each, "most values have no known names") for each in found]
    if not found and not place and not propose and are_entries(values):
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
    path = path.removeprefix(".")
    return path or expression if expression == "@" else f"{path}.{expression}".removeprefix(".")


def _in_doubt(found: Found, doubt: str) -> Found:
    """Return this layout with a doubt and the flag that settles it, unless it has one or is declared."""
    settled = flag(_from_document(found.place, found.layout.map.expression))
    is_sure = found.doubt or found.layout.name != UNDECLARED
    return found if is_sure else found._replace(doubt=f"{doubt}; if the pairs above are right, give {settled}")


def shape_of(value: Any) -> object:
    """Return what decides the layout of a value: the names of its fields, or the types of its items."""
    if isinstance(value, dict):
        return tuple(value)
    return frozenset(map(type, value)) - {type(None)} if isinstance(value, list) else type(value)


def _found(group: Sequence[Any], place: Place, propose: Propose | None) -> list[Found]:
    """Return the layouts of values of one shape."""
    layouts = [] if propose else declared(group)
    if len(layouts) > 1:
        named = " or ".join(layout.name for layout in layouts)
        doubt = f"it may be of {named}; give {flag(_from_document(place, layouts[0].map.expression))}"
        return [Found(place, layouts[0], doubt, shape_of(group[0]))]
    if layouts:
        return [Found(place, layouts[0], "", shape_of(group[0]))]
    layout, doubt = (propose or by_names)(group)
    if layout:
        expression = layout.map.expression
        is_record = layout.map.kind is PAIRS and not layout.unfold and not propose
        texts = [name for name, part in group[0].items() if isinstance(part, str)] if is_record else []
        unused = tuple(name for name in texts if f": {quoted(name)}" not in expression)
        found = Found(place, layout, "", None if propose else shape_of(group[0]), unused)
        doubt = doubt or _doubt_of_list(group, place)
        return [_in_doubt(found, doubt) if doubt else found]
    if isinstance(group[0], list):
        return find([item for value in group for item in value], (*place, ITEM), propose)
    if not isinstance(group[0], dict):
        return []
    are_ids = all(map(_ID.fullmatch, group[0]))
    inside = []
    has_texts = False  # whether a list is passed over, such as ChatterBot's categories
    for name in group[0]:
        parts = [value[name] for value in group if name in value]
        are_texts = isinstance(parts[0], list) and all(isinstance(text, str) for text in parts[0])
        if (not are_texts or are_ids or name in SURE) and (founds := find(parts, (*place, name), propose)):
            inside.append(founds)
        has_texts = has_texts or (are_texts and name not in SURE)
    step = inside[0][0].place[len(place)] if len(inside) == 1 and len(group) > 1 and not are_ids else None
    if isinstance(step, str) and names.key_of(step) not in _PLACES:
        return [_in_doubt(found, f"{step!r} may hold anything") for found in inside[0]]
    if len(inside) == 1 and not are_ids and (has_texts or len({*map(type, group[0].values())}) > 1):
        texts_beside = {names.key_of(name): name for name, part in group[0].items() if isinstance(part, str)}
        beside = names.first_of((*names.QUESTIONS, *names.ANSWERS), texts_beside)
        return [_in_doubt(found, f"{beside!r} beside it has a text, too") if beside else found for found in inside[0]]
    places = [each._replace(place=(*place, ANY, *each.place[len(place) + 1 :])) for founds in inside for each in founds]
    several = {str(founds[0].place[len(place)]): None for founds in inside if founds[0].layout.name == UNDECLARED}
    if len(several) < 2 or are_ids or not PART_WORDS.keys().isdisjoint(map(names.key_of, several)):
        return places
    first, *_, last = several
    return [_in_doubt(each, f"{first!r} has pairs, and so has {last!r}") for each in places]


def _doubt_of_list(group: Sequence[Any], place: Place) -> str:
    """Return why lists of texts at this place may be no conversations."""
    if not isinstance(group[0], list):
        return ""
    group = [[text or "" for text in value] for value in group]  # null is no text
    unknown = [
        step for step in place if step not in (ITEM, ANY) and not (names.key_of(step) in _PLACES or _ID.fullmatch(step))
    ]
    if unknown:
        return f"lists in {unknown[-1]!r} may be anything"
    if len({len(value) for value in group}) > 1 or len(group) == 1:
        return ""
    if len(group[0]) == 2:
        return doubt_of(group, "text")
    return "these lists may be the rows of a table" if has_no_texts(group) else ""


def by_values(group: Sequence[Any]) -> tuple[Layout | None, str]:
    """Return the layout that the values of objects suggest, if they suggest one, and its doubt."""
    fields: dict[str, list[str]] = {}
    for value in group:
        for path, text in leaves(value):
            fields.setdefault(path, []).append(text)
    found = suggested(fields)
    if "speaker" in found:
        chats = [path for path in fields if names.key_of(path.rpartition(".")[2].strip('"')) in names.CHATS]
        found |= {"chat": chats[0]} if chats else {}
    given = ", ".join(f"{name}: {path}" for name, path in found.items() if path)
    return (Layout(compiled(f"{{{given}}}")) if found else None), "these fields are not known"


def leaves(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the texts, numbers and lists of texts in an object and the objects in it."""
    for name, part in value.items() if isinstance(value, dict) and depth < MAX_DEPTH else ():
        inner = f"{path}.{quoted(name)}".removeprefix(".")
        if isinstance(part, str | int) and not isinstance(part, bool) and part != "":
            yield inner, str(part)
        elif isinstance(part, list) and (text := text_of(part)):
            yield inner, text
        else:
            yield from leaves(part, inner, depth + 1)


def by_names(group: Sequence[Any]) -> tuple[Layout | None, str]:
    """Return the layout that the names of values of one shape suggest, if they suggest one, and its doubt."""
    if table := _columns_of_table(group):
        return table, ""
    expression, doubt = proposed(group)
    return (Layout(compiled(expression)) if expression else None), doubt


def _columns_of_table(group: Sequence[Any]) -> Layout | None:
    """Return the layout of an object that has the columns of a table, as pandas writes it."""
    fields = {names.key_of(name): name for name in reversed(group[0])} if isinstance(group[0], dict) else {}
    question, answer = (names.first_of(choice, fields) for choice in (names.QUESTIONS, names.ANSWERS))
    columns = [part for name in (question, answer) if isinstance(part := group[0].get(name), list)] if fields else []
    are_phrasings = names.key_of(question) in names.SEVERAL and names.key_of(question) != "question"
    if len(group) > 1 or len(columns) < 2 or are_phrasings or not 1 < len(columns[0]) == len(columns[1]):
        return None
    if any(isinstance(cell, list | dict) for column in columns for cell in column):
        return None
    return _of_fields(question, answer, group)

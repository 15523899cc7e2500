"""Where in a document values stand, and by which layout they are read: a declared one, or what names or values suggest.

What names alone cannot tell is a doubt: the first pairs are shown, with the flag that reads them so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.doubts import doubt_of, has_no_texts
from chatbot.corpus.reading.layouts import UNDECLARED, Layout, Suggestion, by_names, declared
from chatbot.corpus.reading.mapping import PAIRS, compiled, flag, quoted, written
from chatbot.corpus.reading.objects import ANY, ITEM, Place
from chatbot.corpus.reading.sources import PART_WORDS

_ID = re.compile(r"(?=\S*\d)[\w.:/#-]+", re.ASCII)  # a name of a field that is the id of its value
MAX_DEPTH = 8  # of lists and objects around the values
Propose = Callable[[Sequence[Any]], Suggestion | None]


class Found(NamedTuple):
    """How values are read."""

    place: Place
    layout: Layout
    doubt: str = ""  # why it may be wrong, and the flag that settles it
    shape: object = None  # of the values; None for any
    unused: tuple[str, ...] = ()  # fields with text beside the question and the answer

    def in_doubt(self, doubt: str) -> "Found":
        """Return this with a doubt and the flag that settles it, unless it has one or is declared."""
        if not doubt or self.doubt or self.layout.name != UNDECLARED:
            return self
        settled = flag(_from_document(self.place, self.layout.map.expression))
        return self._replace(doubt=f"{doubt}; if the pairs above are right, give {settled}")


def find(values: Sequence[Any], place: Place = (), propose: Propose | None = None) -> list[Found]:
    """Return the layouts of these values, or of those in them; one for each shape of value that has one.

    propose: from values of one type to a layout; without, declared layouts and known names are looked for.
    """
    found: dict[Found, None] = {}
    if len(place) > MAX_DEPTH:
        return []
    shapes: dict[object, list[Any]] = {}
    for value in values:
        shapes.setdefault(type(value) if propose else shape_of(value), []).append(value)
    known = 0  # values
    for group in shapes.values():
        founds = _of_group(group, place, propose)
        known += len(group) if founds else 0
        found |= dict.fromkeys(founds)
    if 2 * known < len(values):
        found = dict.fromkeys(each.in_doubt("most values have no known names") for each in found)
    if not found and not place and not propose and are_entries(values):
        doubt = (
            "the keys may be questions or the names of fields: give --columns 1 2 to learn each key as a question and "
            "its value as the answer"
        )
        return [Found(place, ENTRIES["1", "2"], doubt, shape_of(values[0]))]
    return [*found]


def shape_of(value: Any) -> object:
    """Return what decides the layout of a value: the names of its fields, or the types of its items."""
    if isinstance(value, dict):
        return tuple(value)
    return frozenset(map(type, value)) - {type(None)} if isinstance(value, list) else type(value)


def _of_group(group: Sequence[Any], place: Place, propose: Propose | None) -> list[Found]:
    """Return the layouts of values of one shape, or of those in them."""
    shape = None if propose else shape_of(group[0])
    if not propose and (layouts := declared(group)):
        named = " or ".join(layout.name for layout in layouts)
        settled = flag(_from_document(place, layouts[0].map.expression))
        return [Found(place, layouts[0], f"it may be of {named}; give {settled}" if layouts[1:] else "", shape)]
    if suggestion := propose(group) if propose else _of_frame(group) or by_names(group):
        is_record = not propose and suggestion.layout.map.kind is PAIRS and not suggestion.layout.unfold
        beside = [name for name, part in group[0].items() if isinstance(part, str)] if is_record else []
        unused = tuple(name for name in beside if name not in suggestion.fields)
        found = Found(place, suggestion.layout, "", shape, unused)
        return [found.in_doubt(suggestion.doubt or _doubt_of_list(group, place))]
    if isinstance(group[0], list):
        return find([item for value in group for item in value], (*place, ITEM), propose)
    return _of_fields(group, place, propose) if isinstance(group[0], dict) else []


def _of_fields(group: Sequence[Mapping[str, Any]], place: Place, propose: Propose | None) -> list[Found]:
    """Return the layouts of what stands in the fields of objects."""
    are_ids = all(map(_ID.fullmatch, group[0]))
    inside: dict[str, list[Found]] = {}
    has_texts = False  # whether a list is passed over, such as ChatterBot's categories
    for name in group[0]:
        parts = [value[name] for value in group if name in value]
        are_texts = isinstance(parts[0], list) and all(isinstance(text, str) for text in parts[0])
        is_passed = are_texts and not _is_talk(name)
        if (are_ids or not is_passed) and (founds := find(parts, (*place, name), propose)):
            inside[name] = founds
        has_texts = has_texts or is_passed
    if len(inside) == 1 and not are_ids:
        (name,) = inside
        if len(group) > 1 and not _is_place(name):
            return [found.in_doubt(f"{name!r} may hold anything") for found in inside[name]]
        texts = {key: field for key, field in names.keys_of(group[:1]).items() if isinstance(group[0][field], str)}
        beside = names.first_of("questions|answers", texts)
        if has_texts or len({*map(type, group[0].values())}) > 1:
            return [found.in_doubt(beside and f"{beside!r} beside it has a text, too") for found in inside[name]]
    at = len(place)
    places = [found._replace(place=(*place, ANY, *found.place[at + 1 :])) for found in chain(*inside.values())]
    several = [name for name, founds in inside.items() if founds[0].layout.name == UNDECLARED]
    if len(several) < 2 or are_ids or not PART_WORDS.keys().isdisjoint(map(names.key_of, several)):
        return places
    return [each.in_doubt(f"{several[0]!r} has pairs, and so has {several[-1]!r}") for each in places]


def _is_talk(name: str) -> bool:
    """Return whether a list of texts in this field is a conversation, by its very name."""
    return name in names.CLASSES["talks"]


def _is_place(name: str) -> bool:
    """Return whether conversations stand in a field of this name."""
    return names.is_of("talks|conversations", name) or names.key_of(name) in PART_WORDS


def _doubt_of_list(group: Sequence[Any], place: Place) -> str:
    """Return why lists of texts at this place may be no conversations."""
    if not isinstance(group[0], list):
        return ""
    group = [[text or "" for text in value] for value in group]  # null is no text
    unknown = [step for step in place if step not in (ITEM, ANY) and not (_is_place(step) or _ID.fullmatch(step))]
    if unknown:
        return f"lists in {unknown[-1]!r} may be anything"
    if len({len(value) for value in group}) > 1 or len(group) == 1:
        return ""
    if len(group[0]) == 2:
        return doubt_of(group, "text")
    return "these lists may be the rows of a table" if has_no_texts(group) else ""


def _from_document(place: Place, expression: str) -> str:
    """Return the expression of a whole document, or of each item of a list, from that of the values at a place."""
    steps = place[1:] if place[:1] == (ITEM,) else place
    path = "".join("[*]" if step is ITEM else ".*" if step is ANY else f".{quoted(step)}" for step in steps)
    if "[*]" in path:
        expression = expression.replace("[].{", "[*].{", 1)  # keeps the conversations apart
    path = path.removeprefix(".")
    return path or expression if expression == "@" else f"{path}.{expression}".removeprefix(".")


def _items(value: Any) -> list[list[Any]]:
    return [[key, part] for key, part in value.items()] if isinstance(value, dict) else []


_ROWS = compiled("[*].{question: [0], answer: [1]}")
# The layouts of an object whose keys are questions, by the columns of the question and the answer.
ENTRIES = {
    ("1", "2"): Layout(_ROWS, unfold=_items),
    ("2", "1"): Layout(compiled("[*].{question: [1], answer: [0]}"), unfold=_items),
}


def are_entries(group: Sequence[Any]) -> bool:
    """Return whether the keys of a single object may be questions, with an answer or several as the value of each."""
    parts = [*group[0].values()] if len(group) == 1 and isinstance(group[0], dict) else []
    texts = [text for part in parts for text in (part if isinstance(part, list) and part else [part])]
    return len(parts) > 1 and all(isinstance(text, str) for text in texts)


def _of_frame(group: Sequence[Any]) -> Suggestion | None:
    """Return the layout of a table in one object, as pandas writes it: names and rows, or a list for each column."""
    value = group[0]
    if len(group) > 1 or not isinstance(value, dict):
        return None
    columns = value.get("columns")
    if isinstance(columns, list) and isinstance(value.get("data"), list) and all(isinstance(c, str) for c in columns):
        places = {names.key_of(column): f"[{place}]" for place, column in enumerate(columns)}
        question, answer = (names.first_of(side, places) for side in ("questions", "answers"))
        expression = f"data[*].{{question: {question}, answer: {answer}}}"
        layout = Layout(compiled(expression)) if question and answer else None
    else:
        fields = names.keys_of(group)
        question, answer = (names.first_of(side, fields) for side in ("questions", "answers"))
        lists = [part for name in (question, answer) if isinstance(part := value.get(name), list)]
        are_phrasings = names.is_of("several", question) and names.key_of(question) != "question"
        is_frame = len(lists) == 2 and not are_phrasings and 1 < len(lists[0]) == len(lists[1])
        are_cells = is_frame and not any(isinstance(cell, list | dict) for column in lists for cell in column)
        layout = _of_columns(question, answer, group) if are_cells else None
    return Suggestion(layout, "", ()) if layout else None


def _of_columns(question: str, answer: str, group: Sequence[Any]) -> Layout:
    """Return the layout of two fields, or of two lists that are the columns of a table."""
    if all(isinstance(group[0][name], list) for name in (question, answer)):
        return Layout(_ROWS, unfold=lambda value: [*map(list, zip(value[question], value[answer], strict=False))])
    return Layout(compiled(written({"question": question, "answer": answer})))


def by_columns(columns: tuple[str, ...]) -> Propose:
    """Return what proposes the two fields that the user named, by their names or numbers."""

    def propose(group: Sequence[Any]) -> Suggestion | None:
        ordered = [*group[0]] if isinstance(group[0], dict) else []
        if columns in ENTRIES and (are_entries(group) or len(ordered) == 1):
            return Suggestion(ENTRIES[columns], "", ())
        fields = names.keys_of(group[:1])
        if all(map(str.isdecimal, columns)):
            fields = {str(number): name for number, name in enumerate(ordered, start=1)}
        named = [fields[name] for name in map(names.key_of, columns) if name in fields]
        return Suggestion(_of_columns(named[0], named[1], group), "", ()) if len(named) == 2 else None

    return propose

"""Finds conversations and pairs inside JSON and YAML documents, and the layouts with which to read them.

A layout is declared in layouts.yaml, or inferred from field names or values. If it is uncertain, the user is shown the
first pairs and the flag that confirms the layout.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.doubts import CHECKS, KINDS, SEARCHED, find_doubt, guess_fields, has_column_without_text
from chatbot.corpus.reading.layouts import (
    ANY,
    ITEM,
    PAIRS,
    UNDECLARED,
    Layout,
    Place,
    compile_map,
    exists,
    find_declared,
    flag,
    quote_field,
)
from chatbot.corpus.reading.sources import PART_WORDS
from chatbot.corpus.reading.texts import NO, text_of

_ID = re.compile(r"(?=\S*\d)[\w.:/#-]+", re.ASCII)  # Matches keys that are ids, not field names.
MAX_DEPTH = 8  # maximum depth of lists and objects at which a layout is searched


class Suggestion(NamedTuple):
    """A layout inferred from field names or values."""

    layout: Layout
    doubt: str  # why the layout may be wrong; "" if it is certain
    fields: tuple[str, ...]  # fields that are read


Propose = Callable[[Sequence[Any]], Suggestion | None]


class PlacedLayout(NamedTuple):
    """A layout, and the path of the values in a document to which it applies."""

    place: Place
    layout: Layout
    doubt: str = ""  # why the layout may be wrong, and the flag that confirms it
    shape: object = None  # shape of the values to which the layout applies (see `shape_of`); None for all values
    unused: tuple[str, ...] = ()  # fields that contain text but are not read

    def with_doubt(self, doubt: str) -> "PlacedLayout":
        """Add a doubt, with the flag that confirms the layout. Existing doubts and declared layouts are unchanged."""
        if not doubt or self.doubt or self.layout.name != UNDECLARED:
            return self
        remedy = flag(_document_expression(self.place, self.layout.map.expression))
        return self._replace(doubt=f"{doubt}; if the pairs above are right, give {remedy}")


def find(values: Sequence[Any], place: Place = (), propose: Propose | None = None) -> list[PlacedLayout]:
    """Find the layouts of values. If a value has no layout, the values nested inside it are searched.

    Args:
        values: The values.
        place: Their path in the document.
        propose: Function that suggests a layout for values of one type. By default, declared layouts and known field
            names are tried.
    """
    found: dict[PlacedLayout, None] = {}
    if len(place) > MAX_DEPTH:
        return []
    shapes: dict[object, list[Any]] = {}
    for value in values:
        shapes.setdefault(type(value) if propose else shape_of(value), []).append(value)
    known = 0  # number of values with a layout
    for group in shapes.values():
        placed = _find_in_group(group, place, propose)
        known += len(group) if placed else 0
        found |= dict.fromkeys(placed)
    if 2 * known < len(values):
        found = dict.fromkeys(each.with_doubt("most values have only unknown field names") for each in found)
    if not found and not place and not propose and are_entries(values):
        doubt = (
            "the keys may be questions or the names of fields: give --columns 1 2 to learn each key as a question and "
            "its value as the answer"
        )
        return [PlacedLayout(place, ENTRIES["1", "2"], doubt, shape_of(values[0]))]
    return [*found]


def shape_of(value: Any) -> object:
    """Return the field names of an object, the item types of a list, or the type of another value.

    All values in a file with the same shape are read with the same layout.
    """
    if isinstance(value, dict):
        return tuple(value)
    return frozenset(map(type, value)) - {type(None)} if isinstance(value, list) else type(value)


def _find_in_group(group: Sequence[Any], place: Place, propose: Propose | None) -> list[PlacedLayout]:
    """Find the layouts of values that have the same shape, or else of the values nested inside them."""
    shape = None if propose else shape_of(group[0])
    if not propose and (layouts := find_declared(group)):
        candidates = " or ".join(layout.name for layout in layouts)
        remedy = flag(_document_expression(place, layouts[0].map.expression))
        doubt = f"the layout may be {candidates}; give {remedy}" if layouts[1:] else ""
        return [PlacedLayout(place, layouts[0], doubt, shape)]
    if suggestion := propose(group) if propose else _suggest_frame(group) or suggest_by_names(group):
        is_record = not propose and suggestion.layout.map.kind is PAIRS and not suggestion.layout.unfold
        texts = [name for name, part in group[0].items() if isinstance(part, str)] if is_record else []
        unused = tuple(name for name in texts if name not in suggestion.fields)
        found = PlacedLayout(place, suggestion.layout, "", shape, unused)
        return [found.with_doubt(suggestion.doubt or _doubt_about_lists(group, place))]
    if isinstance(group[0], list):
        return find([item for value in group for item in value], (*place, ITEM), propose)
    return _find_in_fields(group, place, propose) if isinstance(group[0], dict) else []


def _find_in_fields(group: Sequence[Mapping[str, Any]], place: Place, propose: Propose | None) -> list[PlacedLayout]:
    """Find the layouts of values nested in the fields of objects."""
    are_ids = all(map(_ID.fullmatch, group[0]))
    inside: dict[str, list[PlacedLayout]] = {}
    has_skipped_list = False  # whether a field contains a list of texts that is not a conversation, such as categories
    for name in group[0]:
        parts = [value[name] for value in group if name in value]
        are_texts = isinstance(parts[0], list) and all(isinstance(text, str) for text in parts[0])
        is_skipped = are_texts and name not in names.CLASSES["talks"]
        if (are_ids or not is_skipped) and (placed := find(parts, (*place, name), propose)):
            inside[name] = placed
        has_skipped_list = has_skipped_list or is_skipped
    if len(inside) == 1 and not are_ids:
        (name,) = inside
        if len(group) > 1 and not _names_conversations(name):
            return [found.with_doubt(f"{name!r} may contain anything") for found in inside[name]]
        texts = {key: field for key, field in names.keys_of(group[:1]).items() if isinstance(group[0][field], str)}
        other = names.find_field("questions|answers", texts)
        if has_skipped_list or len({*map(type, group[0].values())}) > 1:
            return [found.with_doubt(other and f"{other!r} also contains text") for found in inside[name]]
    depth = len(place)
    places = [found._replace(place=(*place, ANY, *found.place[depth + 1 :])) for found in chain(*inside.values())]
    several = [name for name, placed in inside.items() if placed[0].layout.name == UNDECLARED]
    if len(several) < 2 or are_ids or not PART_WORDS.keys().isdisjoint(map(names.key_of, several)):
        return places
    return [each.with_doubt(f"{several[0]!r} and {several[-1]!r} both contain pairs") for each in places]


def _names_conversations(name: str) -> bool:
    """Return whether the name of a field suggests that the field contains conversations."""
    return names.is_in_class("talks|conversations", name) or names.key_of(name) in PART_WORDS


def _doubt_about_lists(group: Sequence[Any], place: Place) -> str:
    """Return why values that are lists of texts may not be conversations, or an empty string."""
    if not isinstance(group[0], list):
        return ""
    group = [[text or "" for text in value] for value in group]  # Converts null to "".
    unknown = [
        step for step in place if step not in (ITEM, ANY) and not (_names_conversations(step) or _ID.fullmatch(step))
    ]
    if unknown:
        return f"lists in {unknown[-1]!r} may be anything"
    if len({len(value) for value in group}) > 1 or len(group) == 1:
        return ""
    if len(group[0]) == 2:
        return find_doubt(group, "text")
    return "these lists may be the rows of a table" if has_column_without_text(group) else ""


def _document_expression(place: Place, expression: str) -> str:
    """Convert an expression for the values at a path to an expression for the whole document.

    If the document is a list, the result is an expression for each of its items.
    """
    steps = place[1:] if place[:1] == (ITEM,) else place
    path = "".join("[*]" if step is ITEM else ".*" if step is ANY else f".{quote_field(step)}" for step in steps)
    if "[*]" in path:
        expression = expression.replace("[].{", "[*].{", 1)  # [] would join the messages of all conversations.
    path = path.removeprefix(".")
    return path or expression if expression == "@" else f"{path}.{expression}".removeprefix(".")


_ROWS = compile_map("[*].{question: [0], answer: [1]}")
# Layouts of objects that map questions to answers, or answers to questions, keyed by the --columns that select them.
# With ("1", "2"), the keys of the object are the questions.
ENTRIES = {
    columns: Layout(map_, unfold=lambda value: [*map(list, value.items())])
    for columns, map_ in {("1", "2"): _ROWS, ("2", "1"): compile_map("[*].{question: [1], answer: [0]}")}.items()
}


def are_entries(group: Sequence[Any]) -> bool:
    """Return whether there is a single object that may map questions to answers."""
    parts = [*group[0].values()] if len(group) == 1 and isinstance(group[0], dict) else []
    texts = [text for part in parts for text in (part if isinstance(part, list) and part else [part])]
    return len(parts) > 1 and all(isinstance(text, str) for text in texts)


def _suggest_frame(group: Sequence[Any]) -> Suggestion | None:
    """Suggest a layout for a table that pandas wrote as one object, with rows ("split") or with a list per column."""
    value = group[0]
    if len(group) > 1 or not isinstance(value, dict):
        return None
    columns = value.get("columns", ())
    has_rows = isinstance(columns, list) and isinstance(value.get("data"), list)
    fields = {names.key_of(str(name)): f"[{n}]" for n, name in enumerate(columns)} if has_rows else names.keys_of(group)
    question, answer = (names.find_field(side, fields) for side in ("questions", "answers"))
    if has_rows and question and answer:
        return Suggestion(Layout(compile_map(f"data[*].{{question: {question}, answer: {answer}}}")), "", ())
    lists = [part for name in (question, answer) if isinstance(part := value.get(name), list)]
    are_phrasings = names.is_in_class("several", question) and names.key_of(question) != "question"
    is_frame = len(lists) == 2 and not are_phrasings and 1 < len(lists[0]) == len(lists[1])
    if not is_frame or any(isinstance(cell, list | dict) for column in lists for cell in column):
        return None
    return Suggestion(_column_layout(question, answer, group), "", ())


def _column_layout(question: str, answer: str, group: Sequence[Any]) -> Layout:
    """Return the layout for a question field and an answer field. If both contain lists, their items are paired."""
    if all(isinstance(group[0][name], list) for name in (question, answer)):
        return Layout(_ROWS, unfold=lambda value: [*map(list, zip(value[question], value[answer], strict=False))])
    return Layout(compile_map(f"{{question: {quote_field(question)}, answer: {quote_field(answer)}}}"))


def suggest_by_columns(columns: tuple[str, ...]) -> Propose:
    """Return a `propose` function for `find` that suggests the fields specified with --columns."""

    def propose(group: Sequence[Any]) -> Suggestion | None:
        ordered = [*group[0]] if isinstance(group[0], dict) else []
        if columns in ENTRIES and (are_entries(group) or len(ordered) == 1):
            return Suggestion(ENTRIES[columns], "", ())
        fields = {names.key_of(name): name for name in reversed(ordered)}
        if all(map(str.isdecimal, columns)):
            fields = {str(number): name for number, name in enumerate(ordered, start=1)}
        sides = [fields[name] for name in map(names.key_of, columns) if name in fields]
        return Suggestion(_column_layout(sides[0], sides[1], group), "", ()) if len(sides) == 2 else None

    return propose


def suggest_by_names(values: Sequence[Any], unit: str = "field") -> Suggestion | None:
    """Infer the layout of values from their field names. All values have the same fields.

    Args:
        values: The values.
        unit: Word for a field in messages, e.g. "field" or "column".

    Returns:
        The first layout under `named` in layouts.yaml that fits, or None.
    """
    keys = names.keys_of(values)
    for row in _named_rows():
        for field, parts in _messages_in(values, names.find_fields(row.of, keys)) if row.of else (("", values),):
            bound = _bind(parts, names.keys_of(parts) if field else keys, row.signature)
            if bound is None:
                continue
            asks = row.asks
            for name, known in bound.items():
                asks = asks.replace(f"<{name}>", repr(known))
            doubt = CHECKS[row.check](parts, bound, field or unit) if row.check else asks
            expression = (field and f"{quote_field(field)}[].") + _fill_map(row.map, bound, parts)
            return Suggestion(Layout(compile_map(expression)), doubt, (*bound.values(),))
    return None


class _Named(NamedTuple):
    """A parsed row of the `named` section of layouts.yaml."""

    signature: tuple[tuple[str, str, str], ...]  # (mark, class, kind) for a field, or ("#", path, "")
    map: str
    of: str
    asks: str
    check: str


_CLASS = re.compile(r"<([^<>]+)>")
_BINDS = re.compile(r"([@?!]?)(?:<([^<>]+)>)?(?::(\w+))?")


@functools.cache
def _named_rows() -> list[_Named]:
    """Parse the `named` section of layouts.yaml. Classes that occur in a map but not in its signature are optional."""
    rows = []
    for row in names.load_table("layouts.yaml")["named"]:
        signature = []
        for path in row["signature"]:
            binds = _BINDS.fullmatch(path)
            signature.append(("#", path, "") if binds is None else (binds[1], binds[2] or "", binds[3] or ""))
        known = {name for _, name, _ in signature}
        signature += [("?", name, "") for name in _CLASS.findall(row["map"]) if name not in known]
        rows.append(_Named(tuple(signature), row["map"], *(row.get(key, "") for key in ("of", "asks", "check"))))
    return rows


def _messages_in(values: Sequence[Any], fields: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each field that contains lists of objects, and the objects in all of its lists."""
    for field in fields:
        lists = [value[field] for value in values if isinstance(value.get(field), list)]
        items = [item for each in lists for item in each]
        if items and all(isinstance(item, dict) for item in items):
            yield field, items


def _bind(
    values: Sequence[Any], keys: Mapping[str, str], signature: Sequence[tuple[str, str, str]]
) -> dict[str, str] | None:
    """Match a signature to the fields of values.

    Returns:
        The field for each class of the signature, or None if the signature does not fit.
    """
    bound: dict[str, str] = {}
    for mark, name, kind in signature:
        if mark == "#":
            if not all(exists(value, name) for value in values):
                return None
        elif mark == "@":
            if not KINDS[kind](values, ""):
                return None
        else:
            field = _bind_field(name, kind, keys, values, bound)
            if (field == "") != (mark == "!") and mark != "?":
                return None
            if field:
                bound[name] = field
    return bound


def _bind_field(name: str, kind: str, keys: Mapping[str, str], values: Sequence[Any], bound: Mapping[str, str]) -> str:
    """Return a field in class `name` whose values are of a kind, or "". Fields in `bound` are already used."""
    fields = [field for field in names.find_fields(name, keys) if field and field not in bound.values()]
    for field in fields if kind in SEARCHED else fields[:1]:
        if not kind or KINDS[kind]([value.get(field) for value in values], field):
            return field
    return ""


def _fill_map(expression: str, bound: Mapping[str, str], values: Sequence[Mapping[str, Any]]) -> str:
    """Replace the class names in a map with field names. Classes without a field are removed."""

    def remove_unbound(mark: re.Match[str]) -> str:
        return mark[0] if mark[1] in bound else ""

    def replace_class(mark: re.Match[str]) -> str:
        field = bound[mark[1]]
        return _role_expression(field, values) if mark[1] == "flags" else quote_field(field)

    expression = re.sub(r"(?:\w+: )?<([^<>]+)>(?:, )?", remove_unbound, expression)
    return _CLASS.sub(replace_class, re.sub(r", (?=[}\]])", "", expression))


def _role_expression(field: str, values: Sequence[Mapping[str, Any]]) -> str:
    """Return a JMESPath expression that converts a flag field such as is_user to a role."""
    sides = (
        ("user", "assistant")
        if names.key_of(field).removeprefix("is").removeprefix("from") in names.ASKING
        else ("assistant", "user")
    )
    seen = {str(value.get(field)).casefold(): value.get(field) for value in values}
    tests = (
        (f"{quote_field(field)} == `{json.dumps(value, default=str)}`", text in NO) for text, value in seen.items()
    )
    return " || ".join(f"{test} && '{sides[is_other]}'" for test, is_other in tests)


def suggest_by_values(group: Sequence[Any]) -> Suggestion | None:
    """Infer the layout of objects with unknown field names from their values, or return None."""
    fields: dict[str, list[str]] = {}
    for value in group:
        for path, text in leaves(value):
            fields.setdefault(path, []).append(text)
    found = guess_fields(fields)
    if "speaker" in found:
        chats = [path for path in fields if names.is_in_class("chats", path.rpartition(".")[2].strip('"'))]
        found |= {"chat": chats[0]} if chats else {}
    pairs = ", ".join(f"{name}: {path}" for name, path in found.items() if path)
    return Suggestion(Layout(compile_map(f"{{{pairs}}}")), "the field names are unknown", ()) if found else None


def leaves(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each string, number and list of texts in an object, including nested ones."""
    for name, part in value.items() if isinstance(value, dict) and depth < MAX_DEPTH else ():
        inner = f"{path}.{quote_field(name)}".removeprefix(".")
        if isinstance(part, str | int) and not isinstance(part, bool) and part != "":
            yield inner, str(part)
        elif isinstance(part, list) and (text := text_of(part)):
            yield inner, text
        else:
            yield from leaves(part, inner, depth + 1)

"""Layouts: which of those in layouts.yaml values have, and what the names of their fields, or the values, suggest."""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from chatbot.corpus.reading import names
from chatbot.corpus.reading.doubts import CHECKS, suggested
from chatbot.corpus.reading.mapping import Map, compiled, quoted
from chatbot.corpus.reading.marked_text import labelled, said_in, separated
from chatbot.corpus.reading.texts import FUNCTIONS, NO, YES, alternatives, said_by, text_of

NO_PAIR = "records without question and answer"
UNDECLARED = "--map"  # the name of what the user gives, or names suggest
MAX_DEPTH = 8  # of objects in which fields are looked for
HEAD = 50  # items of a list in which the path of a signature is looked for


class Layout(NamedTuple):
    """How the values of a file are read: as declared, or as the user says."""

    map: Map
    name: str = UNDECLARED
    texts: frozenset[str] = frozenset()  # the kinds of messages that are text; empty if all are, or none has a kind
    notices: frozenset[str] = frozenset()  # the kinds that the application wrote
    finish: Callable[[str], str] = str  # from a text as the file has it to what a person wrote
    unfold: Callable[[Any], Any] | None = None  # from a value to one that the map reads
    rejected: str = NO_PAIR  # why the map gives nothing for a value


@functools.cache
def table() -> list[tuple[list[str], Layout]]:
    """Return (signature, layout) of each declared row of layouts.yaml."""
    return [(row["signature"], _layout(row)) for row in names.table_of("layouts.yaml")["declared"]]


def _layout(row: dict[str, Any]) -> Layout:
    return Layout(
        compiled(row["map"], is_declared=True),
        row["name"],
        frozenset(row.get("texts", ())),
        frozenset(row.get("notices", ())),
        FUNCTIONS[row["finish"]] if "finish" in row else str,
        FUNCTIONS[row["unfold"]] if "unfold" in row else None,
        row.get("rejected", NO_PAIR),
    )


def declared(values: Sequence[object]) -> list[Layout]:
    """Return the declared layouts whose signature is true of each of these values."""
    return [
        layout
        for signature, layout in table()
        if values and all(exists(value, path) for path in signature for value in values)
    ]


_TYPES: dict[str, Callable[[Any], bool]] = {
    "": lambda value: True,
    "text": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float),
    "label": lambda value: isinstance(value, int) or (isinstance(value, str) and value.isdecimal()),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def exists(value: object, path: str) -> bool:
    """Return whether a path exists in a value: names with dots between, [] for an item of a list, * for any field.

    Of several paths with | between, one must exist.
    """
    if "|" in path:
        return any(exists(value, each) for each in path.split("|"))
    if path.startswith("#"):
        return isinstance(value, dict) and len(value) == int(path[1:])
    if path.startswith("!"):
        return not exists(value, path[1:])
    path, _, kind = path.partition(":")
    steps = path.replace("[", ".[").removeprefix(".").split(".")
    return _exists(value, steps, _TYPES[kind])


def _exists(value: Any, steps: Sequence[str], is_kind: Callable[[Any], bool]) -> bool:
    if not steps:
        return is_kind(value)
    step, *rest = steps
    if step == "[]":
        return isinstance(value, list) and (not value or any(_exists(item, rest, is_kind) for item in value[:HEAD]))
    if step.startswith("["):
        place = int(step[1:-1])
        return isinstance(value, list) and len(value) > place and _exists(value[place], rest, is_kind)
    if not isinstance(value, dict):
        return False
    if step == "*":
        return any(_exists(part, rest, is_kind) for part in [*value.values()][:HEAD])
    return step in value and _exists(value[step], rest, is_kind)


class Suggestion(NamedTuple):
    """What names, or values, suggest."""

    layout: Layout
    doubt: str  # why it may be wrong
    fields: tuple[str, ...]  # that the map reads


def by_names(values: Sequence[Any], unit: str = "field") -> Suggestion | None:
    """Return what the names in values of one shape suggest, by the first row that fits; None without one.

    unit: what a field is called.
    """
    keys = _keys_of(values)
    for row in _named():
        for field, parts in _messages_in(values, names.all_of(row.of, keys)) if row.of else (("", values),):
            bound = _bound(parts, _keys_of(parts) if field else keys, row.signature)
            if bound is None:
                continue
            asks = row.asks
            for name, known in bound.items():
                asks = asks.replace(f"<{name}>", repr(known))
            doubt = CHECKS[row.check](parts, bound, field or unit) if row.check else asks
            expression = (field and f"{quoted(field)}[].") + _filled(row.map, bound, parts)
            return Suggestion(Layout(compiled(expression)), doubt, (*bound.values(),))
    return None


class _Named(NamedTuple):
    """A row of `named`."""

    signature: tuple[tuple[str, str, str], ...]  # (mark, class, kind), or ("#", path of a declared signature, "")
    map: str
    of: str
    asks: str
    check: str


_CLASS = re.compile(r"<([^<>]+)>")
_BINDS = re.compile(r"([@?!]?)(?:<([^<>]+)>)?(?::(\w+))?")


@functools.cache
def _named() -> list[_Named]:
    """Return the rows of `named`; what only the map has need not be there."""
    rows = []
    for row in names.table_of("layouts.yaml")["named"]:
        signature = []
        for path in row["signature"]:
            binds = _BINDS.fullmatch(path)
            signature.append(("#", path, "") if binds is None else (binds[1], binds[2] or "", binds[3] or ""))
        known = {name for _, name, _ in signature}
        signature += [("?", name, "") for name in _CLASS.findall(row["map"]) if name not in known]
        rows.append(_Named(tuple(signature), row["map"], *(row.get(key, "") for key in ("of", "asks", "check"))))
    return rows


def _keys_of(values: Sequence[Any]) -> dict[str, str]:
    keys = names.keys_of(values)
    if "b" in keys:
        keys.pop("a", None)  # a choice, beside b
    return keys


def _messages_in(values: Sequence[Any], fields: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (field, its items) of each of these fields that has lists of objects."""
    for field in fields:
        lists = [value[field] for value in values if isinstance(value.get(field), list)]
        items = [item for each in lists for item in each]
        if items and all(isinstance(item, dict) for item in items):
            yield field, items


def _bound(
    values: Sequence[Any], keys: Mapping[str, str], signature: Sequence[tuple[str, str, str]]
) -> dict[str, str] | None:
    """Return from the classes in a signature to the fields for which they stand; None if it is not true."""
    bound: dict[str, str] = {}
    for mark, name, kind in signature:
        if mark == "#":
            if not all(exists(value, name) for value in values):
                return None
        elif mark == "@":
            if not _KINDS[kind](values, ""):
                return None
        else:
            field = _field_of(name, kind, keys, values, bound)
            if (field == "") != (mark == "!") and mark != "?":
                return None
            if field:
                bound[name] = field
    return bound


def _field_of(name: str, kind: str, keys: Mapping[str, str], values: Sequence[Any], bound: Mapping[str, str]) -> str:
    """Return the field that stands for a class, "" without one. bound: fields that stand for others."""
    fields = [field for field in names.all_of(name, keys) if field and field not in bound.values()]
    for field in fields if kind in _SEARCHED else fields[:1]:
        if not kind or _KINDS[kind]([value.get(field) for value in values], field):
            return field
    return ""


def _filled(expression: str, bound: Mapping[str, str], values: Sequence[Mapping[str, Any]]) -> str:
    """Return the map of a row with the fields in place of their classes, without what has none."""

    def kept(mark: re.Match[str]) -> str:
        return mark[0] if mark[1] in bound else ""

    def field_of(mark: re.Match[str]) -> str:
        field = bound[mark[1]]
        return _role_of_flag(field, values) if mark[1] == "flags" else quoted(field)

    expression = re.sub(r"(?:\w+: )?<([^<>]+)>(?:, )?", kept, expression)
    return _CLASS.sub(field_of, re.sub(r", (?=[}\]])", "", expression))


def _role_of_flag(field: str, values: Sequence[Mapping[str, Any]]) -> str:
    """Return the expression of the role that a field such as is_user tells."""
    sides = ("user", "assistant") if _role_in(field) in names.ASKING else ("assistant", "user")
    seen = {str(value.get(field)).casefold(): value.get(field) for value in values}
    tests = ((f"{quoted(field)} == `{json.dumps(value, default=str)}`", text in NO) for text, value in seen.items())
    return " || ".join(f"{test} && '{sides[is_other]}'" for test, is_other in tests)


def _role_in(field: str) -> str:
    return names.key_of(field).removeprefix("is").removeprefix("from")


def _are_flags(parts: Sequence[Any], field: str) -> bool:
    return {str(part).casefold() for part in parts} <= YES | NO


def _are_asked(parts: Sequence[Any], field: str) -> bool:
    """Return whether these are questions: texts, or lists of phrasings where they can be."""
    are_lists = isinstance(parts[0], list)
    return any(isinstance(part, str | list) for part in parts) and (not are_lists or names.is_of("several", field))


def _are_answers(parts: Sequence[Any], field: str) -> bool:
    are_labels = any(isinstance(part, int | float) for part in parts) and names.key_of(field) in ("target", "tgt")
    return any(map(alternatives, parts)) and not are_labels


def _are_lists(parts: Sequence[Any], field: str) -> bool:
    return all(isinstance(part, list | None) for part in parts)


def _are_passages(parts: Sequence[Any], field: str) -> bool:
    return isinstance(parts[0], list) and all(isinstance(part, str) for part in parts[0]) and any(parts[0])


def _are_roles(parts: Sequence[Any], field: str) -> bool:
    """Return whether these are roles of both sides, or of those that answer; of some, nothing may be known."""
    roles = {*map(names.key_of, said_by(parts))}
    known = roles & names.ROLES
    are_sides = known & names.ANSWERING and (known & names.ASKING or known <= names.ANSWERING)
    return bool(known and (known != roles or are_sides))


def _are_speakers(parts: Sequence[Any], field: str) -> bool:
    people = said_by(parts)
    return any(people) and names.ROLES.isdisjoint(map(names.key_of, people))


def _are_utterances(parts: Sequence[Any], field: str) -> bool:
    turns = [turn for part in parts if isinstance(part, list) for turn in part]
    return bool(turns) and all(isinstance(turn, str) for turn in turns)


def _are_twos(parts: Sequence[Any], field: str) -> bool:
    turns = [turn for part in parts if isinstance(part, list) for turn in part]
    return bool(turns) and all(isinstance(turn, list) and [*map(type, turn)] == [str, str] for turn in turns)


def _are_turns(parts: Sequence[Any], field: str) -> bool:
    are_lists = isinstance(parts[0], list) and len(parts[0]) > 1
    return are_lists and all(isinstance(text, str | None) for part in parts for text in part)


def _are_marked(parts: Sequence[Any], field: str) -> bool:
    """Return whether these texts are conversations, with marks of templates or with names."""
    if not all(isinstance(part, str) for part in parts):
        return False
    if all(said_in(part) or separated(part) for part in parts):
        return True
    return names.is_of("talks", field) and all(labelled(part.strip().splitlines(), sure=True) for part in parts)


_SEARCHED = ("flag", "marked", "texts", "twos", "utterances")  # in all fields of a class; else the first decides
# What the values of a field, or the values themselves, must be.
_KINDS: dict[str, Callable[[Sequence[Any], str], bool]] = {
    "answers": _are_answers,
    "asks": _are_asked,
    "flag": _are_flags,
    "lists": _are_lists,
    "marked": _are_marked,
    "passages": _are_passages,
    "roles": _are_roles,
    "said": lambda parts, field: any(text_of(part).strip() for part in parts),
    "speakers": _are_speakers,
    "texts": lambda parts, field: all(isinstance(part, str | None) for part in parts),
    "turns": _are_turns,
    "twos": _are_twos,
    "utterances": _are_utterances,
}


def by_values(group: Sequence[Any]) -> Suggestion | None:
    """Return the layout that the values of objects suggest, if they suggest one, and its doubt."""
    fields: dict[str, list[str]] = {}
    for value in group:
        for path, text in leaves(value):
            fields.setdefault(path, []).append(text)
    found = suggested(fields)
    if "speaker" in found:
        chats = [path for path in fields if names.is_of("chats", path.rpartition(".")[2].strip('"'))]
        found |= {"chat": chats[0]} if chats else {}
    given = ", ".join(f"{name}: {path}" for name, path in found.items() if path)
    return Suggestion(Layout(compiled(f"{{{given}}}")), "these fields are not known", ()) if found else None


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

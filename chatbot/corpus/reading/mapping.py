"""Maps: JMESPath expressions from a value of JSON, or a row of a table, to questions and answers, turns or messages.

    {question: q, answer: a}                                       a record, or a row of a table
    messages[].{speaker: sender.name, text: content, time: date}   the messages of a chat or of a conversation
    {id: comment_id, parent: reply_to, text: content}              messages that name the one that they answer
    dialog[].text                                                  utterances, each of which answers the one before

The user gives one with --map, and a declared layout has one. It applies to each line of JSON Lines, each row, each item
of a document that is a list, and to a document that is one object.
"""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.parser import ParsedResult

from chatbot.display import one_line
from chatbot.errors import UserError

# The names that a map gives, of which the first ones of each kind are needed.
PAIRS = ("question", "answer", "input", "history")
MESSAGES = ("text", "speaker", "role", "mine", "time", "names", "chat")
REPLIES = ("id", "parent", "text", "role")
TURNS = ("turns",)
KIND = "kind"  # of a message, which a declared layout can say the meaning of


class Map(NamedTuple):
    """A compiled expression."""

    expression: str
    kind: tuple[str, ...]  # PAIRS, MESSAGES, REPLIES or TURNS
    names: frozenset[str]  # that it gives; empty if it gives utterances
    path: tuple[str, ...] | None  # of the list whose items it maps one by one; None if it maps a value as a whole
    is_list: bool  # whether it gives a list: the messages of one conversation
    of_value: Callable[[Any], Any]  # the result for a value
    of_item: Callable[[Any], Any]  # the result for an item of the list at `path`
    fields: tuple[tuple[str, str], ...]  # (name, field) if it gives fields of an object and nothing else

    def results(self, value: object, is_item: bool = False) -> list[Any]:
        """Return what the expression selects of a value, or of an item of the list at `path`.

        None ends each list within the list.
        """
        is_item = is_item or (self.path == () and isinstance(value, dict))  # of a list of JSON, written as a line each
        try:
            found = (self.of_item if is_item else self.of_value)(value)
        except JMESPathError:  # a function that does not take this type
            return []
        if isinstance(found, dict):
            return [found]
        parts = found if isinstance(found, list) and self.is_list else [found]
        if self.kind is TURNS:
            return [part for part in parts if part is not None]
        if any(isinstance(part, list) for part in parts):
            parts = [each for part in parts if isinstance(part, list) for each in (*part, None)]
        return [part for part in parts if part is None or isinstance(part, dict)] if parts != [None] else []


@functools.lru_cache(maxsize=256)
def compiled(expression: str, is_declared: bool = False) -> Map:
    """Return the map of an expression. Raises UserError for one that is no JMESPath or gives nothing to learn."""
    try:
        tree = dict(jmespath.compile(expression).parsed)
    except (JMESPathError, ValueError) as error:
        raise UserError(
            f"--map {one_line(expression, 60)}: not JMESPath ({one_line(str(error).splitlines()[0], 50)}); "
            "write one such as '{question: q, answer: a}'"
        ) from None
    names = frozenset(_names(tree))
    kind = _kind(expression, names - {KIND} if is_declared else names)
    tree = _joined(tree)
    path, rest, is_list = _divided(tree)
    fields = tuple((name, steps[0]) for name, steps in _paths(tree) or () if len(steps) == 1)
    return Map(expression, kind, names, path, is_list, *_search(tree, path, rest), fields)


def _kind(expression: str, names: frozenset[str]) -> tuple[str, ...]:
    known = {*PAIRS, *MESSAGES, *REPLIES, *TURNS}
    problem = ""
    if unknown := sorted(names - known):
        problem = f"{one_line(unknown[0], 20)!r} is no name that it may give; those are {', '.join(sorted(known))}"
    elif not names or "turns" in names:
        return TURNS
    elif "answer" in names and names & {"question", "history"}:
        return PAIRS
    elif {"id", "parent", "text"} <= names:
        return REPLIES
    elif "text" in names and names & {"speaker", "role", "mine"}:
        return MESSAGES
    elif names == {"text"}:
        problem = "it gives texts without speakers; add speaker: FIELD, or end in [].FIELD if each answers the last"
    else:
        problem = "it needs question and answer, or speaker and text, or id, parent and text"
    raise UserError(f"--map {one_line(expression, 40)}: {problem}")


def _names(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the outermost objects that an expression makes."""
    if tree["type"] == "multi_select_dict":
        yield from (pair["value"] for pair in tree["children"])
    else:
        for child in tree["children"]:
            yield from _names(child) if isinstance(child, dict) else ()  # a slice has numbers


def _joined(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of (a.b)[*].c for that of a.(b[*].c), which gives the same."""
    *fields, last = tree["children"] or [tree]
    if tree["type"] == "subexpression" and "projection" in last["type"]:
        inner, *rest = last["children"]
        return {**last, "children": [_joined({"type": "subexpression", "children": [*fields, inner]}), *rest]}
    return tree


_OF_LISTS = ("projection", "filter_projection", "flatten")


def _divided(tree: dict[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, Any], bool]:
    """Return the path of the list that an expression walks, the expression of a list of its items, and if it gives one.

    The path is None, and the expression the same, for a walk that does not begin with a path of fields.
    """
    is_list = tree["type"] in (*_OF_LISTS, "value_projection")

    def replaced(node: dict[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
        if (path := _path(node)) is not None:
            return path, _IDENTITY
        if node["type"] not in _OF_LISTS:
            return None, node
        first, *others = node["children"]
        path, inner = replaced(first)
        return path, {**node, "children": [inner, *others]}

    path, rest = replaced(tree) if is_list else (None, tree)
    return path, rest if path is not None else tree, is_list


def _path(node: dict[str, Any]) -> tuple[str, ...] | None:
    if node["type"] == "identity":
        return ()
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] == "subexpression":
        steps = [_path(child) for child in node["children"]]
        return tuple(name for step in steps for name in step or ()) if all(steps) else None
    return None


Getter = Callable[[Any], Any]


def _search(tree: dict[str, Any], path: tuple[str, ...] | None, rest: dict[str, Any]) -> tuple[Getter, Getter]:
    """Return the functions of a value, and of an item of the list at this path: Python's own for fields of objects."""
    if tree["type"] in ("current", "identity"):
        return lambda value: value, lambda item: item
    each = rest["children"][-1] if path is not None and rest["type"] == "projection" else tree
    fields = _paths(each)
    if fields is None or (path is not None and rest["children"][0] not in _WALKS):
        search = _parsed(tree).search
        search_items = _parsed(rest).search
        return search, lambda item: search_items([item])
    get = functools.partial(_fields, fields)
    if path is None:
        return get, get
    flattens = rest["children"][0]["type"] == "flatten"

    def of_items(items: list[Any]) -> list[Any]:
        if flattens:
            items = [part for item in items for part in (item if isinstance(item, list) else (item,))]
        return [found for item in items if (found := get(item))]

    def of_value(value: Any) -> list[Any] | None:
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return of_items(value) if isinstance(value, list) else None

    return of_value, lambda item: of_items([item])


def _parsed(tree: Any) -> ParsedResult:
    return ParsedResult("", tree)


_IDENTITY: dict[str, Any] = {"type": "identity", "children": []}
_WALKS = (_IDENTITY, {"type": "flatten", "children": [_IDENTITY]})  # of each item of a list


def _paths(tree: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]] | None:
    """Return (name, path) for an expression that gives names to fields; None for any other."""
    if tree["type"] != "multi_select_dict":
        return None
    pairs = [(pair["value"], _path(pair["children"][0])) for pair in tree["children"]]
    return [(name, path) for name, path in pairs if path] if all(path for _, path in pairs) else None


def _fields(fields: list[tuple[str, tuple[str, ...]]], value: Any) -> dict[str, Any] | None:
    """Return the values of these fields, each at a path of names, as `{name: path, ...}` does."""
    if not isinstance(value, dict):
        return None
    found = {}
    for name, path in fields:
        part: Any = value
        for step in path:
            part = part.get(step) if isinstance(part, dict) else None
        found[name] = part
    return found


def written(names: dict[str, str]) -> str:
    """Return the expression that gives fields these names. names: from a name that a map gives to a field."""
    given = ", ".join(f"{name}: {quoted(field)}" for name, field in names.items() if field)
    return f"{{{given}}}"


def quoted(field: str) -> str:
    """Return the name of a field as JMESPath wants it."""
    plain = field.isascii() and field.isidentifier()
    return field if plain else json.dumps(field, ensure_ascii=False)


def flag(expression: str) -> str:
    """Return the flag for a shell."""
    return "--map '" + expression.replace("'", "'\\''") + "'"

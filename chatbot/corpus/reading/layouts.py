"""Layouts, which describe how to read pairs or conversations from JSON values and table rows.

A layout consists of a signature, which identifies the data, and a map. A map is a JMESPath expression that converts a
value to pairs, turns or messages:

    {question: q, answer: a}                                       a record, or a row of a table
    messages[].{speaker: sender.name, text: content, time: date}   the messages of a chat or a conversation
    {id: comment_id, parent: reply_to, text: content}              messages with a reference to the message they answer
    dialog[].text                                                  utterances, each of which answers the previous one

Layouts of known programs and corpora are declared in layouts.yaml. For other data, users can specify a map with --map.

A map is applied to each line of a JSON Lines file, each row of a table, and each JSON document. If a document is a
list, the map is applied to each item.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.parser import ParsedResult

from chatbot.corpus.reading import names
from chatbot.corpus.reading.texts import FUNCTIONS, text_of
from chatbot.display import one_line
from chatbot.errors import UserError

# The output keys allowed in each kind of map.
PAIRS = ("question", "answer", "input", "history")
MESSAGES = ("text", "speaker", "role", "mine", "time", "names", "chat")
REPLIES = ("id", "parent", "text", "role")
TURNS = ("turns",)
NO_PAIR = "records without question and answer"
UNDECLARED = "--map"  # name of all layouts that are not declared in layouts.yaml
HEAD = 50  # number of values that are examined to detect their layout
ANY, ITEM = "*", None  # wildcards in a path: any field of an object, and each item of a list
Place = tuple[str | None, ...]
KIND = "kind"  # output key for the kind of a message, allowed only in layouts.yaml


class Map(NamedTuple):
    """A compiled map, i.e. a JMESPath expression that converts values to pairs, turns or messages."""

    expression: str
    kind: tuple[str, ...]  # PAIRS, MESSAGES, REPLIES or TURNS
    names: frozenset[str]  # output keys; empty for utterances
    path: tuple[str, ...] | None  # path of the list whose items are converted; None to convert the whole value
    is_list: bool  # whether the result is a list, such as the messages of a conversation
    search: Callable[[Any], Any]  # Maps the list at `path`, or the whole value, to the result.
    fields: tuple[tuple[str, str], ...]  # (output key, field) pairs if the map only selects fields of an object

    def results(self, value: Any, is_item: bool = False) -> list[Any]:
        """Apply the map to a value.

        Results that are lists are concatenated, with None after each list.

        Args:
            value: The value.
            is_item: Whether the value is a single item of the list at `path`.
        """
        if is_item or (self.path == () and isinstance(value, dict)):  # a single item instead of a list
            value = [value]
        else:
            for step in self.path or ():
                value = value.get(step) if isinstance(value, dict) else None
        try:
            found = self.search(value)
        except JMESPathError:  # The map calls a function that does not accept values of this type.
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
def compile_map(expression: str, is_declared: bool = False) -> Map:
    """Compile a map. Raises UserError if it is not valid JMESPath or its output keys are not allowed."""
    try:
        tree = dict(jmespath.compile(expression).parsed)
    except ValueError as error:
        raise UserError(
            f"--map {one_line(expression, 60)}: not JMESPath ({one_line(str(error).splitlines()[0], 50)}); "
            "write one such as '{question: q, answer: a}'"
        ) from None
    output_names = frozenset(_output_names(tree))
    kind = _detect_kind(expression, output_names - {KIND} if is_declared else output_names)
    tree = _normalise_path(tree)
    is_list = tree["type"] in (*_OF_LISTS, "value_projection")
    path, rest = _split_list_path(tree) if is_list else (None, tree)
    fields = tuple((name, steps[0]) for name, steps in _paths(tree) or () if len(steps) == 1)
    return Map(expression, kind, output_names, path, is_list, _search(rest), fields)


def _detect_kind(expression: str, names: frozenset[str]) -> tuple[str, ...]:
    known = {*PAIRS, *MESSAGES, *REPLIES, *TURNS}
    problem = ""
    if unknown := sorted(names - known):
        problem = f"{one_line(unknown[0], 20)!r} is not a valid key; the keys are {', '.join(sorted(known))}"
    elif not names or "turns" in names:
        return TURNS
    elif "answer" in names and names & {"question", "history"}:
        return PAIRS
    elif {"id", "parent", "text"} <= names:
        return REPLIES
    elif "text" in names and names & {"speaker", "role", "mine"}:
        return MESSAGES
    elif names == {"text"}:
        problem = "it returns texts without speakers; add speaker: FIELD, or end in [].FIELD if each answers the last"
    else:
        problem = "it must return question and answer, or speaker and text, or id, parent and text"
    raise UserError(f"--map {one_line(expression, 40)}: {problem}")


def _output_names(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of the objects that a parsed expression outputs, without the keys of nested objects."""
    if tree["type"] == "multi_select_dict":
        yield from (pair["value"] for pair in tree["children"])
    else:
        for child in tree["children"]:
            yield from _output_names(child) if isinstance(child, dict) else ()  # The children of a slice are numbers.


def _normalise_path(tree: dict[str, Any]) -> dict[str, Any]:
    """Rewrite a parsed expression a.(b[*].c) to the equivalent (a.b)[*].c."""
    *fields, last = tree["children"] or [tree]
    if tree["type"] == "subexpression" and "projection" in last["type"]:
        inner, *rest = last["children"]
        return {**last, "children": [_normalise_path({"type": "subexpression", "children": [*fields, inner]}), *rest]}
    return tree


_OF_LISTS = ("projection", "filter_projection", "flatten")
_IDENTITY: dict[str, Any] = {"type": "identity", "children": []}
_WALKS = (_IDENTITY, {"type": "flatten", "children": [_IDENTITY]})  # expressions that iterate over a list


def _split_list_path(tree: dict[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """Split a parsed expression into the path of the list it iterates over and the expression for this list.

    For example, a.b[*].c is split into a.b and [*].c. The path is None if the expression does not iterate over a list.
    """
    if (path := _path(tree)) is not None:
        return path, _IDENTITY
    if tree["type"] not in _OF_LISTS:
        return None, tree
    first, *others = tree["children"]
    path, inner = _split_list_path(first)
    return path, {**tree, "children": [inner, *others]}


def _path(node: dict[str, Any]) -> tuple[str, ...] | None:
    if node["type"] == "identity":
        return ()
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] == "subexpression":
        steps = [_path(child) for child in node["children"]]
        return tuple(name for step in steps for name in step or ()) if all(steps) else None
    return None


def _search(tree: Any) -> Callable[[Any], Any]:
    """Return a function that evaluates a parsed expression.

    Expressions that only select fields are evaluated in Python code, which is faster than the JMESPath library.
    """
    if tree["type"] in ("current", "identity"):
        return lambda value: value
    each = tree["children"][-1] if tree["type"] == "projection" else tree
    fields = _paths(each)
    if fields is None or (each is not tree and tree["children"][0] not in _WALKS):
        search: Callable[[Any], Any] = ParsedResult("", tree).search
        return search
    get = functools.partial(_fields, fields)
    if each is tree:
        return get
    flattens = tree["children"][0]["type"] == "flatten"

    def select_from_items(items: Any) -> list[Any] | None:
        if not isinstance(items, list):
            return None
        if flattens:
            items = [part for item in items for part in (item if isinstance(item, list) else (item,))]
        return [found for item in items if (found := get(item))]

    return select_from_items


def _paths(tree: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]] | None:
    """Return the output key and the path of each field, or None if the expression does more than select fields."""
    if tree["type"] != "multi_select_dict":
        return None
    pairs = [(pair["value"], _path(pair["children"][0])) for pair in tree["children"]]
    return [(name, path) for name, path in pairs if path] if all(path for _, path in pairs) else None


def _fields(fields: list[tuple[str, tuple[str, ...]]], value: Any) -> dict[str, Any] | None:
    """Evaluate the JMESPath expression {name: path, ...} for a value."""
    if not isinstance(value, dict):
        return None
    found = {}
    for name, path in fields:
        part: Any = value
        for step in path:
            part = part.get(step) if isinstance(part, dict) else None
        found[name] = part
    return found


def quote_field(field: str) -> str:
    """Return a field name in JMESPath syntax."""
    plain = field.isascii() and field.isidentifier()
    return field if plain else json.dumps(field, ensure_ascii=False)


def flag(expression: str) -> str:
    """Return the --map flag for an expression, quoted for a shell."""
    return "--map '" + expression.replace("'", "'\\''") + "'"


class Layout(NamedTuple):
    """How to convert the values of a file to pairs: a map, and settings for the texts that it selects."""

    map: Map
    name: str = UNDECLARED
    texts: frozenset[str] = frozenset()  # kinds of messages that contain text; empty for all kinds
    notices: frozenset[str] = frozenset()  # kinds of messages that the application generated
    finish: Callable[[str], str] = str  # Extracts what a person wrote from a text.
    no_text: re.Pattern[str] | None = None  # Matches texts that an application generated, such as placeholders.
    unfold: Callable[[Any], Any] | None = None  # Converts each value before the map is applied.
    rejected: str = NO_PAIR  # reason shown in the report if the map returns nothing for a value

    def text_of(self, value: object) -> str:
        """Return the text that a person wrote in a message, or an empty string."""
        text = self.finish(text_of(value))
        return "" if self.no_text and self.no_text.fullmatch(text) else text


@functools.cache
def declared_layouts() -> list[tuple[list[str], Layout]]:
    """Return the signature and the layout of each row in the `declared` section of layouts.yaml."""
    return [(row["signature"], _build_layout(row)) for row in names.load_table("layouts.yaml")["declared"]]


def _build_layout(row: dict[str, Any]) -> Layout:
    return Layout(
        compile_map(row["map"], is_declared=True),
        row["name"],
        frozenset(row.get("texts", ())),
        frozenset(row.get("notices", ())),
        FUNCTIONS[row["finish"]] if "finish" in row else str,
        re.compile(names.expression(row["no_text"])) if "no_text" in row else None,
        FUNCTIONS[row["unfold"]] if "unfold" in row else None,
        row.get("rejected", NO_PAIR),
    )


def find_declared(values: Sequence[object]) -> list[Layout]:
    """Return the layouts in layouts.yaml whose signature matches all of the values."""
    return [
        layout
        for signature, layout in declared_layouts()
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
    """Return whether a path exists in a value.

    In a path such as a.b[].c, [] means any item of a list and * means any field. Several paths can be joined by |, of
    which one must exist. layouts.yaml documents the complete syntax.
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

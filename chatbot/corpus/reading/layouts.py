"""The declared layouts of objects and rows, which layouts.yaml lists: which of them values have; their functions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from chatbot.corpus.reading.mapping import compiled
from chatbot.corpus.reading.names import table_of
from chatbot.corpus.reading.records import NO_PAIR, Layout
from chatbot.corpus.reading.texts import FUNCTIONS


@functools.cache
def table() -> list[tuple[list[str], Layout]]:
    """Return (signature, layout) of each row of layouts.yaml."""
    return [(row["signature"], _layout(row)) for row in table_of("layouts.yaml")]


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


HEAD = 50  # items of a list in which the path of a signature is looked for
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

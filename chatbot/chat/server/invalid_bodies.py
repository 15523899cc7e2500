"""What is wrong with the body of a request, in one line, from the errors of Pydantic."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chatbot.corpus.reading.display import counted

MOST_SHOWN = 40  # characters of a wrong value
# By the type of an error. A value of another type may be right for another alternative of a union.
OTHER_TYPE = {
    "string_type": "a text",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
}
LIMITS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
LENGTHS = {
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
    "string_too_long": ("at most", "max_length", "character"),
}

Error = Mapping[str, Any]


def problem_of(errors: Sequence[Error]) -> tuple[str | None, str]:
    """Return the first field that is wrong, None for the whole body, and a line: what was expected, and what was given.

    Of the errors of a union's alternatives, those count that are deepest in the value.
    """
    place = _before_alternatives(errors[0]["loc"])
    same = [error for error in errors if _before_alternatives(error["loc"])[: len(place)] == place]
    deepest = max(same, key=lambda error: len(error["loc"]))  # the first of several
    field = field_of(deepest["loc"])
    found = [error for error in same if field_of(error["loc"]) == field]
    found = [error for error in found if error["type"] not in OTHER_TYPE][:1] or found
    subject = field or "The body"
    if found[0]["type"] == "missing":
        return field, f"{subject}: required, but missing"
    expected = " or ".join(dict.fromkeys(_expected(error) for error in found))
    return field, f"{subject}: expected {expected}, got {_given(found[0])}"


def field_of(location: Sequence[int | str]) -> str | None:
    """Return the field at a location of Pydantic's: ("body", "messages", 0, "role") -> messages[0].role."""
    field = ""
    for part in location[1:]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif not _is_alternative(part):
            field += f".{part}" if field else part
    return field or None


def _before_alternatives(location: Sequence[int | str]) -> list[int | str]:
    """Return the part of a location that the errors of all alternatives of a union share."""
    parts = [*location]
    return parts[: next((number for number, part in enumerate(parts) if _is_alternative(part)), len(parts))]


def _is_alternative(part: int | str) -> bool:
    return isinstance(part, str) and (not part.isidentifier() or part in {"str", "int", "float", "bool"})


def _expected(error: Error) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in OTHER_TYPE:
        return OTHER_TYPE[kind]
    if kind in LIMITS:
        which, name = LIMITS[kind]
        return f"{which} {context[name]:g}"
    if kind in LENGTHS:
        which, name, noun = LENGTHS[kind]
        return f"{which} {counted(context[name], noun)}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", '"')
    if kind == "finite_number":
        return "a finite number"
    return "another value"


def _given(error: Error) -> str:
    value = error["input"]
    if error["type"] in LENGTHS:
        return f"{len(value):,}"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        value = value[: MOST_SHOWN + 1]
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."

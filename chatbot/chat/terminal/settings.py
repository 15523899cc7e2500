"""The settings of a chat that /set changes: those of decoding, and the number of turns that are read."""

import dataclasses
import difflib
import shlex
from typing import Any

from chatbot.config.chat import ChatSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import fields_of, parsed_value

HISTORY = "history"
DEFAULT = "default"
# By name, in the order of /settings.
FIELDS: dict[str, "dataclasses.Field[Any]"] = {
    HISTORY: fields_of(ChatSettings)[HISTORY],
    **fields_of(DecodingSettings),
}


def changes_of(text: str) -> dict[str, Any]:
    """Return the changes of /set, by name. text: NAME=VALUE ..., where no value stands for the default.

    Texts in quotes may have spaces, and several words are separated by commas. Raises UserError for a name that is
    unknown, with the nearest one, and for a value that is not allowed by itself.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"/set: {str(error).lower()}; close the quotation mark, or write \\' for one") from None
    changes: dict[str, Any] = {}
    for word in words:
        given, equals, value = word.partition("=")
        if not equals or not given:
            raise UserError(
                f"/set {word}: expected NAME=VALUE, such as temperature=0.8; several words are separated by commas, "
                "such as ban=one,two"
            )
        name = field_name(given)
        changes[name] = _value(FIELDS[name], value)
    return changes


def explanation(name: str) -> str:
    """Return the explanation of a setting, with what separates several values."""
    field = FIELDS[name]
    text: str = field.metadata["text"]
    return f"{text}; several are separated by commas, {name}=one,two" if field.metadata["many"] else text


def field_name(given: str) -> str:
    """Return the name of a setting, which may be given as a flag. Raises UserError for an unknown one."""
    name = given.lower().removeprefix("--").replace("-", "_")
    if name not in FIELDS:
        nearest = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"the nearest is {nearest[0]}" if nearest else "/settings lists the settings"
        raise UserError(f"/set {given}: no such setting; {hint}")
    return name


def _value(field: "dataclasses.Field[Any]", text: str) -> Any:
    """Return the value that a text stands for. Raises UserError for one that is not allowed."""
    if not text:
        return field.default
    parts, name = text.split(",") if field.metadata["many"] else [text], f"/set {field.name}"
    values = tuple(parsed_value(field, part, name) for part in parts)
    return values if field.metadata["many"] else values[0]


def shown(value: Any) -> str:
    """Return a value of a setting for readers."""
    if value is None or value == ():
        return "-"
    return ",".join(value) if isinstance(value, tuple) else str(value)

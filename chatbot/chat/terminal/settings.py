"""The settings of a chat that /set changes: those of decoding, and the number of turns that are read."""

import contextlib
import dataclasses
import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from chatbot.config.chat import ChatSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import check_value, fields_of

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
            missing = "name" if equals else "value"
            raise UserError(f"/set {word}: the {missing} is missing; write NAME=VALUE, such as temperature=0.8")
        name = field_name(given)
        changes[name] = _value(FIELDS[name], value)
    return changes


def field_name(given: str) -> str:
    """Return the name of a setting, which may be given as a flag. Raises UserError for an unknown one."""
    name = given.lower().removeprefix("--").replace("-", "_")
    if name not in FIELDS:
        nearest = difflib.get_close_matches(name, FIELDS, n=1)
        raise UserError(
            f"{given}: no such setting; "
            + (f"the nearest is {nearest[0]}" if nearest else "/settings lists the settings")
        )
    return name


@contextlib.contextmanager
def in_names_of_settings(before: Sequence[str]) -> Iterator[None]:
    """Within the block, raise a UserError about flags with the names that /set takes.

    before: settings that were changed before. Those at fault can be reset, which the message says.
    """
    try:
        yield
    except UserError as error:
        text = re.sub("--([a-z]+(?:-[a-z]+)*)", _setting_of_flag, str(error))
        what = text.partition(";")[0]
        resets = [f"{name}=" for name in before if re.search(rf"\b{name}\b", what)]
        remedy = f"; /set {' '.join(resets)} resets what was set before" if resets else ""
        raise UserError(text + remedy) from None


def _setting_of_flag(match: "re.Match[str]") -> str:
    name = match[1].replace("-", "_")
    return name if name in FIELDS and name != HISTORY else match[0]  # --history in messages is that of training


def _value(field: "dataclasses.Field[Any]", text: str) -> Any:
    """Return the value that a text stands for. Raises UserError for one that is not allowed."""
    if not text:
        return field.default
    parts = text.split(",") if field.metadata["many"] else [text]
    values = []
    for part in parts:
        value: Any = part
        with contextlib.suppress(ValueError):
            value = field.metadata["kind"](part)
        check_value(field, value, field.name)
        values.append(value)
    return tuple(values) if field.metadata["many"] else values[0]


def shown(value: Any) -> str:
    """Return a value of a setting as /set takes it."""
    if value is None:
        return "-"
    return ",".join(value) or "-" if isinstance(value, tuple) else str(value)

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
from chatbot.flags import check_value, fields_of, flag_of

HISTORY = "history"
DEFAULT = "default"
# Stands for a comma in quotation marks or after a backslash, which separates no words.
COMMA = "\0"
QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""")
# By name, in the order of /settings.
FIELDS: dict[str, "dataclasses.Field[Any]"] = {
    HISTORY: fields_of(ChatSettings)[HISTORY],
    **fields_of(DecodingSettings),
}


def changes_of(text: str) -> dict[str, Any]:
    """Return the changes of /set, by name. text: NAME=VALUE ..., where no value stands for the default.

    Texts in quotes may have spaces and commas, and several words are separated by commas. Raises UserError for a name
    that is unknown, with the nearest one, and for a value that is not allowed by itself.
    """
    try:
        words = shlex.split(QUOTED.sub(lambda quoted: quoted[0].replace(",", COMMA), text))
    except ValueError as error:
        raise UserError(f"/set: {str(error).lower()}; close the quotation mark, or write \\' for one") from None
    changes: dict[str, Any] = {}
    name = None
    for word in words:
        given, equals, value = word.partition("=")
        if not equals or not given:
            raise UserError(f"/set {word.replace(COMMA, ',')}: {_fault(given, equals, name)}")
        name = field_name(given)
        changes[name] = _value(FIELDS[name], value)
    return changes


def _fault(given: str, equals: str, before: str | None) -> str:
    """Return what is wrong with a word that is no NAME=VALUE. before: the name of the setting before it."""
    if given.lower() == DEFAULT:
        return "stands alone; give no other settings with it"
    if not equals and before is not None and FIELDS[before].metadata["many"]:
        return f"the value is missing; several words are separated by commas, such as {before}=one,two"
    missing = "name" if equals else "value"
    return f"the {missing} is missing; write NAME=VALUE, such as temperature=0.8"


def explanation(name: str) -> str:
    """Return the explanation of a setting, with what separates several values."""
    field = FIELDS[name]
    text: str = field.metadata["text"]
    if not field.metadata["many"]:
        return text
    return f"{text}; several are separated by commas, {name}=one,two; one with a space or a comma is quoted"


def field_name(given: str) -> str:
    """Return the name of a setting, which may be given as a flag. Raises UserError for an unknown one."""
    name = given.lower().removeprefix("--").replace("-", "_")
    if name not in FIELDS:
        nearest = difflib.get_close_matches(name, FIELDS, n=1)
        raise UserError(
            f"/set {given}: no such setting; "
            + (f"the nearest is {nearest[0]}" if nearest else "/settings lists the settings")
        )
    return name


@contextlib.contextmanager
def in_names_of_settings(before: Sequence[str], command: str = "") -> Iterator[None]:
    """Within the block, raise a UserError about flags with the names that /set takes.

    before: settings that were changed before. Those at fault can be reset, which the message says. command: what a
    message that begins with a setting begins with instead.
    """
    try:
        yield
    except UserError as error:
        text = _in_names_of_settings(str(error))
        text = f"{command}{text}" if str(error).startswith("--") else text
        what = text.partition(";")[0]
        resets = [f"{name}=" for name in before if re.search(rf"\b{name}\b", what)]
        remedy = f"; /set {' '.join(resets)} resets what was set before" if resets else ""
        raise UserError(text + remedy) from None


def _in_names_of_settings(message: str) -> str:
    """Return a message about flags, --beam-size 5, as one about settings, beam_size=5."""
    for name in fields_of(DecodingSettings):  # --history in messages is that of training
        flag = rf"{flag_of(name)}(?![\w-])"
        message = re.sub(flag, name, re.sub(rf"{flag} (?=-?\d)", f"{name}=", message))
    return message


def _value(field: "dataclasses.Field[Any]", text: str) -> Any:
    """Return the value that a text stands for. Raises UserError for one that is not allowed."""
    if not text:
        return field.default
    parts = text.split(",") if field.metadata["many"] else [text]
    values = []
    for part in parts:
        value: Any = part.replace(COMMA, ",")
        with contextlib.suppress(ValueError):
            value = field.metadata["kind"](value)
        try:
            check_value(field, value)
        except UserError as error:
            given = text.replace(COMMA, ",")
            fault = str(error).rpartition(": ")[2]
            raise UserError(f"/set {field.name}={given}: {_in_names_of_settings(fault)}") from None
        values.append(value)
    return tuple(values) if field.metadata["many"] else values[0]


def shown(value: Any) -> str:
    """Return a value of a setting as /set takes it."""
    if value is None:
        return "-"
    return ",".join(map(_quoted, value)) or "-" if isinstance(value, tuple) else str(value)


def _quoted(word: str) -> str:
    """Return a word of several as /set takes it."""
    if re.search(r"""[\s,'"\\]""", word) is None:
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"  # shlex.quote leaves commas as they are

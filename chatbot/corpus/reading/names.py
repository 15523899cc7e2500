"""Looks up names of fields and roles in names.yaml, and builds regular expressions from wordings.yaml."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parent
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have been built without its C extension.


@functools.cache
def load_table(name: str) -> Any:
    """Load one of the YAML files in the TABLES folder."""
    return Loader((TABLES / name).read_text(encoding="utf-8")).get_single_data()


@functools.cache
def alternation(name: str) -> str:
    """Return a regular expression that matches any entry of a table in wordings.yaml."""
    return expression("|".join(load_table("wordings.yaml")[name]))


def expression(text: str) -> str:
    """Replace references such as <media> with the regular expressions of the tables in wordings.yaml."""
    return re.sub(r"(?<!P)<([a-z]+)>", lambda name: alternation(name[1]), text)


def pattern(name: str) -> re.Pattern[str]:
    """Compile a regular expression that matches any entry of a table in wordings.yaml, ignoring case."""
    return re.compile(alternation(name), re.IGNORECASE)


_IGNORED = re.compile("[\\s_*\\-\u200b-\u200f\u202a-\u202e\u2060\ufeff]")


@functools.lru_cache(maxsize=4096)  # Cached because every message has a role.
def key_of(name: str) -> str:
    """Normalise a name to lower case without spaces, word separators and invisible characters."""
    return _IGNORED.sub("", name).casefold()


def _roles(*kinds: str, marked: str = "source") -> frozenset[str]:
    rows = [row for row in load_table("names.yaml")["roles"] if marked in row]
    return frozenset(key_of(name) for row in rows for kind in kinds for name in row.get(kind, ()))


ASKING = _roles("asks")
ANSWERING = _roles("answers")
UNHEARD = _roles("unheard")
ROLES = ASKING | ANSWERING | UNHEARD
IN_MESSENGERS = _roles("asks", "answers", marked="messenger")
CLASSES: dict[str, tuple[str, ...]] = {
    key: (*map(key_of, names),) for key, names in load_table("names.yaml").items() if key != "roles"
}
KNOWN = frozenset(name for names in CLASSES.values() for name in names)
# Names of fields that tell who speaks, such as is_user or from_user.
CLASSES["flags"] = tuple(f"{verb}{role}" for role in sorted(ASKING | ANSWERING) for verb in ("is", "from"))
_IN_HEADERS = (
    *("questions", "answers", "asking_people", "answering_people", "texts", "titles", "verdicts", "speakers"),
    *("times", "chats", "no_sides", "conversations"),
)
HEADER_NAMES = frozenset(name for key in _IN_HEADERS for name in CLASSES[key])


@functools.cache
def _ranks(choice: str) -> dict[str, int]:
    """Return the position of each name in a class. Several classes or names can be joined by |."""
    listed = [name for each in choice.split("|") for name in CLASSES.get(each, (each,))]
    return {name: rank for rank, name in reversed([*enumerate(listed)])}


def keys_of(values: Sequence[object]) -> dict[str, str]:
    """Return a mapping from normalised to original field names of the dictionaries in `values`."""
    keys = {key_of(name): name for value in values if isinstance(value, dict) for name in reversed(value)}
    if "b" in keys:
        keys.pop("a", None)  # If there is also a "b", "a" is a multiple-choice option, not an answer.
    return keys


def find_fields(choice: str, fields: Mapping[str, str]) -> list[str]:
    """Return the fields whose names are in a class of names.yaml, in the order of the class.

    Args:
        choice: A class, or several classes or names joined by |.
        fields: A mapping from normalised to original field names, as returned by `keys_of`.
    """
    ranks = _ranks(choice)
    return [fields[key] for key in sorted(ranks.keys() & fields.keys(), key=ranks.__getitem__)]


def find_field(choice: str, fields: Mapping[str, str]) -> str:
    """Return the first field whose name is in a class (see `find_fields`), or an empty string."""
    return next(filter(None, find_fields(choice, fields)), "")


def is_in_class(choice: str, field: str) -> bool:
    """Return whether a field name is in a class (see `find_fields`)."""
    return key_of(field) in _ranks(choice)


def are_roles(names: Iterable[str]) -> bool:
    """Return whether all names are known roles, and not all of them are roles of programs, such as "system"."""
    return bool((keys := {*map(key_of, names)}) - UNHEARD) and keys <= ROLES


def has_known_names(header: Iterable[str], minimum: int = 2) -> bool:
    """Return whether a row contains at least `minimum` known column names."""
    return len({key_of(name) for name in header} & HEADER_NAMES) >= minimum


def repeats_header(row: Sequence[str], header: Sequence[str]) -> bool:
    """Return whether a row repeats the header row, ignoring case."""
    is_short = len(row) == len(header) and len(row[0].strip()) <= len(header[0])  # a fast check for most rows
    return is_short and [*map(key_of, row)] == [*map(key_of, header)]

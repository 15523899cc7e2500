"""The tables beside the modules: names of fields and roles (names.yaml), and words around texts (wordings.yaml)."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parent
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be installed without its C extension


@functools.cache
def table_of(name: str) -> Any:
    """Return the content of one of the YAML files in TABLES."""
    return Loader((TABLES / name).read_text(encoding="utf-8")).get_single_data()


@functools.cache
def any_of(name: str) -> str:
    """Return the expression of all rows of a table of wordings.yaml."""
    return expression("|".join(table_of("wordings.yaml")[name]))


def expression(text: str) -> str:
    """Return an expression with those of tables in place of their names, such as <media>."""
    return re.sub(r"(?<!P)<([a-z]+)>", lambda name: any_of(name[1]), text)


def pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of all rows of a table of wordings.yaml."""
    return re.compile(any_of(name), re.IGNORECASE)


_IGNORED = re.compile("[\\s_*\\-\u200b-\u200f\u202a-\u202e\u2060\ufeff]")


@functools.lru_cache(maxsize=4096)  # the roles of all messages
def key_of(name: str) -> str:
    """Return a name as it is compared: in small letters, without spaces and the marks between words or beside it."""
    return _IGNORED.sub("", name).casefold()


def _roles(*kinds: str, of: str = "source") -> frozenset[str]:
    rows = [row for row in table_of("names.yaml")["roles"] if of in row]
    return frozenset(key_of(name) for row in rows for kind in kinds for name in row.get(kind, ()))


ASKING = _roles("asks")
ANSWERING = _roles("answers")
UNHEARD = _roles("unheard")
ROLES = ASKING | ANSWERING | UNHEARD
IN_MESSENGERS = _roles("asks", "answers", of="messenger")
CLASSES: dict[str, tuple[str, ...]] = {
    key: (*map(key_of, names),) for key, names in table_of("names.yaml").items() if key != "roles"
}
KNOWN = frozenset(name for names in CLASSES.values() for name in names)
CLASSES["flags"] = tuple(f"{verb}{role}" for role in sorted(ASKING | ANSWERING) for verb in ("is", "from"))  # is_user
_IN_HEADERS = (
    *("questions", "answers", "asking_people", "answering_people", "texts", "titles", "verdicts", "speakers"),
    *("times", "chats", "no_sides", "conversations"),
)
HEADER_NAMES = frozenset(name for key in _IN_HEADERS for name in CLASSES[key])


@functools.cache
def _ranks(choice: str) -> dict[str, int]:
    """Return the rank of each name of a class, or of several classes or names with | between."""
    listed = [name for each in choice.split("|") for name in CLASSES.get(each, (each,))]
    return {name: rank for rank, name in reversed([*enumerate(listed)])}


def keys_of(values: Sequence[object]) -> dict[str, str]:
    """Return from the keys of the names in these values to the names."""
    return {key_of(name): name for value in values if isinstance(value, dict) for name in reversed(value)}


def all_of(choice: str, fields: Mapping[str, str]) -> list[str]:
    """Return the fields with names of a class, the first in its list first. fields: as `keys_of` returns them."""
    ranks = _ranks(choice)
    return [fields[key] for key in sorted(ranks.keys() & fields.keys(), key=ranks.__getitem__)]


def first_of(choice: str, fields: Mapping[str, str]) -> str:
    """Return the first field with a name of a class, "" without one."""
    return next(filter(None, all_of(choice, fields)), "")


def is_of(choice: str, field: str) -> bool:
    """Return whether a field has a name of a class."""
    return key_of(field) in _ranks(choice)


def are_roles(names: Iterable[str]) -> bool:
    """Return whether all these names are roles, and not of programs alone."""
    return bool((keys := {*map(key_of, names)}) - UNHEARD) and keys <= ROLES


def are_known(header: Iterable[str], least: int = 2) -> bool:
    """Return whether at least so many names of a header are known; both sides of a pair are two."""
    return len({key_of(name) for name in header} & HEADER_NAMES) >= least


def are_same(row: Sequence[str], header: Sequence[str]) -> bool:
    """Return whether a row repeats a header, perhaps in other letters."""
    is_short = len(row) == len(header) and len(row[0].strip()) <= len(header[0])  # as few rows are
    return is_short and [*map(key_of, row)] == [*map(key_of, header)]

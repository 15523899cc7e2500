"""Names of fields and columns, and of roles, which names.yaml lists."""

import functools
import re
from collections.abc import Iterable, Sequence

from chatbot.corpus.reading.wordings import table_of

_IGNORED = re.compile("[\\s_*\\-\u200b-\u200f\u202a-\u202e\u2060\ufeff]")


@functools.lru_cache(maxsize=4096)  # the roles of all messages
def key_of(name: str) -> str:
    """Return a name as it is compared: in small letters, without spaces and the marks between words or beside it."""
    return _IGNORED.sub("", name).casefold()


_NAMES: dict[str, tuple[str, ...]] = {
    key: (*map(key_of, names),) for key, names in table_of("names.yaml").items() if key != "roles"
}


def _roles(*kinds: str, of: str = "source") -> frozenset[str]:
    rows = [row for row in table_of("names.yaml")["roles"] if of in row]
    return frozenset(key_of(name) for row in rows for kind in kinds for name in row.get(kind, ()))


QUESTIONS = _NAMES["questions"]
ANSWERS = _NAMES["answers"]
INSTRUCTIONS = _NAMES["instructions"]
SIDES = _NAMES["sides"]
OF_TRANSLATIONS = _NAMES["of_translations"]
ASKING_PEOPLE = _NAMES["asking_people"]
ANSWERING_PEOPLE = _NAMES["answering_people"]
TEXTS = _NAMES["texts"]
TITLES = _NAMES["titles"]
SEVERAL = _NAMES["several"]
INPUTS = _NAMES["inputs"]
PHRASINGS = _NAMES["phrasings"]
VERDICTS = _NAMES["verdicts"]
SPEAKERS = _NAMES["speakers"]
SENDERS = _NAMES["senders"]
SAID = _NAMES["said"]
TIMES = _NAMES["times"]
CHATS = _NAMES["chats"]
MINE = _NAMES["mine"]
COUNTERS = _NAMES["counters"]
IDS = _NAMES["ids"]
PARENTS = _NAMES["parents"]
CONVERSATIONS = _NAMES["conversations"]
ASKING = _roles("asks")
ANSWERING = _roles("answers")
UNHEARD = _roles("unheard")
ROLES = ASKING | ANSWERING | UNHEARD
IN_MESSENGERS = _roles("asks", "answers", of="messenger")
HISTORY = "history"
KNOWN = frozenset(name for names in _NAMES.values() for name in names)
_IN_HEADERS = (
    *("questions", "answers", "asking_people", "answering_people", "texts", "titles", "verdicts", "speakers"),
    *("times", "chats", "no_sides", "conversations"),
)
HEADER_NAMES = frozenset(name for key in _IN_HEADERS for name in _NAMES[key])


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


def first_of(choice: tuple[str, ...], names: dict[str, str]) -> str:
    """Return the first name of the choice that is there, as the file spells it; "" without one. names: by `key_of`."""
    return next((names[name] for name in choice if names.get(name)), "")

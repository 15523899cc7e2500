"""Names of fields and columns, and of roles, which names.yaml lists."""

import re
from collections.abc import Iterable

from chatbot.corpus.reading.wordings import table_of

_IGNORED = re.compile("[\\s_*\\-\u200b-\u200f\u202a-\u202e\u2060\ufeff]")


def key_of(name: str) -> str:
    """Return a name as it is compared: in small letters, without spaces and the marks between words or beside it."""
    return _IGNORED.sub("", name).casefold()


_NAMES: dict[str, tuple[str, ...]] = {key: (*map(key_of, names),) for key, names in table_of("names.yaml").items()}
QUESTIONS = _NAMES["questions"]
ANSWERS = _NAMES["answers"]
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
ASKING = frozenset(_NAMES["asking_roles"])
ANSWERING = frozenset(_NAMES["answering_roles"])
UNHEARD = frozenset(_NAMES["unheard_roles"])
HISTORY = "history"
KNOWN = frozenset(name for key, names in _NAMES.items() for name in names if not key.endswith("_roles"))
_IN_HEADERS = (
    *("questions", "answers", "asking_people", "answering_people", "texts", "titles", "verdicts", "speakers"),
    *("times", "chats", "no_sides", "conversations"),
)
HEADER_NAMES = frozenset(name for key in _IN_HEADERS for name in _NAMES[key])


def are_known(header: Iterable[str], least: int = 2) -> bool:
    """Return whether at least so many names of a header are known; both sides of a pair are two."""
    return len({key_of(name) for name in header} & HEADER_NAMES) >= least


def first_of(choice: tuple[str, ...], names: dict[str, str]) -> str:
    """Return the first name of the choice that is there, as the file spells it; "" without one. names: by `key_of`."""
    return next((names[name] for name in choice if names.get(name)), "")

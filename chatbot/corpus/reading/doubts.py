"""Detects data that may not be question-answer pairs, and guesses the meaning of fields with unknown names.

For example, two columns are probably not pairs if one column contains only numbers, names or labels, or if the columns
are in different languages. Rows of layouts.yaml refer to the functions in CHECKS and KINDS by name.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from chatbot.corpus.reading import names
from chatbot.corpus.reading.marked_text import split_by_speaker, split_dialogue, split_utterances
from chatbot.corpus.reading.texts import NO, YES, alternatives, have_codes, speaker_names, text_of
from chatbot.corpus.reading.turns import detect_time_form, seconds
from chatbot.display import CHINESE_OR_KANA, one_line, pluralize

DATE_WORDS = re.compile(
    r"(?<![a-z])(am|pm|a\.m\.|p\.m\.|t|z|utc|gmt|mon|tue|wed|thu|fri|sat|sun|"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)(?![a-z])|上午|下午|凌晨|早上|中午|晚上|"
    r"星期.|周[一二三四五六日]|[年月日号時时分秒元块岁]"
)
NUMBER_CHARACTERS = frozenset("0123456789 \t/.:,-+[]()%$€£¥￥")
# Matches an email address, a web address, a file path or an id.
ADDRESS = re.compile(
    r"[^\s@]{1,64}@[^\s@]{1,255}|(?:https?://|www\.)\S*|(?:[A-Za-z]:\\|/)[^\s?？]*|[\w-]{1,64}\.[A-Za-z]\w{1,3}"
    r"|(?=[^\W_]*\d)(?=\d*[A-Za-z])[0-9A-Za-z_-]{6,64}"
)
QUESTION_MARKS = ("?", "？", "؟", ";")
MAX_CELL = 300  # maximum number of characters examined per cell
MIN_ROWS = 3  # minimum number of distinct rows required to doubt that columns are pairs
MOSTLY = 0.9  # minimum fraction of cells that must match a condition; a few cells may be damaged
ALIKE = 0.7  # minimum fraction of equal letters for which two texts count as a text and its correction
MANY = 6  # A value that recurs this often is more likely a name or a label than a question or an answer.
NAME, CHINESE_NAME = 20, 6  # maximum number of characters of a name
MAX_IDS = 200  # maximum number of fields that are compared with each other, to limit the time

Cell = TypeVar("Cell")
_CLOCK = re.compile(r"(?<!\d)\d{1,2}[:：]\d{2}(?!\d)")
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")
_SCRIPTS = (
    *("A-Za-z\u00c0-\u024f", CHINESE_OR_KANA, "\uac00-\ud7af", "\u0400-\u052f"),
    *("\u0370-\u03ff", "\u0590-\u05ff", "\u0600-\u06ff", "\u0900-\u097f", "\u0e00-\u0e7f"),
)
_CHOICE = re.compile(r"[(（]?(?:[A-H]{1,4}|[a-h])[)）.]?|[A-H](?:[,、 ] ?[A-H]){1,4}")
_PART_OF_SPEECH = re.compile(r"(?:[a-z]{1,6}\.[/&,、;；\s]*)+")  # "n. " or "vt./vi. " in word lists
_SENTENCE = re.compile(r"[，。！？…!?]|[.,;]\s|\S+\s+\S+\s+\S+\s+\S+")


def find_doubt(rows: Sequence[Sequence[str]], column: str = "column", chat: str = "", minimum: int = MIN_ROWS) -> str:
    """Return why the rows of a two-column table may not be pairs, or an empty string.

    Args:
        rows: The first rows of the table.
        column: Word for a column in the message, e.g. "column", "line" or "field".
        chat: Flag that the message recommends if the first column seems to contain the names of speakers.
        minimum: Minimum number of rows for detecting names and labels.
    """
    rows = [*dict.fromkeys((row[0], row[1]) for row in rows)]  # Remove duplicate rows.
    if len(rows) < MIN_ROWS:
        return ""
    firsts, seconds = ([row[side].strip()[:MAX_CELL] for row in rows] for side in range(2))
    are_questions = sum(cell.endswith(QUESTION_MARKS) for cell in firsts) * 2 >= len(firsts)
    sides = (("first", firsts, seconds), ("second", seconds, firsts))
    for side, cells, others in sides[: 1 if are_questions else 2]:
        is_first = side == "first"
        if _mostly(cells, _is_no_text):
            return f"the {side} {column} contains numbers, addresses or ids"
        if _mostly(cells, _CLOCK.search):
            return f"the {side} {column} contains times"
        if _mostly(cells, _has_tags):
            return f"the {side} {column} contains tagged words"
        values = len({*cells})
        if len(rows) >= minimum and _look_like_names(cells, others) and (is_first or values * MANY <= len(cells)):
            remedy = f"; if it is a chat, give {chat}" if chat and is_first and values > 1 else ""
            return f"the {side} {column} has {pluralize(values, 'value')}, like names or labels{remedy}"
    if _mostly(rows, _are_alike):
        return f"the {column}s contain the same text"
    letters = {cell for cell in seconds if _CHOICE.fullmatch(cell)}
    if len(letters) > 1 and _mostly([*filter(None, seconds)], letters.__contains__):
        return f"the second {column} contains letters of multiple-choice options"
    scripts = _find_scripts(firsts), _find_scripts([_PART_OF_SPEECH.sub("", cell) for cell in seconds])
    return f"the {column}s are in different languages" if all(scripts) and scripts[0].isdisjoint(scripts[1]) else ""


def guess_fields(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Guess the roles of fields from their values.

    Returns:
        A dictionary from roles to field names. The roles are "speaker", "text" and "time"; "id", "parent" and "text";
        or "question" and "answer". The dictionary is empty if no guess is possible.
    """
    times = [field for field, values in fields.items() if detect_time_form(values)[0] not in ("", "days")]
    texts = [field for field, values in fields.items() if field not in times and _mostly(values, _is_text)]
    *_, other, text = ["", "", *sorted(texts, key=lambda field: sum(map(len, {*fields[field]})))]
    if have_codes(value for field in (other, text) for value in fields.get(field, ())):
        return {}
    rest = [field for field in fields if field not in (*times, text)] if text else []
    people = [name for name in rest if len({*fields[name]}) > 1 and _look_like_names(fields[name], fields[text])]
    people = [name for name in people if not _mostly(fields[name], _CLOCK.search)]
    for key, parent in itertools.permutations(rest[:MAX_IDS], 2):
        ids = fields[key]
        are_ids = len({*ids}) == len(ids) > len(fields[parent]) > 1 and {*ids}.issuperset(fields[parent])
        # A column of small numbers that looks like parent ids may contain numbered speakers instead.
        if are_ids and (parent not in people or not all(map(str.isdecimal, ids))):
            return {"id": key, "parent": parent, "text": text}
    if people:
        speaker = max(people, key=lambda field: (_mostly(fields[field], _is_text), _count_runs(fields[field])))
        return {"speaker": speaker, "text": text, "time": "".join(times[:1])}
    question, answer = [field for field in texts if field in (other, text)] if other else ("", "")
    pairs = [*zip(fields.get(question, ()), fields.get(answer, ()), strict=False)]
    differ = len({question for question, _ in pairs}) > 1
    return {"question": question, "answer": answer} if differ and not find_doubt(pairs) else {}


def has_column_without_text(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether one of the columns contains only numbers, dates, addresses or ids, ignoring the first row."""
    return any(_mostly(cells, _is_no_text) for _, *cells in zip(*rows, strict=True) if cells)


def is_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is a header, i.e. has a word above a column of numbers, dates, addresses or ids."""
    columns = zip(first, *below, strict=True)
    return any(_is_text(name) and _mostly(cells, _is_no_text) for name, *cells in columns if cells)


def _is_text(cell: str) -> bool:
    return bool(cell.strip()) and not _is_no_text(cell)


def _is_no_text(cell: str) -> bool:
    """Return whether a cell is a number, a date, a time, an address or an id."""
    remainder = cell if NUMBER_CHARACTERS.issuperset(cell) else DATE_WORDS.sub(" ", cell.casefold())
    is_date = NUMBER_CHARACTERS.issuperset(remainder) and any(map(str.isdigit, remainder))
    return is_date or ADDRESS.fullmatch(cell) is not None


def _are_alike(row: Sequence[str]) -> bool:
    """Return whether the two texts of a row have the same length and mostly the same letters."""
    first, second = ("".join(filter(str.isalnum, cell[:MAX_CELL].casefold())) for cell in row)
    both = [*zip(first, second, strict=False)]
    if len(first) != len(second) or any(a != b and (a.isdigit() or b.isdigit()) for a, b in both):
        return False
    letters = [a == b for a, b in both if not a.isdigit()]
    return sum(letters) >= ALIKE * len(letters)


def _has_tags(cell: str) -> bool:
    return len(cell) > 2 and " " in cell and all("/" in word[1:] for word in cell.split())


def has_running_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first column counts the rows, like an index written by pandas."""
    cells = [row[0].strip() for row in rows]
    numbers = cells[1:] if cells[0] in ("", "Unnamed: 0") else cells
    if len(numbers) < 2 or not all(map(str.isdecimal, numbers)):
        return False
    return all(int(after[:18]) - int(before[:18]) == 1 for before, after in itertools.pairwise(numbers))


def _mostly(cells: Sequence[Cell], fits: Callable[[Cell], object]) -> bool:
    return sum(map(bool, map(fits, cells))) >= MOSTLY * len(cells)


def _look_like_names(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether the cells of a column look like names, not texts.

    Names are short and recur often or in non-adjacent rows; repeated answers are usually adjacent. A column with a
    single value also looks like names. `others` are the cells of the other column.
    """
    values = set(cells)
    if len(values) == 1:
        return len(set(others)) > 1
    is_repeated = _count_runs(cells) > len(values) or len(values) * MANY <= len(cells)
    return is_repeated and len(values) < len(set(others)) and all(map(_is_name_like, values))


def _count_runs(cells: Sequence[str]) -> int:
    return 1 + sum(first != second for first, second in itertools.pairwise(cells))


def _is_name_like(value: str) -> bool:
    max_length = CHINESE_NAME if _CHINESE.search(value[:NAME]) else NAME
    return len(value) <= max_length and _SENTENCE.search(value) is None


def _find_scripts(cells: Sequence[str]) -> set[str]:
    """Return the scripts (such as Latin or Chinese) that occur in nearly all cells."""
    return {script for script in _SCRIPTS if _mostly(cells, re.compile(f"[{script}]").search)}


def _check_record(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return why a question field and an answer field may not form pairs, judging by their names and values."""
    question, answer, *_ = bound.values()
    doubt = _check_sides(values, bound, unit)
    if doubt or names.is_in_class("instructions", question):
        return doubt
    inputs = [field for field in (question, bound.get("inputs")) if field]
    rows = [
        (_one_line_text([value.get(field) for field in inputs]), _one_line_text(value.get(answer))) for value in values
    ]
    return find_doubt(rows, unit, minimum=MANY)


def _check_sides(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return why a question field and an answer field may not form pairs, judging by the names of all fields."""
    question, answer, *_ = bound.values()
    fields = names.keys_of(values)
    verdict = names.find_field("verdicts", fields)
    if verdict and len({text_of(value.get(verdict)) for value in values}) > 1:
        return f"{verdict!r} may mark the correct answers"
    sides = {names.key_of(question), names.key_of(answer)}
    if sides <= {*names.CLASSES["translations"]}:
        return "the texts may be translations"
    unknown = [field for key, field in fields.items() if field and key not in names.KNOWN]
    if unknown and (sides <= {*names.CLASSES["sides"]} or names.is_in_class("texts", question)):
        return _unknown_fields(unknown)
    return ""


def _check_speakers(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return why messages with named speakers may not be a chat, or an empty string.

    `unit` is the name of the field that contains the messages.
    """
    speaker = bound.get("speakers") or bound["mine"]
    people = speaker_names(value.get(speaker) for value in values)
    known = {*bound.values(), *names.find_fields("counters", names.keys_of(values))}
    others = [*dict.fromkeys(name for value in values for name in value if name not in known)]
    is_chat = names.is_in_class("talks", unit) or "chats" in bound
    if not all(people):
        return "some messages have no speaker"
    if others:
        return _unknown_fields(others)
    if not is_chat and "mine" not in bound and not names.is_in_class("senders", speaker):
        return "the messages may be comments or posts"
    if is_chat or len({*people}) not in (1, len(people)):
        return ""
    return "nobody writes twice, or only one person writes"


def _check_roles(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return why messages with roles are ambiguous (unknown roles, or newest message first), or an empty string."""
    role = next(iter(bound.values()))
    if doubt := _doubt_about_roles(speaker_names(value.get(role) for value in values)):
        return doubt
    time = names.find_field("times", names.keys_of(values))
    times = [text_of(value.get(time)) for value in values]
    form, *_ = detect_time_form(times)
    parsed = [second for text in times if form and (second := seconds(text, form)) is not None]
    is_reversed = len(parsed) > 1 and parsed == sorted(parsed, reverse=True) != sorted(parsed)
    return "the newest message comes first; reverse the list with reverse(...)" if is_reversed else ""


def _check_utterances(values: Sequence[Any], bound: Mapping[str, str], unit: str) -> str:
    """Return why lists of texts may not be conversations, or an empty string."""
    conversations = values
    for field in bound.values():
        known = {field, *names.find_fields("counters|ids|chats|times", names.keys_of(values))}
        unknown = [name for name, part in values[0].items() if name not in known and isinstance(part, str)]
        if unknown:
            return _unknown_fields(unknown)
        conversations = [value[field] for value in values if isinstance(value.get(field), list)]
    utterances = ([text or "" for text in texts] for texts in conversations)  # Converts null to "".
    return _doubt_about_roles([name for texts in utterances for name, _ in split_by_speaker(texts) or ()])


def _doubt_about_roles(speakers: Sequence[str]) -> str:
    """Return a message if some speakers are known roles and others are not, or an empty string."""
    unknown = [name for name in speakers if names.key_of(name) not in names.ROLES]
    are_mixed = unknown and len(unknown) < len(speakers)
    return f"the role {one_line(unknown[0], 20)!r} is unknown" if are_mixed else ""


def _unknown_fields(fields: Sequence[str]) -> str:
    return f"unknown fields: {one_line(fields[0].casefold(), 20)}{', ...' if len(fields) > 1 else ''}"


def _one_line_text(value: object) -> str:
    return " ".join(text_of(value).split())


# The functions that rows of layouts.yaml can name under `check`. A check returns why the user must be asked, or "".
# Its arguments are the values, the field for each class of names.yaml, and the word for a field in messages.
CHECKS: dict[str, Callable[[Sequence[Any], Mapping[str, str], str], str]] = {
    "record": _check_record,
    "roles": _check_roles,
    "sides": _check_sides,
    "speakers": _check_speakers,
    "utterances": _check_utterances,
}


def _are_asked(parts: Sequence[Any], field: str) -> bool:
    """Return whether values can be questions. Lists of phrasings are allowed only in fields such as "questions"."""
    are_lists = isinstance(parts[0], list)
    return any(isinstance(part, str | list) for part in parts) and (
        not are_lists or names.is_in_class("several", field)
    )


def _are_answers(parts: Sequence[Any], field: str) -> bool:
    are_labels = any(isinstance(part, int | float) for part in parts) and names.key_of(field) in ("target", "tgt")
    return any(map(alternatives, parts)) and not are_labels


def _are_passages(parts: Sequence[Any], field: str) -> bool:
    return isinstance(parts[0], list) and all(isinstance(part, str) for part in parts[0]) and any(parts[0])


def _are_roles(parts: Sequence[Any], field: str) -> bool:
    """Return whether values are roles. If all roles are known, at least one must be a role that answers."""
    roles = {*map(names.key_of, speaker_names(parts))}
    known = roles & names.ROLES
    are_sides = known & names.ANSWERING and (known & names.ASKING or known <= names.ANSWERING)
    return bool(known and (known != roles or are_sides))


def _are_speakers(parts: Sequence[Any], field: str) -> bool:
    people = speaker_names(parts)
    return any(people) and names.ROLES.isdisjoint(map(names.key_of, people))


def _are_utterances(parts: Sequence[Any], field: str) -> bool:
    turns = [turn for part in parts if isinstance(part, list) for turn in part]
    return bool(turns) and all(isinstance(turn, str) for turn in turns)


def _are_twos(parts: Sequence[Any], field: str) -> bool:
    turns = [turn for part in parts if isinstance(part, list) for turn in part]
    return bool(turns) and all(isinstance(turn, list) and [*map(type, turn)] == [str, str] for turn in turns)


def _are_turns(parts: Sequence[Any], field: str) -> bool:
    are_lists = isinstance(parts[0], list) and len(parts[0]) > 1
    return are_lists and all(isinstance(text, str | None) for part in parts for text in part)


def _are_marked(parts: Sequence[Any], field: str) -> bool:
    """Return whether each value is a text that contains a whole conversation, with marks or names before the turns."""
    if not all(isinstance(part, str) for part in parts):
        return False
    if all(split_dialogue(part) or split_utterances(part) for part in parts):
        return True
    return names.is_in_class("talks", field) and all(
        split_by_speaker(part.strip().splitlines(), sure=True) for part in parts
    )


# If a signature in layouts.yaml requires one of these kinds, all fields with a suitable name are tried, not just the
# first one.
SEARCHED = ("flag", "marked", "texts", "twos", "utterances")
# The kinds that signatures in layouts.yaml can name. A kind is a condition on the values of a field.
KINDS: dict[str, Callable[[Sequence[Any], str], bool]] = {
    "answers": _are_answers,
    "asks": _are_asked,
    "flag": lambda parts, field: {str(part).casefold() for part in parts} <= YES | NO,
    "lists": lambda parts, field: all(isinstance(part, list | None) for part in parts),
    "marked": _are_marked,
    "passages": _are_passages,
    "roles": _are_roles,
    "said": lambda parts, field: any(text_of(part).strip() for part in parts),
    "speakers": _are_speakers,
    "texts": lambda parts, field: all(isinstance(part, str | None) for part in parts),
    "turns": _are_turns,
    "twos": _are_twos,
    "utterances": _are_utterances,
}

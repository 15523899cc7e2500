"""Why a reading may be wrong, so that it is asked about; and what fields may be whose names are not known.

Two columns are no question and its answer if they are no texts, or names, labels, choices, or in two languages. Fields
with known names are in doubt where another field, or what somebody is called, says something else: CHECKS.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from chatbot.corpus.reading import names
from chatbot.corpus.reading.marked_text import labelled
from chatbot.corpus.reading.texts import have_codes, said_by, text_of
from chatbot.corpus.reading.times import form_of, seconds
from chatbot.display import CHINESE_OR_KANA, counted, one_line

DATE_WORDS = re.compile(
    r"(?<![a-z])(am|pm|a\.m\.|p\.m\.|t|z|utc|gmt|mon|tue|wed|thu|fri|sat|sun|"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)(?![a-z])|上午|下午|凌晨|早上|中午|晚上|"
    r"星期.|周[一二三四五六日]|[年月日号時时分秒元块岁]"
)
NUMBER_CHARACTERS = frozenset("0123456789 \t/.:,-+[]()%$€£¥￥")
# An address of mail or of a page, a path or the name of a file, an id.
ADDRESS = re.compile(
    r"[^\s@]{1,64}@[^\s@]{1,255}|(?:https?://|www\.)\S*|(?:[A-Za-z]:\\|/)[^\s?？]*|[\w-]{1,64}\.[A-Za-z]\w{1,3}"
    r"|(?=[^\W_]*\d)(?=\d*[A-Za-z])[0-9A-Za-z_-]{6,64}"
)
QUESTION_MARKS = ("?", "？", "؟", ";")
LONGEST_CELL = 300  # characters; a longer cell is text
LEAST_ROWS = 3  # fewer tell nothing: "a\ta" and "a\tb" may be two answers to one question
MOST = 0.9  # of the cells; a few may be damaged
ALIKE = 0.7  # of the letters of a text with mistakes and of the corrected one
MANY = 6  # rows for each value: ordinary questions have fewer answers, and answers fewer questions
NAME, CHINESE_NAME = 20, 6  # characters
MOST_IDS = 200  # fields, each of which may have the ids of each other: a line of prose may have thousands of commas

Cell = TypeVar("Cell")
_CLOCK = re.compile(r"(?<!\d)\d{1,2}[:：]\d{2}(?!\d)")
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")
_SCRIPTS = (
    *("A-Za-z\u00c0-\u024f", CHINESE_OR_KANA, "\uac00-\ud7af", "\u0400-\u052f"),
    *("\u0370-\u03ff", "\u0590-\u05ff", "\u0600-\u06ff", "\u0900-\u097f", "\u0e00-\u0e7f"),
)
_CHOICE = re.compile(r"[(（]?(?:[A-H]{1,4}|[a-h])[)）.]?|[A-H](?:[,、 ] ?[A-H]){1,4}")
_PART_OF_SPEECH = re.compile(r"(?:[a-z]{1,6}\.[/&,、;；\s]*)+")  # of the words in a list: "n. ", "vt./vi. "
_SENTENCE = re.compile(r"[，。！？…!?]|[.,;]\s|\S+\s+\S+\s+\S+\s+\S+")


def doubt_of(rows: Sequence[Sequence[str]], column: str = "column", chat: str = "", least: int = LEAST_ROWS) -> str:
    """Return why these rows of two columns may be no pairs, "" if they are.

    column: what the sides of a row are called. chat: the flag for a chat, if the first ones may be names of people.
    least: rows that tell names and labels from texts; more are needed where the sides are named.
    Every text is a possible answer, so only what people do not write as a question or an answer is a reason.
    """
    rows = [*dict.fromkeys((row[0], row[1]) for row in rows)]  # repeated pairs tell nothing about their columns
    if len(rows) < LEAST_ROWS:
        return ""
    firsts, seconds = ([row[side].strip()[:LONGEST_CELL] for row in rows] for side in range(2))
    asked = sum(cell.endswith(QUESTION_MARKS) for cell in firsts) * 2 >= len(firsts)
    sides = (("first", firsts, seconds), ("second", seconds, firsts))
    for side, cells, others in sides[: 1 if asked else 2]:
        is_first = side == "first"
        if _mostly(cells, _is_no_text):
            return f"the {side} {column} has numbers, addresses or ids"
        if _mostly(cells, _CLOCK.search):
            return f"the {side} {column} has times"
        if _mostly(cells, _has_tags):
            return f"the {side} {column} has words with tags"
        values = len({*cells})
        if len(rows) >= least and _come_again(cells, others) and (is_first or values * MANY <= len(cells)):
            remedy = f"; if it is a chat, give {chat}" if chat and is_first and values > 1 else ""
            return f"the {side} {column} has {counted(values, 'value')}, as names or labels have{remedy}"
    if _mostly(rows, _are_alike):
        return f"the {column}s have the same text"
    letters = {cell for cell in seconds if _CHOICE.fullmatch(cell)}
    if len(letters) > 1 and _mostly([*filter(None, seconds)], letters.__contains__):
        return f"the second {column} has letters, as of choices"
    scripts = _scripts_of(firsts), _scripts_of([_PART_OF_SPEECH.sub("", cell) for cell in seconds])
    return f"the {column}s are in two languages" if all(scripts) and scripts[0].isdisjoint(scripts[1]) else ""


def suggested(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the fields that may be speaker, text and time, or id, parent and text, or else question and answer.

    fields: the first values of each. Returns {} where nothing may be any of these.
    """
    times = [field for field, values in fields.items() if form_of(values)[0] not in ("", "days")]
    texts = [field for field, values in fields.items() if field not in times and _mostly(values, _is_text)]
    *_, other, text = ["", "", *sorted(texts, key=lambda field: sum(map(len, {*fields[field]})))]
    if have_codes(value for field in (other, text) for value in fields.get(field, ())):
        return {}
    rest = [field for field in fields if field not in (*times, text)] if text else []
    people = [name for name in rest if len({*fields[name]}) > 1 and _come_again(fields[name], fields[text])]
    people = [name for name in people if not _mostly(fields[name], _CLOCK.search)]
    for key, parent in itertools.permutations(rest[:MOST_IDS], 2):
        ids = fields[key]
        are_ids = len({*ids}) == len(ids) > len(fields[parent]) > 1 and {*ids}.issuperset(fields[parent])
        if are_ids and (parent not in people or not all(map(str.isdecimal, ids))):  # 1 and 2 may be people, too
            return {"id": key, "parent": parent, "text": text}
    if people:
        speaker = max(people, key=lambda field: (_mostly(fields[field], _is_text), _runs(fields[field])))
        return {"speaker": speaker, "text": text, "time": "".join(times[:1])}
    question, answer = [field for field in texts if field in (other, text)] if other else ("", "")
    pairs = [*zip(fields.get(question, ()), fields.get(answer, ()), strict=False)]
    differ = len({question for question, _ in pairs}) > 1
    return {"question": question, "answer": answer} if differ and not doubt_of(pairs) else {}


def has_no_texts(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether one of the columns has numbers, dates, addresses or ids, below the first row."""
    return any(_mostly(cells, _is_no_text) for _, *cells in zip(*rows, strict=True) if cells)


def is_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has a word above a column of numbers, dates, addresses or ids."""
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
    """Return whether two texts have the same words, or the same letters but for a few that are corrected."""
    first, second = ("".join(filter(str.isalnum, cell[:LONGEST_CELL].casefold())) for cell in row)
    both = [*zip(first, second, strict=False)]
    if len(first) != len(second) or any(a != b and (a.isdigit() or b.isdigit()) for a, b in both):
        return False
    letters = [a == b for a, b in both if not a.isdigit()]
    return sum(letters) >= ALIKE * len(letters)


def _has_tags(cell: str) -> bool:
    return len(cell) > 2 and " " in cell and all("/" in word[1:] for word in cell.split())


def holds_running_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first column counts the rows, as the index that pandas writes below an empty name."""
    cells = [row[0].strip() for row in rows]
    numbers = cells[1:] if cells[0] in ("", "Unnamed: 0") else cells
    if len(numbers) < 2 or not all(map(str.isdecimal, numbers)):
        return False
    return all(int(after[:18]) - int(before[:18]) == 1 for before, after in itertools.pairwise(numbers))


def _mostly(cells: Sequence[Cell], fits: Callable[[Cell], object]) -> bool:
    return sum(map(bool, map(fits, cells))) >= MOST * len(cells)


def _come_again(cells: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether these cells are one value, or short ones that come again apart or many times, as names do.

    Several answers to one question stand together.
    """
    values = set(cells)
    if len(values) == 1:
        return len(set(others)) > 1
    is_repeated = _runs(cells) > len(values) or len(values) * MANY <= len(cells)
    return is_repeated and len(values) < len(set(others)) and all(map(_may_be_name, values))


def _runs(cells: Sequence[str]) -> int:
    return 1 + sum(first != second for first, second in itertools.pairwise(cells))


def _may_be_name(value: str) -> bool:
    longest = CHINESE_NAME if _CHINESE.search(value[:NAME]) else NAME
    return len(value) <= longest and _SENTENCE.search(value) is None


def _scripts_of(cells: Sequence[str]) -> set[str]:
    """Return the scripts in which nearly all of these cells have letters."""
    return {script for script in _SCRIPTS if _mostly(cells, re.compile(f"[{script}]").search)}


def _of_record(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return the doubt about a question and its answer, by the names of fields, or else by their values."""
    question, answer, *_ = bound.values()
    doubt = _of_sides(values, bound, unit)
    if doubt or names.is_of("instructions", question):
        return doubt
    asked = [field for field in (question, bound.get("inputs")) if field]
    rows = [(_on_a_line([value.get(field) for field in asked]), _on_a_line(value.get(answer))) for value in values]
    return doubt_of(rows, unit, least=MANY)


def _of_sides(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return the doubt about a question and its answer by their names, and by those of other fields."""
    question, answer, *_ = bound.values()
    fields = names.keys_of(values)
    verdict = names.first_of("verdicts", fields)
    if verdict and len({text_of(value.get(verdict)) for value in values}) > 1:
        return f"{verdict!r} may say which answers are right"
    sides = {names.key_of(question), names.key_of(answer)}
    if sides <= {*names.CLASSES["of_translations"]}:
        return "these may be translations"
    unknown = [field for key, field in fields.items() if field and key not in names.KNOWN]
    if unknown and (sides <= {*names.CLASSES["sides"]} or names.is_of("texts", question)):
        return _nothing_known(unknown)
    return ""


def _of_speakers(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return the doubt about messages whose speakers have names. unit: the name of the list in which they stand."""
    speaker = bound.get("speakers") or bound["mine"]
    said = said_by(value.get(speaker) for value in values)
    known = {*bound.values(), *names.all_of("counters", names.keys_of(values))}
    others = [*dict.fromkeys(name for value in values for name in value if name not in known)]
    is_chat = names.is_of("talks", unit) or "chats" in bound
    if not all(said):
        return "some messages have no speaker"
    if others:
        return _nothing_known(others)
    if not is_chat and "mine" not in bound and not names.is_of("senders", speaker):
        return "these may be comments or posts"
    return "nobody writes twice, or nobody else" if not is_chat and len({*said}) in (1, len(said)) else ""


def _of_roles(values: Sequence[Mapping[str, Any]], bound: Mapping[str, str], unit: str) -> str:
    """Return the doubt about roles that are not known, or about messages of which the newest come first."""
    role = next(iter(bound.values()))
    if doubt := _doubt_of_roles(said_by(value.get(role) for value in values)):
        return doubt
    time = names.first_of("times", names.keys_of(values))
    times = [text_of(value.get(time)) for value in values]
    form, *_ = form_of(times)
    known = [second for text in times if form and (second := seconds(text, form)) is not None]
    is_reversed = len(known) > 1 and known == sorted(known, reverse=True) != sorted(known)
    return "the newest message comes first; reverse the list with reverse(...)" if is_reversed else ""


def _of_utterances(values: Sequence[Any], bound: Mapping[str, str], unit: str) -> str:
    """Return the doubt about lists of texts, or about objects with a list of texts in a field."""
    conversations = values
    for field in bound.values():
        known = {field, *names.all_of("counters|ids|chats|times", names.keys_of(values))}
        beside = [name for name, part in values[0].items() if name not in known and isinstance(part, str)]
        if beside:
            return _nothing_known(beside)
        conversations = [value[field] for value in values if isinstance(value.get(field), list)]
    said = ([text or "" for text in texts] for texts in conversations)  # without null
    return _doubt_of_roles([name for texts in said for name, _ in labelled(texts) or ()])


def _doubt_of_roles(said: Sequence[str]) -> str:
    """Return the doubt about speakers of whom only some are known as roles."""
    unknown = [name for name in said if names.key_of(name) not in names.ROLES]
    is_partly = unknown and len(unknown) < len(said)
    return f"the role {one_line(unknown[0], 20)!r} is not known" if is_partly else ""


def _nothing_known(fields: Sequence[str]) -> str:
    return f"nothing is known of {one_line(fields[0].casefold(), 20)}{', ...' if len(fields) > 1 else ''}"


def _on_a_line(value: object) -> str:
    return " ".join(text_of(value).split())


# What a row of layouts.yaml may name: from values, the fields that stand for its classes, and what a field is called,
# to the reason to ask.
CHECKS: dict[str, Callable[[Sequence[Any], Mapping[str, str], str], str]] = {
    "record": _of_record,
    "roles": _of_roles,
    "sides": _of_sides,
    "speakers": _of_speakers,
    "utterances": _of_utterances,
}

"""Records of an instruction or question and its answer, with what belongs to them: an input, a context, a history.

    Alpaca   {"instruction": ..., "input": ..., "output": ...}
    Dolly    {"instruction": ..., "context": ..., "response": ..., "category": ...}
    Qwen     {"query": ..., "response": ..., "history": [[query, response], ...]}

The question is the instruction and the input or context together. The pairs of the history come before the record's
own. A list of utterances as context, or as history without a question, holds the turns before the answer.
"""

import functools
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.pair import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.reading.report import UNUSED_FIELDS
from chatbot.corpus.reading.tables.columns import ANSWERS, INPUTS, named

HISTORIES = ("history", "context")  # turns before the answer, as a list; a context may be text of the question, too
# Fields that nobody expects to be used: numbers, and what data/ratings.jsonl says of a reply.
UNUSED = frozenset({"id", "idx", "index", "rating", "model", "time", "rejected_model"})


_MARKS = re.compile(r"(?:(?<!\s)\s+)?(?:<\|[A-Za-z ]+\|>:?\s*|<eo[a-z]>\s*)")  # around the texts of MOSS


class _Fields(NamedTuple):
    """The names of a record's fields."""

    question: str
    answer: str
    inputs: tuple[str, ...]
    histories: tuple[str, ...]
    others: tuple[str, ...]


def pairs_of_record(record: dict[str, object], drop: Callable[[str], None]) -> list[Pair] | None:
    """Return the pairs of a record, those of its history first; None if its fields are not those of a record.

    Calls `drop` with a reason if a record has no text to use, and for each field with text that is not used.
    """
    fields = _fields_of(tuple(record))
    if fields is None:
        return None
    question_name, answer_name, inputs, histories, others = fields
    question, answer = record[question_name], record[answer_name]
    pairs: list[Pair] | None = None
    if isinstance(question, str) and isinstance(answer, str):
        for name in inputs:
            if isinstance(text := record[name], str) and text.strip():
                question = f"{question}\n{text}"
        if answer_name.casefold() == "moss":
            question, answer = _MARKS.sub("", question), _MARKS.sub("", answer)
        pairs = [(question, answer, NEW)]
        for name in histories:
            if isinstance(history := record[name], list) and history:
                pairs = _pairs_after(history, question, answer)
    elif isinstance(question, list):
        pairs = _pairs_of_turns([*question, answer])
    if pairs is None:
        drop("records without question and answer")
        return []
    for name in others:
        if isinstance(text := record[name], str) and text.strip():
            drop(f"{UNUSED_FIELDS}: {one_line(name, 20)}")
    return pairs


def _pairs_after(history: list[object], question: str, answer: str) -> list[Pair] | None:
    """Return the pairs of the history, a list of turns or of pairs, and of the question; None if it is not text."""
    if isinstance(history[0], str):
        return _pairs_of_turns([*history, question, answer])
    pairs: list[Pair] = []
    for turn in history:
        texts = list(turn.values()) if isinstance(turn, dict) else turn
        if not isinstance(texts, list) or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            return None
        pairs.append((texts[0], texts[1], NEXT if pairs else NEW))
    return [*pairs, (question, answer, NEXT)]


def _pairs_of_turns(turns: Sequence[object]) -> list[Pair] | None:
    texts = [turn for turn in turns if isinstance(turn, str)]
    if len(texts) < len(turns):
        return None
    return [(first, second, OVERLAP if i else NEW) for i, (first, second) in enumerate(pairwise(texts))]


@functools.lru_cache(maxsize=256)  # the records of a file have the same fields
def _fields_of(names: tuple[str, ...]) -> _Fields | None:
    by_lower = {name.strip().casefold(): name for name in reversed(names)}
    histories = tuple(by_lower[name] for name in HISTORIES if name in by_lower)
    places = named(names)
    if places is not None:
        question, answer = names[places[0]], names[places[1]]
        inputs = tuple(by_lower[name] for name in INPUTS if name in by_lower)
    else:
        found = next((by_lower[name] for name in ANSWERS if name in by_lower), None)
        if found is None or not histories:
            return None
        question, answer, inputs = histories[-1], found, ()
    inputs = tuple(name for name in inputs if name != question)
    used = {question, answer, *inputs, *histories}
    others = tuple(name for name in names if name not in used and name.casefold() not in UNUSED)
    return _Fields(question, answer, inputs, histories, others)

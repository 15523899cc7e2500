"""Records of a question and its answer, with what belongs to them: an input, a context, a history.

    Alpaca   {"instruction": ..., "input": ..., "output": ...}
    Dolly    {"instruction": ..., "context": ..., "response": ..., "category": ...}
    Qwen     {"query": ..., "response": ..., "history": [[query, response], ...]}
    FAQ      {"questions": [phrasing, phrasing], "answer": ...}, {"patterns": [...], "responses": [...]}

The question is the instruction and the input or context together. The pairs of the history come before the record's
own. A list of utterances as context, or as history without a question, holds the turns before the answer. Several
phrasings of a question and several answers give a pair of each with each. A question that is a dialogue with marks
("Human: ... Assistant:") is divided into its turns.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Literal, NamedTuple

from chatbot.corpus.reading.conversation import NEW, Pair, pairs_of_texts
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.formats.columns import ANSWERS, INPUTS, NAMES, named
from chatbot.corpus.reading.formats.fields import (
    CHATS,
    CONVERSATION,
    HEAD,
    NO_PAIR,
    SPEAKERS,
    TEXTS,
    TIMES,
    Walk,
    by_lower,
    text_of,
)
from chatbot.corpus.reading.formats.marked_text import (
    pairs_of_dialogue,
    separated,
    side,
    turns_of,
    without_mark,
)
from chatbot.corpus.reading.formats.messages import asks, kind_of, pairs_of_roles, said_by
from chatbot.corpus.reading.report import UNUSED_FIELDS

FIELDS = (  # of records of people and goods
    *("姓名", "名字", "电话", "手机", "年龄", "性别", "地址", "邮箱", "职业", "城市", "价格", "数量", "颜色", "名称"),
    *("备注", "rejected", "history", "candidates"),
)
KNOWN = frozenset(NAMES).union(SPEAKERS, TEXTS, TIMES, CHATS, CONVERSATION, FIELDS)
QUESTION = (
    "the keys may be questions or the names of fields: give --columns 1 2 to learn each key as a question and its "
    "value as the answer"
)
_ID = re.compile(r"(?=[^\s]*\d)[\w.:/#-]+", re.ASCII)


def reading_of(value: Mapping[str, object]) -> Literal["map", "conversations"] | None:
    """Return how an object of texts, or of lists of texts, is read; None for any other object.

    It may be a map of questions and their answers; under ids, lists are conversations.
    """
    if not value or not all(map(_is_answer, value.values())) or any(key.strip().casefold() in KNOWN for key in value):
        return None
    if all(map(_ID.fullmatch, value)):
        return "conversations" if any(isinstance(part, list) for part in value.values()) else None
    return "map"


def pairs_of_entry(question: str, answer: object) -> Iterator[Pair]:
    """Yield the question with each of its answers."""
    parts: Iterable[object] = answer if isinstance(answer, list) else [answer]
    for part in parts:
        if (text := text_of(part)) is not None:
            yield question, text, NEW


def _is_answer(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(part, str) for part in value)
    return isinstance(value, str) or (text_of(value) is not None and not isinstance(value, dict))


HISTORIES = ("history", "context")  # turns before the answer, as a list; a context may be text of the question, too
# Lists of the phrasings of one question, alone or beside it.
PHRASINGS = {
    *("question", "questions", "q", "patterns", "faq_question", "similar_questions", "extend_questions"),
    *("similar_question", "extended_questions", "alternatives", "utterances", "aliases"),
    *("问题", "问", "标准问题", "标准问", "相似问题", "相似问", "扩展问", "提问"),
}
EXTRA = PHRASINGS - {"q", "question", "问题", "问", "提问", "utterances"}
PROMPTS = ("conversations", "messages")  # before a chosen and a rejected reply
# Names of an answer that may be a number, and of one that answers a text without another name. Others may be labels.
NUMBERS = frozenset(ANSWERS) - {"target", "tgt", "chosen"}
REPLIES = ("answer", "reply", "response", "回复", "回答", "答案", "答复")
# Fields that nobody expects to be used: numbers, and what data/ratings.jsonl says of a reply.
UNUSED = frozenset(
    {"id", "idx", "index", "rating", "model", "time", "rejected_model", "written_to", "_id", "qid", "answer_id"}
)

_MARKS = re.compile(r"<\|[A-Za-z ]+\|>:?|<eo[a-z]>")  # around the texts of MOSS


class _Fields(NamedTuple):
    """The names of a record's fields."""

    question: str  # "" for a record of an answer that contains the dialogue
    answer: str
    inputs: tuple[str, ...]
    histories: tuple[str, ...]
    phrasings: tuple[str, ...]
    others: tuple[str, ...]


def pairs_of_record(record: dict[str, object], walk: Walk) -> list[Pair] | None:
    """Return the pairs of a record, those of its history first; None if its fields are not those of a record.

    Drops a record that has no text to use with its reason, and counts each field with text that is not used.
    """
    fields = _fields_of(tuple(record))
    if fields is None:
        return None
    question, answer = record.get(fields.question), record[fields.answer]
    if isinstance(question, str) and isinstance(answer, str) and not fields.phrasings:
        pairs: list[Pair] | None = _pairs(record, fields, [question], [answer], walk)
    else:
        questions, answers = _questions(question, record, fields), _answers(answer)
        if answers and isinstance(question, list) and len(question) > 1 and questions:
            name = fields.question.casefold()
            if name in HISTORIES:
                return pairs_of_texts([*questions, answers[0]])
            parallel = isinstance(answer, list) and len(answer) == len(question) and name != "patterns"
            if parallel or name not in PHRASINGS:  # two columns, turns, phrasings?
                walk.fields = walk.fields or (fields.question, fields.answer)
                walk.drop(NO_PAIR)
                return []
        pairs = _pairs(record, fields, questions, answers, walk) if answers else None
        messages = [answer] if isinstance(answer, dict) else answer
        if isinstance(messages, list) and kind_of(messages[:HEAD], True) == "roles":
            prompt = question if isinstance(question, list) else [said_by("user", question)] if question else []
            pairs = [*pairs_of_roles(messages if asks(messages[0]) else [*prompt, *messages], messages, walk)]
    is_number = isinstance(answer, int | float | Decimal) and fields.answer.casefold() not in NUMBERS
    if not pairs or is_number or (len(pairs) == 1 and not all(map(str.strip, pairs[0][:2]))):
        walk.drop(NO_PAIR)
        return []
    for name in fields.others:
        if isinstance(text := record[name], str) and text.strip():
            walk.drop(f"{UNUSED_FIELDS}: {one_line(name, 20)}")
    return pairs


def _pairs(
    record: dict[str, object], fields: _Fields, questions: Sequence[str], answers: Sequence[str], walk: Walk
) -> list[Pair]:
    """Return the pairs of each question with each answer, after those of the history."""
    if not fields.question:
        turns = turns_of(answers[0])
        return pairs_of_dialogue(turns) if turns else []
    pairs: list[Pair] = []
    for question, answer in product(questions, answers):
        for name in fields.inputs:
            if isinstance(text := record[name], str) and text.strip():
                question = f"{question}\n{text}" if question.strip() else text
        if fields.answer.casefold() == "moss":
            question, answer = _MARKS.sub("", question).strip(), _MARKS.sub("", answer).strip()
        pairs += _pairs_of_texts(question, answer)
    for name in fields.histories:
        if isinstance(history := record[name], list) and history and len(pairs) == 1:
            return _pairs_after(history, pairs[0][0], pairs[0][1], walk)
    return pairs


def _pairs_of_texts(question: str, answer: str) -> list[Pair]:
    """Return the pair, or the pairs of a question that is a dialogue with marks."""
    turns = turns_of(question if question.strip() else answer)
    if turns is not None and question.strip():
        if not turns[-1].asks and not turns[-1].text:
            turns.pop()
        return pairs_of_dialogue([*turns, side(False, without_mark(answer))])
    if turns is not None:
        return pairs_of_dialogue(turns)
    if "__eo" in question and (utterances := separated(question)) is not None:
        return pairs_of_texts([*utterances, answer.replace("__eou__", "").replace("__eot__", "").strip()])
    return [(question, answer, NEW)]


def _pairs_after(history: list[object], question: str, answer: str, walk: Walk) -> list[Pair]:
    """Return the pairs of the history, a list of turns, of messages or of pairs, and of the question.

    Returns none if the history has anything else.
    """
    if isinstance(history[0], str):
        texts = [turn for turn in history if isinstance(turn, str)]
        return pairs_of_texts([*texts, question, answer]) if len(texts) == len(history) else []
    messages = history if kind_of(history[:HEAD], True) == "roles" else []
    for value in history if not messages else ():
        sides = [*value.values()] if isinstance(value, dict) else value
        if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(text, str) for text in sides):
            return []
        messages += [said_by("user", sides[0]), said_by("assistant", sides[1])]
    messages = [*messages, said_by("user", question), said_by("assistant", answer)]
    return [*pairs_of_roles(messages, messages, walk)]


def _questions(question: object, record: dict[str, object], fields: _Fields) -> list[str]:
    """Return the phrasings of a question, [] if it is not text."""
    texts: list[str] = []
    for value in (question, *(record[name] for name in fields.phrasings)):
        parts = value if isinstance(value, list) else [text_of(value)] if isinstance(value, dict) else [value]
        if not all(isinstance(part, str | type(None)) for part in parts):
            return []
        texts += [part for part in parts if isinstance(part, str) and (part.strip() or len(parts) == 1)]
    return list(dict.fromkeys(texts))


def _answers(value: object) -> list[str]:
    """Return the answers in a value: a text, a number, or a list of them; of annotated spans, the first."""
    if isinstance(value, dict):
        inner = value.get("text")
        return _answers(inner[:1]) if isinstance(inner, list) else [] if inner is None else _answers(inner)
    if not isinstance(value, list):
        text = text_of(value)
        return [] if text is None else [text]
    if value and isinstance(value[0], dict) and "answer_start" in value[0]:
        value = value[:1]  # the same span as several people marked it
    texts = [text_of(part) for part in value if not isinstance(part, list)]
    known = [text for text in texts if text is not None]
    return list(dict.fromkeys(known)) if len(known) == len(value) else []


@functools.lru_cache(maxsize=256)  # the records of a file have the same fields
def _fields_of(names: tuple[str, ...]) -> _Fields | None:
    by_name = by_lower(names)
    histories = tuple(by_name[name] for name in HISTORIES if name in by_name)
    places = named(names)
    if "patterns" in by_name and "responses" in by_name:
        question, answer = by_name["patterns"], by_name["responses"]
    elif places is not None:
        question, answer = names[places[0]], names[places[1]]
    else:
        answer = next((by_name[name] for name in ANSWERS if name in by_name), "")
        phrasing = next((by_name[name] for name in by_name if name in EXTRA), "")
        text = next((by_name[name] for name in TEXTS if name in by_name), "") if answer.casefold() in REPLIES else ""
        if not answer or not (histories or phrasing or text or answer.casefold() == "chosen"):
            return None
        turns = (
            next((by_name[name] for name in PROMPTS if name in by_name), "") if answer.casefold() == "chosen" else ""
        )
        question = histories[-1] if histories else phrasing or text or turns
    inputs = tuple(by_name[name] for name in INPUTS if name in by_name and by_name[name] not in (question, answer))
    histories = tuple(name for name in histories if name != question)
    phrasings = tuple(by_name[name] for name in by_name if name in EXTRA and by_name[name] not in (question, answer))
    used = {question, answer, *inputs, *histories, *phrasings}
    others = tuple(name for name in names if name not in used and name.casefold() not in UNUSED)
    return _Fields(question, answer, inputs, histories, phrasings, others)

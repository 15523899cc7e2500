"""Tables as values: rows with a header, columns by their names, records with a parent, and fields the user names."""

from collections.abc import Mapping, Sequence

from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.corpus.reading.tables.columns import named
from chatbot.corpus.reading.values.fields import text_of, text_of_html
from chatbot.corpus.reading.values.question_map import pairs_of_entry, reading_of
from chatbot.corpus.reading.values.records import one_by_one
from chatbot.corpus.reading.values.walk import NO_PAIR, Walk


def header_of(head: Sequence[object]) -> list[str] | None:
    """Return the names of the columns, if these are the rows of a table and the first has the names of a pair."""
    rows = [row for row in head if isinstance(row, list)]
    if len(rows) < max(2, len(head)) or len({*map(len, rows)}) > 1 or not all(isinstance(n, str) for n in rows[0]):
        return None
    return rows[0] if named(tuple(rows[0])) else None


def pairs_of_columns(value: dict[str, object], walk: Walk, alone: bool) -> list[Pair] | None:
    """Return the pair of the fields that the user gave, None if the object lacks them."""
    names, columns = tuple(value), walk.options.columns
    places = named(names, columns)
    if places is None:
        numbered = columns in (("1", "2"), ("2", "1"))
        if (not alone and len(value) > 1) or not numbered or reading_of(value) is None:
            return None
        pairs = [pair for key, answer in value.items() for pair in pairs_of_entry(key, answer)]
        return pairs if columns[0] == "1" else [(answer, question, NEW) for question, answer, *_ in pairs]
    question, answer = value[names[places[0]]], value[names[places[1]]]
    if isinstance(question, list) and isinstance(answer, list):
        return one_by_one(question, answer)
    texts = text_of(question), text_of(answer)
    if texts[0] is None or texts[1] is None:
        walk.drop(NO_PAIR)
        return []
    return [(texts[0], texts[1], NEW)]


def records_of_columns(value: Mapping[str, object]) -> list[object] | None:
    """Return the records of a table as pandas writes it by columns or split; None for any other object."""
    if "columns" not in value and not isinstance(next(iter(value.values()), None), dict):
        return None
    columns, rows = value.get("columns"), value.get("data", value.get("rows"))
    if isinstance(columns, list) and isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows):
        names = [column.get("name") if isinstance(column, dict) else column for column in columns]
        if all(isinstance(name, str) for name in names):
            return [dict(zip(names, row, strict=False)) for row in rows]
    if len(value) > 1 and named(tuple(value)) and all(isinstance(part, dict) and part for part in value.values()):
        sides = [part for part in value.values() if isinstance(part, dict)]
        keys = [*sides[0]]
        if keys == [str(number) for number in range(len(keys))] and all([*side] == keys for side in sides):
            return [{name: side[key] for name, side in zip(value, sides, strict=True)} for key in keys]
    return None


def records_of_parent(value: Mapping[str, object]) -> list[object] | None:
    """Return the records in an object, each with the field of the object that they share; None for any other object.

    They are the questions about a paragraph, as SQuAD has them, the instances of a task of Self-Instruct, the answer
    to a prompt in the activities of Gemini, and what text-generation-webui shows, not what the model reads.
    """
    if isinstance(questions := value.get("qas"), list):
        text = value.get("context", value.get("context_text"))
        shared: dict[str, object] = {"context": text} if isinstance(text, str) else {}
    elif "instruction" in value and isinstance(questions := value.get("instances"), list):
        shared = {"instruction": value["instruction"]}
    elif isinstance(title := value.get("title"), str) and isinstance(items := value.get("safeHtmlItem"), list):
        question = title.removeprefix("Prompted ")  # of an activity in Gemini; other activities are no questions
        texts = [text_of_html(str(item.get("html", ""))) for item in items if isinstance(item, dict)]
        return [{"question": question, "answer": "\n".join(texts)}] if question != title else []
    elif "internal" in value and isinstance(visible := value.get("visible"), list):
        return visible
    else:
        return None
    return [{**shared, **part} if isinstance(part, dict) else part for part in questions]

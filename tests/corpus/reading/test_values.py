"""The pairs of values of JSON: by the names of fields, by --columns, and any value at all."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.objects import Located
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.values import pairs_of_values
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import Pairs, conversations_of, dropped, pairs_of, written

USER, ASSISTANT = {"role": "user", "content": "甲"}, {"role": "assistant", "content": "乙"}
NOTHING, ALONE = "records without question and answer", "conversations of one utterance"
SHAPES: dict[str, tuple[object, Pairs, dict[str, int]]] = {
    "utterances": (["甲", "乙", "丙"], [("甲", "乙"), ("乙", "丙")], {}),
    "a record": ({"question": "甲", "answer": "乙"}, [("甲", "乙")], {}),
    "other names": ({"Instruction": "甲", "input": "", "output": "乙"}, [("甲", "乙")], {}),
    "messages": ({"messages": [{"role": "system", "content": "x"}, USER, ASSISTANT, USER]}, [("甲", "乙")], {}),
    "a question twice": ({"messages": [{"role": "user", "content": "x"}, USER, ASSISTANT]}, [("甲", "乙")], {}),
    "ShareGPT": (
        {"id": "1", "conversations": [{"from": "human", "value": "甲"}, {"from": "gpt", "value": "乙"}]},
        [("甲", "乙")],
        {},
    ),
    "a dialog": ({"dialog": ["甲", "乙"], "emotion": ["x", "y"]}, [("甲", "乙")], {}),
    "conversations": ([["甲", "乙"], {"utterances": ["丙", "丁"]}], [("甲", "乙"), ("丙", "丁")], {}),
    "LCCC": ({"train": [["甲", "乙"]], "valid": [["丙", "丁"]]}, [("甲", "乙"), ("丙", "丁")], {}),
    "ChatterBot": ({"categories": ["x"], "conversations": [["甲", "乙"]]}, [("甲", "乙")], {}),
    "bare messages": ([USER, ASSISTANT], [("甲", "乙")], {}),
    "parts of text": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "甲"}, {"type": "image_url"}]}, ASSISTANT]},
        [("甲", "乙")],
        {},
    ),
    "Alpaca": ({"instruction": "译", "input": "hi", "output": "嗨"}, [("译\nhi", "嗨")], {}),
    "Dolly": (
        {"instruction": "Who?", "context": "Bob came.", "response": "Bob", "category": "qa"},
        [("Who?\nBob came.", "Bob")],
        {},
    ),
    "history of pairs": (
        {"query": "丙", "response": "丁", "history": [["甲", "乙"]]},
        [("甲", "乙"), ("丙", "丁")],
        {},
    ),
    "history of utterances": (
        {"query": "乙", "response": "丙", "history": ["甲"]},
        [("甲", "乙"), ("乙", "丙")],
        {},
    ),
    "history of records": (
        {"prompt": "丙", "response": "丁", "history": [{"user": "甲", "bot": "乙"}]},
        [("甲", "乙"), ("丙", "丁")],
        {},
    ),
    "no history": ({"query": "丙", "response": "丁", "history": None, "system": "s"}, [("丙", "丁")], {}),
    "context of turns": ({"context": ["甲", "乙"], "response": "丙"}, [("甲", "乙"), ("乙", "丙")], {}),
    "context alone": ({"context": "甲", "response": "乙"}, [("甲", "乙")], {}),
    "records of a document": (
        {"data": [{"question": "甲", "answer": "乙"}, {"question": "丙", "answer": "丁"}]},
        [("甲", "乙"), ("丙", "丁")],
        {},
    ),
}


@pytest.mark.parametrize(("value", "expected", "counts"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("format_name", ["jsonl", "json"])
def test_shapes_give_pairs(
    tmp_path: Path, format_name: str, value: object, expected: Pairs, counts: dict[str, int]
) -> None:
    line = json.dumps(value, ensure_ascii=False) + "\n"
    content = line * 2 if format_name == "jsonl" else json.dumps([value, value], ensure_ascii=False, indent=1)
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert pairs == expected * 2
    assert dropped(report) == {reason: 2 * count for reason, count in counts.items()}
    assert report.formats == [format_name]
    for indent in (None, 2):
        assert pairs_of(written(tmp_path, "a", json.dumps(value, indent=indent)))[0] == expected


def test_patterns_and_responses_of_an_intent_are_bounded(tmp_path: Path) -> None:
    """Of 200 of each, 40,000 pairs would be learned."""
    intents = [{"tag": "a", "patterns": ["甲", "乙"], "responses": ["丙", "丁"]}]
    intents.append(
        {"tag": "b", "patterns": [f"问{n}" for n in range(200)], "responses": [f"答{n}" for n in range(200)]}
    )
    pairs, report = pairs_of(written(tmp_path, "a.json", json.dumps({"intents": intents})))
    assert pairs == [("甲", "丙"), ("甲", "丁"), ("乙", "丙"), ("乙", "丁")]
    assert dropped(report) == {"records of more than 1,000 pairs": 1}


def test_a_tree_without_a_message_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '{"mapping": {"a": {"message": null}}, "current_node": []}')
    with pytest.raises(UserError, match="no known question and answer"):
        pairs_of(path)


def test_a_record_of_unknown_shape_below_others_is_counted(tmp_path: Path) -> None:
    lines = ['{"question": "甲", "answer": "乙"}'] * 60 + ['{"x": 1}', '{"answer": "丁", "question": "丙"}']
    pairs, report = pairs_of(written(tmp_path, "a.jsonl", "\n".join(lines)))
    assert pairs == [("甲", "乙")] * 60 + [("丙", "丁")]
    assert report.lines() == [f"{NOTHING}: 1 (first: {tmp_path / 'a.jsonl'}, line 61)"]


@pytest.mark.parametrize(
    ("content", "columns", "expected"),
    [
        ('{"frage": "甲", "antwort": "乙"}\n{"frage": "丙"}\n', ("frage", "ANTWORT"), [("甲", "乙")]),
        ('{"x": "甲", "y": "乙"}\n{"x": "丙", "y": "丁"}\n', ("2", "1"), [("乙", "甲"), ("丁", "丙")]),
        ('{"甲": "乙", "丙": ["丁", "戊"]}', ("1", "2"), [("甲", "乙"), ("丙", "丁"), ("丙", "戊")]),
        ('{"甲": "乙"}', ("2", "1"), [("乙", "甲")]),
        ('{"d": {"a": ["甲", "丙"], "b": ["乙", "丁"]}}', ("a", "b"), [("甲", "乙"), ("丙", "丁")]),
    ],
)
def test_columns_are_fields(tmp_path: Path, content: str, columns: tuple[str, str], expected: Pairs) -> None:
    assert pairs_of(written(tmp_path, "a", content), columns)[0] == expected


def test_unknown_columns_list_the_fields(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no fields x and z; give --columns and two of: x, y"):
        pairs_of(written(tmp_path, "a", '{"x": "甲", "y": "乙"}\n'), ("x", "z"))


@pytest.mark.parametrize(
    ("value", "doubt", "expression", "expected"),
    [
        (
            {"conversation": [["Ann", "甲"], ["Ben", "乙"], ["Ann", "丙"]]},
            "two texts may be a name and what it says, or a pair",
            "conversation[*].{speaker: [0], text: [1]}",
            [("甲", "乙"), ("乙", "丙")],
        ),
        (
            {"instruction": "甲", "instances": [{"input": "乙", "output": "丙"}]},
            "'instruction' beside it has a text, too",
            "instances[*].{question: input, answer: output}",
            [("乙", "丙")],
        ),
    ],
)
def test_names_that_fit_two_readings_are_asked_about(
    tmp_path: Path, value: object, doubt: str, expression: str, expected: Pairs
) -> None:
    """What is to be pasted reads the pairs that are shown."""
    path = written(tmp_path, "a.json", json.dumps(value))
    with pytest.raises(UserError) as error:
        pairs_of(path)
    assert str(error.value) == f"{path}: {doubt}; if the pairs above are right, give --map '{expression}'"
    assert pairs_of(path, map=expression)[0] == expected


def test_pairs_in_several_places_are_asked_about(tmp_path: Path) -> None:
    value = {"faq": {"items": [{"q": "甲", "a": "乙"}]}, "log": [{"question": "丙", "answer": "丁"}], "n": 1}
    path = written(tmp_path, "a.json", json.dumps(value))
    with pytest.raises(UserError, match=r"pairs in several places, .*; give --map with the one to read"):
        pairs_of(path)
    assert pairs_of(path, map="faq.items[].{question: q, answer: a}")[0] == [("甲", "乙")]


def test_history_links_its_pairs(tmp_path: Path) -> None:
    record = {"query": "戊", "response": "己", "history": [["甲", "乙"], ["丙", "丁"]]}
    found, _ = conversations_of(written(tmp_path, "a", json.dumps(record, ensure_ascii=False)))
    assert found == [["甲", "乙", "丙", "丁", "戊", "己"]]


NAMES = st.sampled_from(
    (
        *("question", "answer", "questions", "answers", "history", "context", "messages", "role", "content", "text"),
        *("from", "id", "parent_id", "replies", "prompt", "chosen", "mapping", "data", "columns", "qas", "patterns"),
        *("message", "current_node", "sender", "time", "chat", "internal", "visible", "senders", "senderID", "weflow"),
    )
)
TEXTS = st.sampled_from(("甲", "", "user", "assistant", "Human: a\nAssistant: b", "a __eou__ b", "[deleted]", "1"))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.just(1.5), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES | TEXTS, inner, max_size=5)),
    max_leaves=20,
)


@settings(max_examples=300)
@given(
    st.lists(VALUES, max_size=4),
    st.sampled_from(((), ("question", "answer"), ("1", "2"))),
    st.sampled_from(
        (None, "messages[].{speaker: from, text: text}", "{id: id, parent: parent_id, text: text}", "data")
    ),
)
def test_any_values_give_pairs_of_text_or_an_error(
    values: list[object], columns: tuple[str, ...], expression: str | None
) -> None:
    options = ReadOptions(columns, map=None if columns else expression)
    with contextlib.suppress(UserError):
        for question, answer, link in pairs_of_values(iter(values), options, Report(), Located("item", "a")):
            assert isinstance(question, str)
            assert isinstance(answer, str)
            assert link in range(3)

"""JSON Lines and JSON documents in the shapes that corpora use."""

import json
from pathlib import Path

import pytest

from chatbot.corpus.reading.formats import json_files
from chatbot.corpus.reading.formats.json_files import read_json
from chatbot.corpus.reading.open.text_file import open_text_files
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import VALID, Pairs, conversations, conversations_of, dropped, pairs_of, written

USER, ASSISTANT = {"role": "user", "content": "甲"}, {"role": "assistant", "content": "乙"}
SHAPES: dict[str, tuple[object, Pairs, dict[str, int]]] = {
    "utterances": (["甲", "乙", "丙"], [("甲", "乙"), ("乙", "丙")], {}),
    "a record": ({"question": "甲", "answer": "乙"}, [("甲", "乙")], {}),
    "other names": ({"Instruction": "甲", "input": "", "output": "乙"}, [("甲", "乙")], {}),
    "messages": (
        {"messages": [{"role": "system", "content": "x"}, USER, ASSISTANT, USER]},
        [("甲", "乙")],
        {"turns that no pair uses": 1},
    ),
    "a question twice": (
        {"messages": [{"role": "user", "content": "x"}, USER, ASSISTANT, ASSISTANT]},
        [("甲", "乙")],
        {"turns that no pair uses": 2},
    ),
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
    "a number": (["甲", 3, "乙", "丙"], [("乙", "丙")], {"utterances that are not text": 1}),
    "one utterance": (["甲"], [], {"conversations of one utterance": 1}),
    "too deep": (json.loads("[" * 20 + '"甲","乙"' + "]" * 20), [], {"values nested too deeply": 1}),
    "16 deep": (json.loads("[" * 16 + '"甲","乙"' + "]" * 16), [("甲", "乙")], {}),
    "numbered texts": (
        [[1, "甲"], [2, "乙"]],
        [],
        {"utterances that are not text": 2, "conversations of one utterance": 2},
    ),
    "names that speak twice": (
        {"conversation": [["Ann", "甲"], ["Ben", "乙"], ["Ann", "丙"], ["Ben", "丁"]]},
        [("甲", "乙"), ("乙", "丙"), ("丙", "丁")],
        {},
    ),
    "pairs that no names begin": (
        {"conversation": [["Ann", "甲"], ["Ben", "乙"], ["Ann", "丙"]]},
        [("Ann", "甲"), ("Ben", "乙"), ("Ann", "丙")],
        {},
    ),
    "a little deep": ([[[["甲"]]]], [], {"conversations of one utterance": 1}),
    "invalid messages": ({"messages": 3}, [], {"records without question and answer": 1}),
    "wrong kinds": ({"question": ["甲"], "answer": None}, [], {"records without question and answer": 1}),
    "a reply that was rated bad": (
        {"history": [["甲", "乙"]], "question": "丙", "rejected": "丁", "rating": "bad", "model": "m"},
        [],
        {"replies that were rated bad": 1},
    ),
    "a reply that was rated good": (
        {"history": [], "question": "甲", "answer": "乙", "rating": "good", "model": "m", "time": "t"},
        [("甲", "乙")],
        {},
    ),
    "an empty record": ({}, [], {"records without question and answer": 1}),
    "no answer": ({"messages": [USER]}, [], {"conversations of one utterance": 1}),
    "parts of text": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "甲"}, {"type": "image_url"}]}, ASSISTANT]},
        [("甲", "乙")],
        {},
    ),
    "KdConv": (
        {"messages": [{"message": "甲", "attrs": [{"name": "x"}]}, {"message": "乙"}], "name": "x"},
        [("甲", "乙")],
        {},
    ),
    "MultiWOZ": ({"log": [{"text": "甲", "metadata": {}}, {"text": "乙", "metadata": {}}]}, [("甲", "乙")], {}),
    "texts alone": ({"content": ["甲", "乙"], "dialog_id": "x"}, [("甲", "乙")], {}),
    "answers to instances of a task": (
        {"instruction": "甲", "instances": [{"input": "乙", "output": "丙"}]},
        [],
        {"records without question and answer": 1},
    ),
    "preferences": (
        {"prompt": "甲", "chosen": "乙", "rejected": "丙"},
        [("甲", "乙")],
        {"fields that are not used: rejected": 1},
    ),
    "content of parts": (
        {"messages": [{"role": "user", "content": [1]}, ASSISTANT]},
        [],
        {"utterances that are not text": 1, "conversations without a question and its answer": 1},
    ),
}


@pytest.mark.parametrize(("value", "expected", "counts"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("format_name", ["jsonl", "json"])
def test_json_shapes_give_pairs(
    tmp_path: Path, format_name: str, value: object, expected: Pairs, counts: dict[str, int]
) -> None:
    indent = None if format_name == "jsonl" else 1
    line = json.dumps(value, ensure_ascii=False, indent=indent) + "\n"
    content = line * 2 if format_name == "jsonl" else json.dumps([value, value], ensure_ascii=False, indent=1)
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert pairs == expected * 2
    assert dropped(report) == {reason: 2 * count for reason, count in counts.items()}
    assert report.formats == [format_name]


def test_document_of_one_value_gives_pairs(tmp_path: Path) -> None:
    for value, expected, _ in SHAPES.values():
        for indent in (None, 2):
            content = json.dumps(value, ensure_ascii=False, indent=indent)
            assert pairs_of(written(tmp_path, "a", content))[0] == expected


def test_invalid_json_lines_are_counted(tmp_path: Path) -> None:
    lines = ['["甲", "乙"]', "{", "", "[" * 200_000, '["\\ud800", "丙"]', '["丁", "戊"]', "7", '["己", "庚"]']
    path = written(tmp_path, "a", "\r\n".join(lines))
    pairs, report = pairs_of(path)
    assert pairs == [("甲", "乙"), ("丁", "戊"), ("己", "庚")]
    assert report.lines() == [
        f"lines that are not JSON: 3 (first: {path}, line 2)",
        f"values that are not a conversation: 1 (first: {path}, line 7)",
    ]


def test_columns_select_json_fields(tmp_path: Path) -> None:
    path = written(tmp_path, "a", '{"frage": "甲", "antwort": "乙"}\n{"frage": "丙"}\n')
    pairs, report = pairs_of(path, ("frage", "antwort"))
    assert pairs == [("甲", "乙")]
    assert dropped(report) == {"records without question and answer": 1}


def test_dropped_items_are_reported_with_item_number(tmp_path: Path) -> None:
    path = written(tmp_path, "a", '[["甲", "乙"],\n 3,\n ["丙"]]')
    _, report = pairs_of(path)
    assert report.lines() == [
        f"utterances that are not text: 1 (first: {path}, item 2)",
        f"conversations of one utterance: 1 (first: {path}, item 3)",
    ]


def test_long_document_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_ITEM", 200_000)
    content = json.dumps([[f"问{i}", f"答{i}"] for i in range(100_000)])
    assert len(pairs_of(written(tmp_path, "a", content))[0]) == 100_000


def test_object_larger_than_memory_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_ITEM", 200_000)
    monkeypatch.setattr(json_files, "MAX_OBJECT", 1000)
    conversations = [[f"问{i}", f"答{i}", f"再问{i}"] for i in range(30_000)]
    messages = {str(i): {"messages": [USER, ASSISTANT, USER, ASSISTANT], "goal": ["x"]} for i in range(10_000)}
    document = {
        "version": 1,
        "notes": ["not", "a conversation"] * 10_000,
        "train": conversations,
        "data": {"by_id": messages, "license": "x"},
        "dialog": ["甲", "乙", "丙"],
    }
    path = written(tmp_path, "a", json.dumps(document, ensure_ascii=False, indent=1))
    assert path.stat().st_size > 10 * json_files.MAX_ITEM
    found, report = conversations_of(path)
    assert found == [*conversations, *[["甲", "乙", "甲", "乙"]] * 10_000, ["甲", "乙", "丙"]]
    assert (report.formats, report.dropped) == (["json"], {})


def test_streamed_object_is_divided_into_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_OBJECT", 0)
    path = written(tmp_path, "a", '{"train": [["甲", "乙"], ["丙", "丁"]],\n "valid": [["戊", "己"]]}')
    for part, expected in (("training", [["甲", "乙"], ["丙", "丁"]]), ("validation", [["戊", "己"]])):
        for text in open_text_files(path, "a", Report()):
            assert conversations(read_json(text, ReadOptions(part=part), Report())) == expected


RECORDS: dict[str, tuple[object, list[list[str]], dict[str, int]]] = {
    "Alpaca": ({"instruction": "译", "input": "hi", "output": "嗨"}, [["译\nhi", "嗨"]], {}),
    "Alpaca without input": ({"instruction": "译", "input": "", "output": "嗨", "id": "7"}, [["译", "嗨"]], {}),
    "Dolly": (
        {"instruction": "Who?", "context": "Bob came.", "response": "Bob", "category": "qa"},
        [["Who?\nBob came.", "Bob"]],
        {"fields that are not used: category": 1},
    ),
    "Qwen": ({"query": "丙", "response": "丁", "history": [["甲", "乙"]]}, [["甲", "乙", "丙", "丁"]], {}),
    "longer history": (
        {"query": "戊", "response": "己", "history": [["甲", "乙"], ["丙", "丁"]]},
        [["甲", "乙", "丙", "丁", "戊", "己"]],
        {},
    ),
    "history of utterances": ({"query": "乙", "response": "丙", "history": ["甲"]}, [["甲", "乙", "丙"]], {}),
    "history of records": (
        {"prompt": "丙", "response": "丁", "history": [{"user": "甲", "bot": "乙"}]},
        [["甲", "乙", "丙", "丁"]],
        {},
    ),
    "empty history": (
        {"query": "丙", "response": "丁", "history": None, "system": "s"},
        [["丙", "丁"]],
        {"fields that are not used: system": 1},
    ),
    "context of turns": ({"context": ["甲", "乙"], "response": "丙"}, [["甲", "乙", "丙"]], {}),
    "context alone": ({"context": "甲", "response": "乙"}, [["甲", "乙"]], {}),
    "damaged history": (
        {"query": "丙", "response": "丁", "history": [["甲"]]},
        [],
        {"records without question and answer": 1},
    ),
    "messages": ({"messages": [USER, ASSISTANT, USER, ASSISTANT]}, [["甲", "乙", "甲", "乙"]], {}),
    "records of a conversation": (
        {"conversation": [{"human": "甲", "assistant": "乙"}, {"human": "丙", "assistant": "丁"}], "id": 1},
        [["甲", "乙", "丙", "丁"]],
        {},
    ),
    "records of several conversations": (
        {"data": [{"question": "甲", "answer": "乙"}, {"question": "丙", "answer": "丁"}]},
        [["甲", "乙"], ["丙", "丁"]],
        {},
    ),
    "MOSS": (
        {
            "meta_instruction": "x",
            "chat": {
                "turn_1": {"Human": "<|Human|>: 甲<eoh>\n", "MOSS": "<|MOSS|>: 乙<eom>\n"},
                "turn_2": {"Human": "<|Human|>: 丙<eoh>\n", "MOSS": "<|MOSS|>: 丁<eom>\n"},
            },
        },
        [["甲", "乙", "丙", "丁"]],
        {},
    ),
}


@pytest.mark.parametrize(("record", "expected", "counts"), RECORDS.values(), ids=RECORDS.keys())
def test_records_use_input_context_and_history(
    tmp_path: Path, record: object, expected: list[list[str]], counts: dict[str, int]
) -> None:
    found, report = conversations_of(written(tmp_path, "a", json.dumps(record, ensure_ascii=False)))
    assert found == expected
    assert dropped(report) == counts


def test_pair_after_an_undecodable_one_begins_a_conversation(tmp_path: Path) -> None:
    turns = ["甲", "乙", "丙\ufffd", "丁", "戊", "己", "庚"]
    path = written(tmp_path, "a", json.dumps([turns], ensure_ascii=False, indent=1))
    assert conversations_of(path)[0] == [["甲", "乙"], ["丁", "戊", "己", "庚"]]


def test_json_line_may_be_longer_than_the_sample(tmp_path: Path) -> None:
    long = json.dumps({"messages": [USER, ASSISTANT] * 10_000})
    pairs, _ = pairs_of(written(tmp_path, "a", f"{long}\n{long}\n"))
    assert pairs == [("甲", "乙")] * 20_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[["甲", "乙"],\n["丙", ', "is not JSON after item 1, in the first 25 bytes"),
        ('[["甲", "乙"],\n["丙" "丁"]]', "is not JSON after item 1"),
        ('[["甲", "乙"],\n[1e99999999999999999999]]', "is not JSON after item"),
        ('[\n["甲", "乙"],\n[' + "1" * 6000 + "]]", "is not JSON after item"),
        ('{"train":\n[["甲", ', "is not JSON after item 0"),
        ("[\n" * 100_000, "lists nested more than 32 deep"),
        ('[["甲",\n"' + "x" * 900_000 + '"]]', "an item larger than 0 MiB"),
        ('{"a": [["甲",\n"' + "x" * 900_000 + '"]]}', "an item larger than 0 MiB; split it"),
    ],
)
def test_invalid_documents_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.setattr(json_files, "MAX_ITEM", 500_000)
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "a", content))
    assert message in str(error.value)


def test_valid_json_gives_pairs(tmp_path: Path) -> None:
    expected = [("你好", "你好呀"), ("吃了吗", "刚吃过"), ("甲", "乙"), ("乙", "丙")]
    for format_name in ("json", "jsonl"):
        pairs, report = pairs_of(written(tmp_path, "a", VALID[format_name]))
        assert (pairs, report.formats) == (expected, [format_name])


def test_objects_in_a_list_are_no_maps_of_questions(tmp_path: Path) -> None:
    """Those of one entry are: each may be a row."""
    for value in ([{"甲": "乙", "丙": "丁"}, {"戊": "己"}], {"x": [{"甲": "乙", "丙": "丁"}, {"戊": "己"}]}):
        pairs, report = pairs_of(written(tmp_path, "a", json.dumps([value, value])), ("1", "2"))
        assert pairs == [("戊", "己")] * 2
        assert dropped(report) == {"records without question and answer": 2}

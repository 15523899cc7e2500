"""Values of JSON and YAML: streamed within bounds, located, and refused in one line where they are damaged."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatbot.corpus.reading import objects
from chatbot.corpus.reading.mapping import compiled
from chatbot.corpus.reading.objects import ANY, ITEM, Located, Place, json_entries, units_of
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import open_text_files
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import VALID, conversations_of, dropped, pairs_of, written

MESSAGE = '{"role": "user", "content": "甲"}, {"role": "assistant", "content": "乙"}'


def entries(path: Path, place: Place, part: str | None = None) -> Iterator[object]:
    for text in open_text_files(path, "a", Report()):
        yield from json_entries(text, ReadOptions(part=part), place, compiled("@"), Located("item", "a"))


@pytest.mark.parametrize(
    "place", [(), ("a",), ("a", ITEM), (ANY, ITEM), ("o", "x"), ("o", "x", ITEM, "t"), (ITEM,), ("z",), ("a", "b")]
)
def test_values_at_a_place_are_those_of_the_value_in_memory(tmp_path: Path, place: Place) -> None:
    value = {"a": [1, [2], {"t": 3}], "b": {}, "o": {"x": [{"t": "4", "u": [5]}, {"u": 6}], "y": None}}
    path = written(tmp_path, "a", json.dumps(value))
    assert [*entries(path, place)] == [*units_of(value, place)]


def test_parts_of_an_object_are_read_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "a", '{"train": [["甲", "乙"]], "valid": [["丙", "丁"]]}')
    assert [*entries(path, (ANY, ITEM), part="validation")] == [["丙", "丁"], None]
    assert [*entries(path, (ANY, ITEM), part="training")] == [["甲", "乙"], None]


@pytest.mark.parametrize("head", ['[\n{"m": [', '{"m": [\n'])
def test_a_chat_larger_than_its_limit_is_streamed_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """A single message may not be as large."""
    monkeypatch.setattr(objects, "MAX_VALUE", 500_000)
    message = '{"by": "%s", "says": "第%d句话", "more": "' + "x" * 200 + '"}'
    content = ",\n".join(message % ("甲乙"[n % 2], n) for n in range(20_000))
    path = written(tmp_path, "a.json", head.replace("[\n{", "{") + content + "]}")
    assert path.stat().st_size > 8 * 500_000
    tracemalloc.start()
    try:
        pairs, _ = pairs_of(path, map="m[].{speaker: by, text: says}")
        held = sum(len(side) for pair in pairs for side in pair) * 20
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20 + held
    finally:
        tracemalloc.stop()
    assert pairs == [(f"第{n}句话", f"第{n + 1}句话") for n in range(19_999)]


def test_a_large_object_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_VALUE", 200_000)
    talks = [[f"问{i}", f"答{i}", f"再问{i}"] for i in range(30_000)]
    path = written(tmp_path, "a", json.dumps({"version": 1, "train": talks, "notes": [1] * 90_000}, ensure_ascii=False))
    found, report = conversations_of(path)
    assert found == talks
    assert report.dropped == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[["甲", "乙"],\n["丙", ', "is not JSON after item"),
        ('[["甲", "乙"],\n["丙" "丁"]]', "is not JSON after item"),
        ('[["甲", "乙"],\n[1e99999999999999999999]]', "is not JSON after item"),
        ('[\n["甲", "乙"],\n[' + "1" * 6000 + "]]", "is not JSON after item"),
        ("[\n" * 100_000, "nested more than 32 deep"),
        ('[["甲", "乙"], ["甲",\n"' + "x" * 900_000 + '"]]', "an item larger than 0 MiB; split it"),
        ('{"a": [["甲", "乙"], ["甲",\n"' + "x" * 900_000 + '"]]}', "an item larger than 0 MiB; split it"),
        ("- - &a 甲\n  - *a\n", "line 2: an alias (*a)"),
        ("- - 甲\n  - 乙: 丙: 丁\n", "line 2: not YAML"),
        ("- - 甲\n  - \x07\n", "not YAML"),
        ("- - 甲\n" + "- " * 5000, "nested more than 32 deep"),
    ],
)
def test_damaged_documents_are_errors_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.setattr(objects, "MAX_VALUE", 500_000)
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "a", content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_lines_that_are_not_json_are_counted(tmp_path: Path) -> None:
    """As Python writes them, NaN and Infinity are numbers; a thousand lists are no conversation."""
    deep = "[" * 1000 + '"甲"' + "]" * 1000
    lines = [
        '["甲", "乙"]',
        "{",
        "",
        deep,
        '["\\ud800", "丙"]',
        '["丁", "戊"]',
        "7",
        '{"q": "己", "a": "庚", "s": NaN}',
    ]
    path = written(tmp_path, "a", "\r\n".join([*lines, '["辛", "壬"]']))
    pairs, report = pairs_of(path)
    assert pairs == [("甲", "乙"), ("丁", "戊"), ("己", "庚"), ("辛", "壬")]
    assert report.dropped["lines that are not JSON"].first == f"{path}, line 2"
    assert sum(dropped(report).values()) == 4


def test_dropped_items_are_reported_with_item_number(tmp_path: Path) -> None:
    path = written(tmp_path, "a", '[["甲", "乙"],\n 3,\n {"x": 1},\n ["丙", "丁"]]')
    assert pairs_of(path)[1].lines() == [f"records without question and answer: 2 (first: {path}, item 2)"]


def test_a_line_may_be_longer_than_the_sample(tmp_path: Path) -> None:
    long = '{"messages": [' + ", ".join([MESSAGE] * 10_000) + "]}"
    assert pairs_of(written(tmp_path, "a", f"{long}\n{long}\n"))[0] == [("甲", "乙")] * 20_000


def test_pair_after_an_undecodable_one_begins_a_conversation(tmp_path: Path) -> None:
    turns = ["甲", "乙", "丙\ufffd", "丁", "戊", "己", "庚"]
    path = written(tmp_path, "a", json.dumps([turns], ensure_ascii=False, indent=1))
    assert conversations_of(path)[0] == [["甲", "乙"], ["丁", "戊", "己", "庚"]]


@pytest.mark.parametrize("content", [VALID["yaml"], VALID["yaml"].partition("conversations:\n")[2]])
def test_yaml_gives_pairs(tmp_path: Path, content: str) -> None:
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert pairs == [("你好", "你好呀"), ("吃了吗", "刚吃过"), ("刚吃过", "那就好")]
    assert (report.formats, dropped(report)) == (["yaml"], {})


def test_plain_scalars_of_yaml_stay_text(tmp_path: Path) -> None:
    content = "conversations:\n- [yes, 1, 2020-01-01, ~, 0x10, <<, '']\n- - 独\n"
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert pairs == [("yes", "1"), ("1", "2020-01-01"), ("2020-01-01", "~"), ("~", "0x10"), ("0x10", "<<"), ("<<", "")]
    assert dropped(report) == {"conversations of one utterance": 1}

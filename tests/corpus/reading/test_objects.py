"""Large values of JSON and YAML: streamed within bounds, or refused in one line."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatbot.corpus.reading import objects
from chatbot.corpus.reading.layouts import ANY, ITEM, Place
from chatbot.corpus.reading.objects import json_values, values_at
from chatbot.corpus.reading.report import Location, ReadOptions, Report
from chatbot.corpus.reading.text_file import open_text_files
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import conversations_of, pairs_of, written

MESSAGE = '{"role": "user", "content": "甲"}, {"role": "assistant", "content": "乙"}'


def entries(path: Path, place: Place, part: str | None = None) -> Iterator[object]:
    for text in open_text_files(path, Report()):
        yield from json_values(text, ReadOptions(part=part), place, Location("item", "a", Report()))


@pytest.mark.parametrize(
    "place", [(), ("a",), ("a", ITEM), (ANY, ITEM), ("o", "x"), ("o", "x", ITEM, "t"), (ITEM,), ("z",), ("a", "b")]
)
def test_values_at_a_place_are_those_of_the_value_in_memory(tmp_path: Path, place: Place) -> None:
    value = {"a": [1, [2], {"t": 3}], "b": {}, "o": {"x": [{"t": "4", "u": [5]}, {"u": 6}], "y": None}}
    path = written(tmp_path, "a", json.dumps(value))
    assert [*entries(path, place)] == [*values_at(value, place)]


@pytest.mark.parametrize("head", ['[\n{"m": [', '{"m": [\n'])
def test_a_chat_larger_than_its_limit_is_streamed_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """A single message may not be as large."""
    monkeypatch.setattr(objects, "MAX_VALUE", 500_000)
    message = '{"by": "%s", "says": "第%d句话", "more": "' + "x" * 5000 + '"}'
    content = ",\n".join(message % ("甲乙"[n % 2], n) for n in range(2000))
    path = written(tmp_path, "a.json", head.replace("[\n{", "{") + content + "]}")
    assert path.stat().st_size > 20 * 500_000
    tracemalloc.start()
    try:
        pairs, _ = pairs_of(path, map="m[].{speaker: by, text: says}")
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()
    assert pairs == [(f"第{n}句话", f"第{n + 1}句话") for n in range(1999)]


def test_a_large_object_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_VALUE", 50_000)
    talks = [[f"问{i}", f"答{i}", f"再问{i}"] for i in range(8_000)]
    path = written(tmp_path, "a", json.dumps({"version": 1, "train": talks, "notes": [1] * 30_000}, ensure_ascii=False))
    found, report = conversations_of(path)
    assert found == talks
    assert report.dropped == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[\n" * 100_000, "nested more than 32 levels deep"),
        ('[["甲", "乙"], ["甲",\n"' + "x" * 900_000 + '"]]', "an item larger than 0 MiB; split it"),
        ('{"a": [["甲", "乙"], ["甲",\n"' + "x" * 900_000 + '"]]}', "an item larger than 0 MiB; split it"),
        ("- - 甲\n" + "- " * 5000, "nested more than 32 levels deep"),
    ],
)
def test_large_and_deep_documents_are_errors_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.setattr(objects, "MAX_VALUE", 500_000)
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "a", content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_line_may_be_longer_than_the_sample(tmp_path: Path) -> None:
    long = '{"messages": [' + ", ".join([MESSAGE] * 6_000) + "]}"
    assert pairs_of(written(tmp_path, "a", f"{long}\n{long}\n"))[0] == [("甲", "乙")] * 12_000

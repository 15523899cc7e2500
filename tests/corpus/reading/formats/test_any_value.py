"""Any value: pairs of text or an error of one line, and hostile texts in linear time."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.formats.fields import Walk, repaired
from chatbot.corpus.reading.formats.marked_text import separated, turns_of
from chatbot.corpus.reading.formats.values import pairs_of
from chatbot.corpus.reading.report import ReadOptions, Report
from tests.corpus.reading.sample_files import pairs_of as pairs_of_file
from tests.corpus.reading.sample_files import written

NAMES = st.sampled_from(
    (
        *("question", "answer", "questions", "answers", "history", "context", "messages", "role", "content", "text"),
        *("from", "id", "parent_id", "replies", "prompt", "chosen", "mapping", "data", "columns", "qas", "patterns"),
    )
)
TEXTS = st.sampled_from(("甲", "", "user", "assistant", "Human: a\nAssistant: b", "a __eou__ b", "[deleted]", "1"))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.just(1.5), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES | TEXTS, inner, max_size=5)),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from(((), ("question", "answer"), ("1", "2"))))
def test_any_value_gives_pairs_of_text(value: object, columns: tuple[str, ...]) -> None:
    walk = Walk(ReadOptions(columns=columns), Report(), "a", lambda: "a, item 1")
    for question, answer, link, *_ in pairs_of(value, walk):
        assert isinstance(question, str)
        assert isinstance(answer, str)
        assert link in range(3)


@pytest.mark.parametrize(
    "text",
    [
        *("Human: " * 15_000, "Human:\n" * 15_000, "### " * 25_000, "\n" * 100_000, " " * 100_000, "[INST]" * 16_000),
        *("<|im_start|>user\n" * 6_000, "<<SYS>>" * 14_000, "**" * 50_000, "USER:" * 20_000, "__eou__ " * 12_000),
        *("Human: " + "a: " * 33_000, "Human:" + " " * 100_000, "Human: a\n" + " \t" * 50_000, "\u00e4\u00a0" * 50_000),
    ],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    """The shortest of three times, since a busy machine lengthens single ones."""

    def seconds() -> float:
        start = time.process_time()
        for function in (turns_of, separated, repaired):
            function(text)
        return time.process_time() - start

    assert any(seconds() < 0.5 for _ in range(3))


def test_texts_of_a_large_object_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.corpus.reading.formats.json_files.MAX_OBJECT", 200)
    entries = {f"第{number}个问题是什么？": f"答{number}" for number in range(30_000)}
    path = written(tmp_path, "a.json", json.dumps(entries, ensure_ascii=False, indent=1))
    pairs, report = pairs_of_file(path)
    assert pairs == []
    assert report.lines()[0].startswith("texts of an object too large to be read as a map of questions: 30,000")


def test_first_values_are_looked_at_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report still names the line of each value."""
    monkeypatch.setattr("chatbot.corpus.reading.formats.fields.MAX_HEAD", 100)
    lines = ['{"question": "甲", "answer": "乙"}'] * 30 + ['{"question": "丙"}'] + ['["丁", "戊"]'] * 30
    pairs, report = pairs_of_file(written(tmp_path, "a.jsonl", "\n".join(lines)))
    assert len(pairs) == 60
    assert report.lines() == [f"records without question and answer: 1 (first: {tmp_path / 'a.jsonl'}, line 31)"]


def test_doubt_after_the_first_pairs_is_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.json", '{"x": [["甲", "乙", "丙", "丁", "戊"]], "y": {"你好": "你好呀", "再见": "慢走"}}'
    )
    pairs, report = pairs_of_file(path)
    assert len(pairs) == 4
    assert report.lines()[0] == f"records whose reading is in doubt: 1 (first: {path}, line 1)"


def test_replies_far_apart_are_found_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.corpus.reading.formats.messages.MAX_HELD", 10)
    rows = [
        {"id": str(n), "parent_id": str(n - 12) if n >= 12 else None, "body": f"第{n}句", "author": "x"}
        for n in range(40)
    ]
    pairs, _ = pairs_of_file(written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert len(pairs) >= 20
    assert set(pairs) <= {(f"第{n - 12}句", f"第{n}句") for n in range(12, 40)}

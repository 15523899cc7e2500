"""python -m chatbot.corpus pairs: what is written, and that it is read again as the same pairs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus import conversion
from chatbot.corpus.chunks import clean_pairs
from chatbot.corpus.cleaning import tidy
from chatbot.corpus.conversion import conversations
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.reading.turns import NEW, NEXT, OVERLAP, RESUMED, Pair
from tests.corpus.encoded import data

CHAT = (
    '{"messages": [{"role": "user", "content": "甲"}, {"role": "assistant", "content": "乙"}, '
    '{"role": "user", "content": "丙"}, {"role": "assistant", "content": "丁"}]}\n'
    '["一", "二", "三"]\n["单", "双"]\n{"question": "问", "answer": "答"}\n'
)


def written(name: str, content: str) -> str:
    Path(name).write_text(content, encoding="utf-8")
    return name


def pairs(name: str) -> list[Pair]:
    return [pair for source in find_sources([name]) for pair in read(source, Report())]


def test_pairs_are_lines_without_tabs_and_line_ends_inside(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each pair once. What is left out, and what is not used, is said beside."""
    lines = '{"q": "a\\tb", "a": "c\\nd\\u2028e", "category": "闲聊"}\n' + '{"q": "f", "a": "g"}\n' * 2
    assert data("pairs", written("a.jsonl", lines), written("b.tsv", "甲\t乙\n丙\n丁\t戊\n")) == 0
    output = capsys.readouterr()
    assert output.out == "a b\tc d e\nf\tg\n甲\t乙\n丁\t戊\n"
    assert "a.jsonl: fields that are not used: category (first: a.jsonl)" in output.err
    assert "b.tsv: left out: lines without a tab: 1 (first: b.tsv, line 2)" in output.err


def test_pairs_are_those_that_training_selects(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = written("a.tsv", "早\t好的\n行\t好的\n早\t好的\n走\t好的\n吗\t不了\n嗯\t嗯\n")
    assert data("pairs", name, "--max-reply-frequency", "2") == 0
    assert capsys.readouterr().out == "早\t好的\n行\t好的\n吗\t不了\n"
    assert data("pairs", name, "--clean", "none", "--max-reply-frequency", "3") == 0
    assert capsys.readouterr().out == "早\t好的\n行\t好的\n早\t好的\n吗\t不了\n嗯\t嗯\n"


def test_conversations_are_read_again_as_the_same(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = written("a.jsonl", CHAT)
    assert data("pairs", name, "--json") == 0
    assert pairs(written("b.jsonl", capsys.readouterr().out)) == pairs(name)


TEXTS = st.text("甲乙a:：&;<>\\ ", max_size=6).map(tidy).filter(bool) | st.sampled_from(
    ["A: 甲", "B：乙", "问：甲", "答：乙", "User: a", "Assistant: b", "&lt;", "&amp;lt; a", "a<br>b"]
)
LINKS = st.sampled_from([NEW, OVERLAP, NEXT, RESUMED])


@given(st.lists(st.tuples(TEXTS, TEXTS, LINKS), min_size=1), st.sampled_from([("markup",), ("none",)]))
@example([("甲", "乙", NEW), ("丙", "丁", NEXT), ("丁", "戊", OVERLAP)], ("none",))
@example([("甲", "乙", NEW), ("乙", "丙", OVERLAP), ("丁", "戊", NEXT)], ("none",))
def test_texts_with_labels_or_markup_are_read_again_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, given_pairs: list[Pair], rules: tuple[str, ...]
) -> None:
    """A conversation that no line can have goes on as a new one."""
    cleaned: list[Pair] = []
    for question, answer, link in given_pairs:
        if link == OVERLAP and cleaned:
            question = cleaned[-1][1]
        cleaned.append((question, answer, link))
    path = tmp_path_factory.getbasetemp() / "a.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in conversations(cleaned, rules)))
    settings = CorpusSettings(data=(str(path),), clean=rules)
    again = list(clean_pairs(pairs(str(path)), 1, Report(), settings))
    assert [pair[:2] for pair in again] == [pair[:2] for pair in cleaned]
    assert all(link in (NEW, before) for (*_, link), (*_, before) in zip(again, cleaned, strict=True))


def test_nothing_is_written_where_a_question_is_open(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs of an earlier file are not written, either."""
    names = [written("a.tsv", "甲\t乙\n"), written("b.txt", "A: Hi\nB: Hello\nA: Bye\nB: So\n")]
    assert data("pairs", *names) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "b.txt: " in output.err


def test_nothing_is_written_of_a_file_that_changes(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = written("a.tsv", "甲\t乙\n")

    def clean_while_written(*arguments: Any) -> Iterator[Pair]:
        written(name, "甲\t乙\n丙\t丁\n")  # like a running download
        return clean_pairs(*arguments)

    monkeypatch.setattr(conversion, "clean_pairs", clean_while_written)
    assert data("pairs", name) == 2
    assert capsys.readouterr() == (
        "",
        "error: a.tsv: changed while it was read; run the command again when it is complete\n",
    )


def test_no_pairs_are_an_error(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ({"messages": [{"role": role, "content": role}]} for role in ("user", "assistant"))
    name = written("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert data("pairs", name) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: a.jsonl: no pairs; the lines above list what was left out" in captured.err
